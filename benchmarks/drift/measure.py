"""Time and peak memory of `kltune drift` over ten million rows.

    python benchmarks/drift/measure.py [ROWS]

makes two data sets of ROWS rows in a temporary directory (about 0.2 kB a row), the second with
5 % of the answers corrected, 3 % of the rows removed and 4 % added, in another order of its parts.
Measured in a process of their own each: the fingerprint, and the comparison of two files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet

PART = 250_000


def part(numbers: numpy.ndarray, corrected: float) -> pyarrow.Table:
    """Return rows with these numbers; the answers of every 1/``corrected``-th are others."""
    text = pyarrow.array(numbers).cast(pyarrow.string())
    question = pyarrow.compute.binary_join_element_wise(
        "Somebody has", text, "things, gives away seven of them on Monday, buys twice as many on "
        "Tuesday and loses a third of what is left on the way home. How many are there at last?",
        " ",
    )  # fmt: skip
    wrong = numbers % 1000 < 1000 * corrected
    answer = pyarrow.array(numbers + wrong).cast(pyarrow.string())
    count = len(numbers)
    messages = pyarrow.StructArray.from_arrays(
        [pyarrow.array(["user"] * count), question], ["role", "content"]
    )
    return pyarrow.table(
        {
            "data_source": pyarrow.array(["openai/gsm8k"] * count),
            "prompt": pyarrow.ListArray.from_arrays(
                numpy.arange(count + 1, dtype=numpy.int32), messages
            ),
            "ability": pyarrow.array(["math"] * count),
            "reward_model": pyarrow.StructArray.from_arrays(
                [pyarrow.array(["rule"] * count), answer], ["style", "ground_truth"]
            ),
            "extra_info": pyarrow.StructArray.from_arrays(
                [pyarrow.array(["train"] * count), pyarrow.array(numbers)], ["split", "index"]
            ),
        }
    )


def write(path: Path, numbers: numpy.ndarray, corrected: float = 0.0) -> None:
    """Write a parquet file part by part."""
    writer = None
    for start in range(0, len(numbers), PART):
        table = part(numbers[start : start + PART], corrected)
        writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    assert writer is not None
    writer.close()


def measured(code: str, *arguments: str) -> dict[str, object]:
    """Run code in a process of its own; return its answer, seconds, and peak memory in MB."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True
    )
    answer, peak = done.stdout.split("\n")[:2]
    return {
        "answer": json.loads(answer),
        "seconds": round(time.monotonic() - began, 1),
        "peak_memory_mb": round(int(peak) / 1024),
    }


# Not getrusage: what it tells of a child begins with the memory of its parent.
PEAK = "print([w.split()[1] for w in open('/proc/self/status') if w.startswith('VmHWM')][0])"
FINGERPRINT = f"""
import sys, json; from pathlib import Path; from kltune.drift import fingerprint
print(json.dumps(fingerprint([Path(sys.argv[1])]).rows)); {PEAK}
"""
COMPARE = f"""
import sys, json; from pathlib import Path; from kltune.drift import compare_files
d = compare_files([Path(sys.argv[1])], [Path(sys.argv[2])])
print(json.dumps([d.unchanged, d.added, d.removed, d.changed, d.share])); {PEAK}
"""
SKETCH = f"""
import sys, json; from pathlib import Path; from kltune.drift import compare, fingerprint
d = compare(*(fingerprint([Path(p)]) for p in sys.argv[1:]))
print(json.dumps([d.share, d.margin])); {PEAK}
"""

rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
with tempfile.TemporaryDirectory() as name:
    old, new = Path(name) / "old.parquet", Path(name) / "new.parquet"
    numbers = numpy.arange(rows)
    write(old, numbers)
    kept = numbers[numbers % 100 >= 3]
    added = numpy.arange(rows, rows + rows // 25)
    parts = numpy.array_split(numpy.concatenate([added, kept]), 16)
    write(new, numpy.concatenate(parts[::-1]), corrected=0.05)
    result = {
        "rows": rows,
        "parquet_mb": round(old.stat().st_size / 1e6),
        "fingerprint": measured(FINGERPRINT, str(old)),
        "compare_files": measured(COMPARE, str(old), str(new)),
        "compare_fingerprints": measured(SKETCH, str(old), str(new)),
    }
changed = numpy.count_nonzero(kept % 1000 < 50)
result["expected"] = [len(kept) - changed, len(added), rows - len(kept), changed]
print(json.dumps(result, indent=2, default=int))
if rows == 10_000_000:
    Path(__file__).with_name("result.json").write_text(
        json.dumps(result, indent=2, default=int) + "\n"
    )
