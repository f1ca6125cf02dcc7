import json

import pytest

from kltune.calibration.record import Calibration
from kltune.cli.app import main
from kltune.trial.records import read

from .data import row, write


@pytest.fixture
def calibrated(project):
    write(project.path / "train.parquet", [row(n) for n in range(50)])
    project.write(search={"trials": 6, "steps": 10, "confirmations": 0})
    assert main(["run", "--quiet"]) == 0
    return project


def settings(project):
    return read(project.workspace.calibration, Calibration).settings


def searched(project):
    return [t for t, _ in project.trials() if t.role.value == "search"]


def change_data(project):
    rows = [row(n, answer="0" if n < 25 else None) for n in range(50)]
    write(project.path / "train.parquet", rows)


def test_a_calibration_remembers_its_data_and_exports_it(calibrated, capsys):
    assert main(["drift", "--data", "train.parquet"]) == 0
    assert main(["export", "-o", "out", "--quiet"]) == 0
    header = (calibrated.path / "out" / "config.yaml").read_text()
    assert "# Training data: 50 rows, digest " in header
    assert "How much is" not in (calibrated.path / "out" / "data.json").read_text()
    change_data(calibrated)
    assert main(["drift", "--data", "train.parquet"]) == 1
    capsys.readouterr()
    code = main(
        ["drift", "--data", "train.parquet", "--since", "out/data.json", "--format", "json"]
    )
    assert (code, json.loads(capsys.readouterr().out)["changed"]) == (1, 25)


def test_recalibrating_begins_with_the_last_settings_and_is_short(calibrated, capsys):
    last = settings(calibrated)
    change_data(calibrated)
    assert main(["run", "--since", "last", "--quiet"]) == 0
    tried = searched(calibrated)
    assert len(tried) == 2
    assert tried[0].settings.kl_coef == pytest.approx(last.kl_coef)
    assert tried[0].settings.target_kl == pytest.approx(last.target_kl)
    # The calibration before stands beside it, whole.
    aside = [p for p in calibrated.path.iterdir() if p.name.startswith("kltune-runs.")]
    assert len(aside) == 1
    assert (aside[0] / "calibration.json").exists()


def test_the_history_shows_how_the_settings_moved(calibrated, capsys):
    first = settings(calibrated)
    change_data(calibrated)
    main(["run", "--since", "last", "--quiet"])
    capsys.readouterr()
    assert main(["export", "--history", "--format", "json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert len(entries) == 2
    assert entries[0]["settings"]["kl_coef"] == first.kl_coef
    assert entries[0]["data"] != entries[1]["data"]
    assert entries[0]["finished"] < entries[1]["finished"]
    assert main(["export", "--history"]) == 0
    assert first.describe()[:14] in capsys.readouterr().out
    assert calibrated.journal("recalibration")[0]["since"]["winner"] == entries[0]["winner"]


def test_nothing_changed_is_nothing_to_do(calibrated):
    began = calibrated.workspace.identity.read_text()
    assert main(["run", "--since", "last", "--quiet", "--trials", "6"]) == 0
    assert calibrated.workspace.identity.read_text() == began
    assert len(searched(calibrated)) == 6


def test_given_again_it_goes_on_and_does_not_begin_a_third(calibrated):
    change_data(calibrated)
    main(["run", "--since", "last", "--quiet"])
    identity = calibrated.workspace.identity.read_text()
    (calibrated.workspace.calibration).unlink()  # as if it had been killed before the verdict
    assert main(["run", "--since", "last", "--quiet"]) == 0
    assert calibrated.workspace.identity.read_text() == identity
    assert len(searched(calibrated)) == 2


def test_other_settings_are_a_reason_too(calibrated):
    calibrated.content["verl"]["overrides"]["data.train_batch_size"] = 32
    calibrated.write()
    assert main(["run", "--quiet"]) == 3
    assert main(["run", "--since", "last", "--quiet"]) == 0


def test_without_a_calibration_there_is_nothing_to_begin_from(project, capsys):
    write(project.path / "train.parquet", [row(n) for n in range(50)])
    assert main(["run", "--since", "last", "--quiet"]) == 1
    assert "holds no calibration yet" in capsys.readouterr().err
    assert main(["export", "--history"]) == 1
