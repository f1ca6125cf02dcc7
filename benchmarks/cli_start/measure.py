"""``kltune --help`` against ``optuna --help``. Asked for: at most 0.5."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from paired import paired, seconds_of

bin_dir = Path(sys.executable).parent
result = paired(
    lambda: seconds_of([str(bin_dir / "kltune"), "--help"]),
    lambda: seconds_of([str(bin_dir / "optuna"), "--help"]),
    runs=15,
)
print(json.dumps(result, indent=2))
Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
