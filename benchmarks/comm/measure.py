"""Time and memory of `kltune comm` on a large torch profiler trace, against `json.load`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EVENTS = 500_000
NAMES = ("ncclDevKernel_AllGather_RING_LL", "ampere_gemm", "ampere_gemm", "elementwise_kernel")

WHOLE = "import json, sys; print(len(json.load(open(sys.argv[1]))['traceEvents']))"
STREAMED = (
    "import sys; from pathlib import Path; from kltune.traces import read_shares;"
    "print(read_shares([Path(sys.argv[1])])[0].share)"
)


def write(path: Path) -> None:
    """Write a trace of as many kernels, each with the arguments that torch gives it."""
    arguments = {"External id": 513, "device": 0, "context": 1, "stream": 7, "grid": [128, 1, 1]}
    with path.open("w") as stream:
        stream.write('{"distributedInfo": {"backend": "nccl", "rank": 0}, "traceEvents": [\n')
        for n in range(EVENTS):
            event = {"ph": "X", "cat": "kernel", "name": NAMES[n % 4], "pid": 0, "tid": 7}
            event |= {"ts": n * 10, "dur": 9, "args": {**arguments, "correlation": n}}
            stream.write(json.dumps(event, indent=1) + (",\n" if n + 1 < EVENTS else "\n"))
        stream.write("]}")


def measured(code: str, path: Path) -> dict[str, float]:
    """Return seconds and peak memory (MB) of one process."""
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as process:
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "peak_mb": round(usage.ru_maxrss / 1024),
    }


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "trace.json"
    write(path)
    result = {
        "events": EVENTS,
        "mb": round(path.stat().st_size / 1e6),
        "kltune": measured(STREAMED, path),
        "json_load": measured(WHOLE, path),
    }
print(json.dumps(result, indent=2))
Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
