import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = "datasets hydra jinja2 matplotlib mlflow numpy optuna pandas pydantic pyarrow ray rich"
HEAVY += " sqlalchemy tensorboard torch transformers tree_sitter verl wandb"


def test_every_part_imports_only_what_stands_below_it():
    from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

    assert lint_imports(str(ROOT / "pyproject.toml"), cache_dir=None) == EXIT_STATUS_SUCCESS


def python(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout.split()


def test_the_command_line_loads_nothing_heavy_before_a_command_runs():
    loaded = python(
        "import sys, kltune.cli.app; "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    assert set(HEAVY.split()).isdisjoint(loaded)


@pytest.mark.parametrize("part", ["kltune.trial", "kltune.search", "kltune.calibration"])
def test_no_part_loads_verl_or_torch(part):
    loaded = python(f"import sys, {part}; print(*sys.modules)")
    assert {"verl", "torch", "ray", "transformers", "kltune.verl_cpu"}.isdisjoint(loaded)


def test_the_domain_loads_the_standard_library_only():
    names = [f"kltune.domain.{p.stem}" for p in (ROOT / "kltune/domain").glob("[a-z]*.py")]
    loaded = python(f"import sys, {', '.join(names)}; print(*sys.modules)")
    tops = {name.partition(".")[0] for name in loaded}
    before = {name.partition(".")[0] for name in python("import sys; print(*sys.modules)")}
    assert tops - before - sys.stdlib_module_names == {"kltune"}
