"""Makes training data in verl's schema."""

import pyarrow
import pyarrow.parquet


def row(number, question=None, answer=None, source="openai/gsm8k", split="train"):
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": question or f"How much is {number} plus one?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer or str(number + 1)},
        "extra_info": {"split": split, "index": number},
    }


def write(path, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path
