import json

import pytest

from kltune.cli.app import main
from kltune.drift import Fingerprint, fingerprint
from kltune.trial.records import read, save
from kltune.workspace import Workspace

from .data import row, write


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "old.parquet", [row(n) for n in range(100)])
    write(tmp_path / "near.parquet", [row(n, answer="0" if n < 9 else None) for n in range(100)])
    write(tmp_path / "far.parquet", [row(n, answer="0" if n < 10 else None) for n in range(100)])
    return tmp_path


def test_a_tenth_of_the_rows_is_the_limit(files, capsys):
    assert main(["drift", "--data", "near.parquet", "--since", "old.parquet"]) == 0
    assert "9.0% of the data changed, limit 10%: the calibration still holds" in (
        capsys.readouterr().out
    )
    assert main(["drift", "--data", "far.parquet", "--since", "old.parquet"]) == 1
    out = capsys.readouterr()
    assert "10.0% of the data changed, limit 10%: recalibrate" in out.out
    assert "kltune run --since last" in out.err


def test_the_limit_can_be_set(files):
    command = ["drift", "--data", "near.parquet", "--since", "old.parquet"]
    assert main([*command, "--limit", "0.05"]) == 1
    (files / "kltune.yaml").write_text("drift: {limit: 0.02}\n")
    assert main(command) == 1
    (files / "kltune.yaml").write_text("drift: {limit: 2}\n")
    assert main(command) == 3


def test_json_gives_every_number(files, capsys):
    main(["drift", "--data", "far.parquet", "--since", "old.parquet", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["unchanged"], found["added"], found["removed"], found["changed"]) == (
        90,
        0,
        0,
        10,
    )
    assert found["recalibrate"] is True
    assert found["prompt_length"]["distance"] == 0
    assert 0 < found["answer_length"]["distance"] <= found["share"]
    assert found["source_mix"] == 0


def test_the_workspace_and_the_export_know_the_data(files, capsys):
    workspace = Workspace(files / "kltune-runs")
    save(workspace.data, fingerprint([files / "old.parquet"]))
    assert main(["drift", "--data", "far.parquet"]) == 1
    assert main(["drift", "--data", "old.parquet"]) == 0
    (files / "old.parquet").unlink()
    assert main(["drift", "--data", "far.parquet"]) == 1
    exported = files / "data.json"
    save(exported, read(workspace.data, Fingerprint))
    capsys.readouterr()
    main(["drift", "--data", "far.parquet", "--since", "data.json", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["changed"] == 10


def test_what_is_missing_is_said(files, capsys):
    assert main(["drift", "--data", "new.parquet", "--since", "old.parquet"]) == 3
    assert main(["drift", "--data", "old.parquet", "--since", "none.json"]) == 3
    assert main(["drift", "--data", "old.parquet"]) == 1
    assert "knows of no training data; calibrate with `kltune run`" in capsys.readouterr().err
