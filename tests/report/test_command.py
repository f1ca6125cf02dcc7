"""``kltune report`` with the stand-in for verl."""

import json
import shutil
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from kltune.calibration.record import Calibration
from kltune.cli.app import main
from kltune.launchers.local import LocalLauncher
from kltune.trial.records import read, save

from ..calibration.test_scale import SIZES
from ..drift.data import row, write

EMPTY = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """What a browser would see: ids, elements, and the text of each element with an id."""

    def __init__(self, html):
        super().__init__()
        self.ids, self.elements, self.attributes = [], [], []
        self.text, self.open = {}, []
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.attributes += attributes
        found = dict(attributes).get("id")
        if found is not None:
            self.ids.append(found)
        if tag not in EMPTY:
            self.open.append((tag, found))

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in EMPTY:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, name in self.open:
            if name is not None:
                self.text[name] = self.text.get(name, "") + data


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """Where the workspace of ``whole`` is kept from test to test."""
    return tmp_path_factory.mktemp("whole") / "kltune-runs"


@pytest.fixture
def whole(project, monkeypatch, shelf):
    """A workspace in which every stage was run; a guess of the search is stopped."""
    if shelf.exists():
        shutil.copytree(shelf, project.workspace.path)
        return project
    for part in ("crews", "profiling"):
        monkeypatch.setattr(f"kltune.calibration.{part}.open_launcher", lambda _: LocalLauncher())
    write(project.path / "train.parquet", [row(n) for n in range(200)])
    write(project.path / "test.parquet", [row(n, split="test") for n in range(300)])
    project.content["verl"]["overrides"] |= SIZES
    project.content["verl"]["env"] |= {"STAND_IN_STEP_S": "0.001", "STAND_IN_PROBLEMS": "300"}
    project.write(
        "nan-at=4@search-001 oom-at=3@search-003 communicates=0.4",
        search={"trials": 5},
        scale={"nodes": [2], "trials": 1},
        validate={"seeds": 2},
    )
    assert main(["run", "--quiet"]) == 0
    assert main(["scale", "--profile", "--quiet"]) == 0
    shutil.copytree(project.workspace.path, shelf)
    return project


def written(project, *words):
    assert main(["report", *words]) == 0
    return Page((project.workspace.path / "report.html").read_text())


def test_a_whole_run_is_told_in_order_with_its_numbers(whole, capsys):
    capsys.readouterr()
    page = written(whole)
    assert capsys.readouterr().out == "kltune-runs/report.html\n"
    order = ["verdict", "settings", "held-fixed", "curves", "trials", "attempts", "findings"]
    order += ["scale", "validation", "training", "history", "journal", "provenance"]
    assert [name for name in page.ids if name in order] == order
    made = whole.calibration()
    assert page.text["verdict"] == f"Calibrated: {made['reason']}"
    settings = page.text["settings"]
    assert f"{made['settings']['kl_coef']:.4g}" in settings
    assert f"trial {made['winner']}" in settings
    assert "kltune.yaml" in settings
    assert "On 2 nodes, calibrated:" in settings
    for trial in made["trials"]:
        assert trial["name"] in page.text["trials"]
        assert f"{trial['outcome']['summary']['kl']:.4g}" in page.text["trials"]
    assert "non-finite" in page.text["findings"]
    assert "search-001: stopped" in page.text["journal"]
    assert "consistency gatepassed" in page.text["scale"]
    assert "transfer error" in page.text["scale"]
    assert "rank 0 spends 40.0% of its time in communication" in page.text["scale"]
    assert "the same settings again: the run stopped after step 2" in page.text["attempts"]
    assert "% of the 500 on one node" in page.text["scale"]
    assert "calibrated over reference" in page.text["validation"]
    assert "100002, 100003" in page.text["validation"]
    assert "kltune train --workspace" in page.text["training"]
    assert f"verl{made['verl']}" in page.text["provenance"]


def test_plots_show_every_trial_and_where_one_was_stopped(whole):
    page = written(whole)
    course = page.text["course-baseline"]
    for trial, _ in whole.trials():
        assert trial.name in course
    assert "search-001: non-finite" in course
    for title in ("reference KL", "coefficient", "training score", "validation score", "band"):
        assert title in course
    assert "nats/token" in page.text["curve"]
    assert "held-out pass@1" in page.text["held-out-0"]
    assert {"course-scale-2", "course-validate"} <= set(page.ids)


def test_the_page_stands_alone(whole):
    page = written(whole)
    assert len(page.ids) == len(set(page.ids))
    assert not {"script", "link", "img", "iframe", "object"} & set(page.elements)
    references = [value for name, value in page.attributes if name in ("href", "xlink:href")]
    assert references
    assert {value.removeprefix("#") for value in references} <= set(page.ids)
    urls = [value for name, value in page.attributes if "://" in (value or "")]
    assert {value.split("/")[2] for value in urls} == {"www.w3.org"}  # names of XML, not loaded


def test_the_same_workspace_gives_the_same_bytes(whole):
    assert main(["report", "-o", "one", "--as", "html,markdown,json"]) == 0
    before = sorted(p for p in whole.workspace.path.rglob("*"))
    assert main(["report", "-o", "two", "--as", "html,markdown,json"]) == 0
    assert sorted(p for p in whole.workspace.path.rglob("*")) == before
    for name in ("report.html", "report.md", "report.json"):
        one, two = ((whole.path / d / name).read_bytes() for d in ("one", "two"))
        assert one == two


def test_json_holds_the_numbers_that_the_plots_are_made_of(whole):
    assert main(["report", "-o", "all.json"]) == 0
    found = json.loads((whole.path / "all.json").read_text(), parse_constant=pytest.fail)
    runs = {(run["stage"], run["trial"]["name"]): run for run in found["runs"]}
    reference = runs["baseline", "reference"]
    assert [step["step"] for step in reference["steps"]] == list(range(11))
    assert reference["steps"][-1]["held_out"] is not None
    assert runs["baseline", "search-001"]["findings"][0]["finding"]["rule"] == "non-finite"
    assert found["nodes"][0]["nodes"] == 2
    curves = found["validation"]["tasks"]["test"]["curves"]
    assert curves["calibrated"]["points"][-1]["sqrt_kl"] > 0
    changed = {s["key"]: s for s in found["settings"]}["algorithm.kl_ctrl.kl_coef"]
    assert changed["before"] == 0.001
    assert changed["after"] == found["calibration"]["settings"]["kl_coef"]


def test_markdown_holds_the_tables(whole):
    assert main(["report", "-o", "out", "--as", "markdown"]) == 0
    text = (whole.path / "out" / "report.md").read_text()
    made = whole.calibration()
    assert f"**Calibrated: {made['reason']}**" in text
    assert "| trial | kl_coef | target | KL | band |" in text
    assert "## Validation" in text
    assert "<svg" not in text


def test_what_was_found_for_other_settings_is_told_to_be(whole):
    made = read(whole.workspace.calibration, Calibration)
    moved = replace(made, settings=replace(made.settings, kl_coef=0.5))
    save(whole.workspace.calibration, moved)
    page = written(whole)
    assert "The calibration has other settings by now" in page.text["validation"]
    assert "2 nodes: not finished with the settings that one node has now" in page.text["scale"]
    assert "On 2 nodes, calibrated" not in page.text["settings"]
    assert "rank 0 spends" not in page.text["scale"]


def test_earlier_calibrations_are_told(project, capsys):
    project.write(search={"trials": 0, "confirmations": 0}, band={"high": 0.09})
    assert main(["run"]) == 0
    assert "Next: kltune report --workspace kltune-runs " in capsys.readouterr().err
    project.content["verl"]["overrides"]["algorithm.kl_ctrl.kl_coef"] = 0.002
    project.write()
    assert main(["run", "--since", "last", "--quiet"]) == 0
    page = written(project)
    assert page.text["history"].count("kl_coef=0.001 target_kl=0.02") >= 1
    assert "calibrated again; before: average reference KL" in page.text["journal"]


def test_an_unfinished_workspace_says_what_is_missing_and_how_to_get_it(project, capsys):
    project.write("waits-at=4@search-000", search={"trials": 2})
    running = project.start("run", "--quiet")
    metrics = project.attempt("search-000").metrics
    try:
        _wait(lambda: metrics.exists() and metrics.read_text().count("\n") >= 3)
        page = written(project)
        assert page.text["verdict"] == ("Not finished: 1 of 2 trials that were begun have ended")
        assert "search-000" in page.text["course-baseline"]
        assert "kltune run --workspace" in page.text["settings"]
        assert "unfinished" in page.text["trials"]
        assert "kltune scale --nodes 8 --workspace" in page.text["scale"]
        assert "kltune validate --workspace" in page.text["validation"]
        assert "held-fixed" not in page.ids
        # Whoever works there was not disturbed, and held the lock all the time.
        assert running.poll() is None
    finally:
        (project.path / "gate").touch()
        running.communicate(timeout=60)
    assert running.returncode in (0, 1)


def _wait(until):
    for _ in range(1200):
        if until():
            return
        time.sleep(0.05)
    pytest.fail("nothing came")


HOSTILE = '<script>alert(1)</script> "quoted" $x_1$ | `b` \\ & <img src=x onerror=y>'


@pytest.fixture
def hostile(project):
    """A small calibration whose texts come from somebody who means no good."""
    project.content["about"] = {"summary": HOSTILE}
    project.content["verl"]["overrides"] |= {
        "trainer.project_name": HOSTILE,
        "data.train_files": str(project.path / "<b>train</b>.parquet"),
        "+trainer.hub_token": "hf_abcdefghijklmnopqrstuvwxyz",
    }
    (project.path / "<b>train<").mkdir()
    (project.path / "<b>train<" / "b>.parquet").touch()
    project.write(search={"trials": 0, "confirmations": 0})
    main(["run", "--quiet"])
    made = read(project.workspace.calibration, Calibration)
    finding = {
        "rule": HOSTILE, "severity": "critical", "kind": "crash", "action": "stop", "step": 3,
        "metric": HOSTILE, "value": 1.0, "threshold": None,
        "message": f"{HOSTILE} https://me:hunter2hunter2@example.org",
    }  # fmt: skip
    project.workspace.decide(
        "finding", stage="baseline", trial="reference", attempt=1, finding=finding
    )
    outcome = project.workspace.trial("baseline", "reference").outcome
    content = json.loads(outcome.read_text())
    outcome.write_text(
        json.dumps({**content, "ending": "stopped", "reason": HOSTILE, "critical": [HOSTILE]})
    )
    assert made.about["summary"] == HOSTILE
    return project


def test_what_looks_like_html_is_text(hostile):
    page = written(hostile)
    assert not {"script", "img", "b"} & set(page.elements)
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert HOSTILE in page.text["findings"]
    assert HOSTILE in page.text["provenance"]
    assert HOSTILE in page.text["course-baseline"]  # the rule that stopped it


def test_what_looks_like_markdown_is_text(hostile):
    assert main(["report", "--as", "markdown"]) == 0
    text = (hostile.workspace.path / "report.md").read_text()
    assert "<script" not in text
    assert "<img" not in text
    rows = [line for line in text.splitlines() if "alert(1)" in line and line.startswith("|")]
    assert rows
    finding = next(line for line in rows if "baseline/reference" in line)
    assert finding.replace("\\\\", "").replace("\\|", "").count("|") == 10


def test_secrets_are_in_no_form(hostile):
    assert main(["report", "-o", "out", "--as", "html,markdown,json"]) == 0
    for path in (hostile.path / "out").iterdir():
        text = path.read_text()
        assert "REDACTED" in text, path
        assert "hunter2" not in text, path
        assert "hf_abc" not in text, path


def test_without_matplotlib_the_other_forms_are_written(hostile, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", "--as", "markdown,json"]) == 0
    capsys.readouterr()
    assert main(["report", "--as", "html,json", "-o", "out"]) == 4
    told = capsys.readouterr().err
    assert "pip install 'kltune[report]', or take --as markdown,json" in told
    assert not (hostile.path / "out").exists()


def test_there_is_nothing_to_report_where_nothing_was_started(project, capsys):
    assert main(["report"]) == 1
    assert "nothing was started here yet" in capsys.readouterr().err
    assert not project.workspace.path.exists()
