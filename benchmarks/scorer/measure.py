"""Does pass@1 from verl's dumps agree with verl's own scorer, on all test problems of GSM8K?

    python benchmarks/scorer/measure.py ../shared/data/gsm8k/test.parquet

For every problem seven answers are written that a model may give: right, right with a thousands
separator, right but unmarked, wrong, marked twice, cut short, long before the mark. verl's own
``default_compute_score`` grades each; a dump is written as verl writes it, in another order and
with a chat template around the prompt. What is read back is compared answer by answer, and pass@1
and pass@k with verl's grades. The problems themselves are prepared again from their questions, and
compared with the file.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet
from verl.utils.reward_score import default_compute_score

from kltune.validation import tally
from kltune.verl.datasets import read_problems
from kltune.verl.dumps import read_dump
from kltune.verl.test_sets import TEST_SETS


def answers(truth: str) -> list[str]:
    """Return answers of each kind to a problem with this truth."""
    whole = int(float(truth)) if float(truth).is_integer() else None
    with_commas = f"{whole:,}" if whole is not None else truth
    return [
        f"So it is {truth}.\n#### {truth}",
        f"So it is {with_commas}.\n#### {with_commas}",
        f"So it is {truth}.",
        f"So it is {truth}.\n#### {truth}1",
        f"First I thought #### {truth}7, but it is\n#### {truth}",
        f"So it is {truth}.\n####",
        "word " * 200 + f"\n#### {truth}",
    ]


path = Path(sys.argv[1])
rows = pyarrow.parquet.read_table(path).to_pylist()
known = TEST_SETS["gsm8k"]
made = [
    known.row(
        {"question": r["extra_info"]["question"], "answer": r["extra_info"]["answer"]}, i, "test"
    )
    for i, r in enumerate(rows)
]
same_rows = sum(
    (a["prompt"], a["reward_model"], a["data_source"])
    == (b["prompt"], b["reward_model"], b["data_source"])
    for a, b in zip(made, rows, strict=True)
)
lines, grades = [], {}
for number, row in enumerate(rows):
    truth, prompt = row["reward_model"]["ground_truth"], row["prompt"][0]["content"]
    grades[str(number)] = []
    for text in answers(truth):
        score = default_compute_score(row["data_source"], text, truth)
        grades[str(number)].append(score == 1.0)
        template = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        lines.append(
            json.dumps(
                {"input": template, "output": text, "gts": truth, "score": score, "step": 0}
            )
        )
random.Random(0).shuffle(lines)  # noqa: S311
with tempfile.TemporaryDirectory() as name:
    dump = Path(name) / "0.jsonl"
    dump.write_text("\n".join(lines) + "\n", encoding="utf-8")
    read = read_dump(dump)
found = tally(read, {"gsm8k": read_problems(path)})["gsm8k"]
agree = sum(
    (found.tallies[key].right, found.tallies[key].answers) == (sum(marks), len(marks))
    for key, marks in grades.items()
)
share = sum(map(sum, grades.values())) / sum(map(len, grades.values()))
result = {
    "problems": len(rows),
    "answers": len(lines),
    "problems_that_agree": agree,
    "pass_at_1_of_verl": share,
    "pass_at_1_of_dumps": found.pass_at(1),
    "rows_prepared_like_the_file": same_rows,
}
print(json.dumps(result, indent=2))
Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
