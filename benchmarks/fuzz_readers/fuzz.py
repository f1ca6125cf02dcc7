"""Coverage-guided fuzzing of every parser, with atheris (libFuzzer).

    python -m benchmarks.fuzz_readers.fuzz INPUTS_PER_TARGET [TARGET…]

Each target runs in a process of its own, with a limit of 60 seconds an input, so that a hang is a
finding too. What is found stands in the working directory as ``crash-…`` or ``timeout-…``; it
becomes a test in ``tests/readers/test_fuzz_findings.py``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path


def fuzz(target: str, inputs: int) -> None:
    """Run one target in this process; never returns."""
    import atheris

    with atheris.instrument_imports(include=["kltune"]):
        from benchmarks.fuzz_readers.targets import SEEDS, TARGETS

    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(SEEDS[target]):
            (Path(corpus) / str(number)).write_bytes(seed)
        options = [f"-atheris_runs={inputs}", f"-runs={inputs}", "-timeout=60", "-max_len=2048"]
        atheris.Setup([sys.argv[0], *options, "-print_final_stats=1", corpus], TARGETS[target])
        atheris.Fuzz()


def main(arguments: list[str]) -> int:
    if arguments[0] == "--one":
        fuzz(arguments[1], int(arguments[2]))
    from benchmarks.fuzz_readers.targets import TARGETS

    failed = 0
    for target in arguments[1:] or TARGETS:
        argv = [
            sys.executable,
            "-m",
            "benchmarks.fuzz_readers.fuzz",
            "--one",
            target,
            arguments[0],
        ]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace")
        stats = [line for line in done.stderr.splitlines() if "number_of_executed_units" in line]
        print(target, "failed" if done.returncode else "passed", *stats, flush=True)
        if done.returncode:
            failed += 1
            print("\n".join(done.stderr.splitlines()[-25:]))
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
