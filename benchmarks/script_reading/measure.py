"""Counts the launch scripts in a directory that ``kltune init`` reads without help.

    python benchmarks/script_reading/measure.py PATH/TO/verl/examples

A script counts as read if every override is known that kltune does not set itself; one that
starts verl several times counts once, if each of its starts is read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kltune.errors import SettingsError
from kltune.verl.script import read_script
from kltune.verl.script.settings_text import from_script


def judge(path: Path) -> dict[str, object]:
    """Return what reading one script gives."""
    script = read_script(path.read_text(encoding="utf-8"), path=str(path.resolve()))
    found = []
    for number in range(1, len(script.launches) + 1):
        try:
            found.append(from_script(script, number=number))
        except SettingsError as error:
            return {"starts": len(script.launches), "read": False, "open": list(error.faults)}
    return {
        "starts": len(found),
        "read": bool(found) and not any(f.open for f in found),
        "overrides": sum(len(f.overrides) for f in found),
        "open": [sentence for f in found for sentence in f.open],
    }


def main(root: Path) -> None:
    """Print one line for each script that starts verl, and the counts."""
    results = {}
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".sh", ".slurm", ".sbatch")):
        result = judge(path)
        if result["starts"]:
            results[str(path.relative_to(root))] = result
            print(f"{'read' if result['read'] else 'asks'}  {path.relative_to(root)}")
            for sentence in result["open"]:  # type: ignore[attr-defined]
                print(f"        {sentence}")
    counts = {"scripts": len(results), "read": sum(bool(r["read"]) for r in results.values())}
    print(json.dumps(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
