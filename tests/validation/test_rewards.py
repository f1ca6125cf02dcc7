import base64
import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kltune.calibration.rewards import with_rewards
from kltune.cli.app import main
from kltune.domain.crashes import CrashClass, crash_finding
from kltune.domain.findings import Action, Kind
from kltune.errors import SettingsError
from kltune.settings import load
from kltune.verl import rewards
from kltune.verl.crash import LogEvidence
from kltune.verl.releases import RELEASES, release_of
from kltune.verl.rewards import compute_score

from ..drift.data import row, write


def graded(text, sources, truth="18", **others):
    full = {name: {"weight": 1.0, **source} for name, source in sources.items()}
    return compute_score("openai/gsm8k", text, truth, {}, sources=json.dumps(full), **others)


def test_sources_are_weighted_and_logged_one_by_one():
    found = graded(
        "20-2=18 #### 18",
        {
            "form": {"rule": "pattern", "pattern": r"#### \d+$", "weight": 0.5},
            "words": {"rule": "length", "per": 10, "weight": 2.0},
        },
    )
    assert found == {"form": 1.0, "words": 1.5, "score": 0.5 + 3.0}


def test_a_cap_bounds_what_a_source_adds_and_not_what_is_logged():
    found = graded("x" * 100, {"words": {"rule": "length", "per": 10, "weight": 0.1, "cap": 2}})
    assert found == {"words": 10.0, "score": 0.2}


def test_without_its_required_form_an_answer_gets_nothing():
    sources = {
        "form": {"rule": "pattern", "pattern": "####", "required": True},
        "words": {"rule": "length", "per": 10},
    }
    assert graded("no form here", sources)["score"] == 0
    assert graded("#### 1", sources)["score"] == 1.6


def test_the_users_own_function_is_a_source(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def polite(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': float('please' in solution_str), 'note': 'x'}\n"
    )
    sources = {"manners": {"rule": "function", "function": f"{tmp_path / 'mine.py'}:polite"}}
    assert graded("please", sources)["score"] == 1
    assert graded("now", sources)["score"] == 0


def test_verls_own_scorer_tells_right_from_wrong_whatever_its_weight():
    pytest.importorskip("verl.utils.reward_score")
    sources = {"truth": {"rule": "verl", "weight": 0.0}, "words": {"rule": "length", "per": 1}}
    found = graded("#### 18", sources)
    assert (found["acc"], found["truth"], found["score"]) == (1.0, 1.0, 7.0)
    assert graded("#### 17", sources)["acc"] == 0.0


ASKED = []


class _Classifier(BaseHTTPRequestHandler):
    status = 200
    reply = None
    wait_s = 0.0

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ASKED.append((self.path, body, self.headers.get("Authorization")))
        time.sleep(self.wait_s)
        text = json.dumps({"data": [{"probs": [0.1, len(body["input"]) / 100]}]})
        reply = (text if self.reply is None else self.reply).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        with suppress(OSError):  # who asked may have gone
            self.wfile.write(reply)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def judge(monkeypatch):
    """Start a reward model that behaves as told, and return its address."""
    monkeypatch.setattr(rewards, "PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(rewards, "_silent", {})
    ASKED.clear()
    started = []

    def start(**behaviour):
        handler = type("Handler", (_Classifier,), behaviour)
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        started.append((server, thread))
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server, thread in started:
        server.shutdown()
        server.server_close()
        thread.join()


JUDGE = {"rule": "model", "model": "judge-1", "weight": 2.0}


def test_a_reward_model_is_asked_like_verls_own(judge):
    address = judge()
    router = graded("x" * 9, {"judge": JUDGE}, reward_router_address=address)
    named = graded("x" * 9, {"judge": {**JUDGE, "url": f"http://{address}/"}})
    assert router == named == {"judge": 0.1, "score": 0.2}
    path, body, _ = ASKED[-1]
    assert path == "/classify"
    assert (body["model"], body["input"]) == ("judge-1", "\n" + "x" * 9)


def test_a_password_is_sent_and_never_shown(judge):
    url = f"http://me:pa55%40@{judge(status=403)}/v1"
    with pytest.raises(RuntimeError) as caught:
        graded("x", {"judge": {**JUDGE, "url": url}})
    assert len(ASKED) == 1  # a refusal is not asked again
    path, _, login = ASKED[0]
    assert path == "/v1/classify"
    assert base64.b64decode(login.removeprefix("Basic ")) == b"me:pa55@"
    assert str(caught.value) == (
        f"reward source judge: http://{url.rpartition('@')[2]}/classify gave no usable answer: "
        "HTTPError: HTTP Error 403: Forbidden"
    )


@pytest.mark.parametrize(
    ("behaviour", "tries", "words"),
    [
        ({"status": 503}, 3, "HTTP Error 503"),
        ({"reply": "no JSON"}, 1, "JSONDecodeError"),
        ({"reply": "{}"}, 1, "KeyError"),
    ],
    ids=str,
)
def test_a_reward_model_that_fails_is_named(judge, behaviour, tries, words):
    url = f"http://{judge(**behaviour)}"
    with pytest.raises(RuntimeError, match=f"reward source judge: {url}/classify .*{words}"):
        graded("x", {"judge": {**JUDGE, "url": url}})
    assert len(ASKED) == tries


def test_so_is_one_that_is_slow_and_one_that_is_not_there(judge, monkeypatch):
    monkeypatch.setattr(rewards, "PATIENCE_S", 0.1)
    with pytest.raises(RuntimeError, match="gave no usable answer: TimeoutError: timed out"):
        graded("x", {"judge": {**JUDGE, "url": f"http://{judge(wait_s=1)}"}})
    with pytest.raises(RuntimeError, match="Connection refused"):
        graded("x", {"judge": {**JUDGE, "url": "http://127.0.0.1:9"}})


def test_thousands_of_answers_do_not_wait_for_a_dead_server_one_by_one(judge):
    source = {"judge": {**JUDGE, "url": f"http://{judge(status=503)}"}}
    for _ in range(5):
        with pytest.raises(RuntimeError, match="HTTP Error 503"):
            graded("x", source)
    assert len(ASKED) == 3


def test_a_trial_says_which_reward_model_ended_it():
    line = "RuntimeError: reward source judge: http://judge:8000/classify gave no usable answer"
    log = LogEvidence()
    log.see(b"\x1b[36m(RewardLoopWorker pid=9)\x1b[0m " + line.encode())
    log.see(b"ray.exceptions.ActorDiedError: gone\nError executing job with overrides: []\n")
    crash = log.crash(1)
    assert crash.cause is CrashClass.REWARD
    finding = crash_finding(crash, None)
    assert line in finding.message
    assert (finding.kind, finding.action) == (Kind.INFRASTRUCTURE, Action.RETRY)


def test_a_run_ends_with_what_its_reward_model_said(project, judge, capsys):
    for name in ("train", "test"):
        write(project.path / f"{name}.parquet", [row(n) for n in range(10)])
    address = judge(status=403)
    project.write(rewards={"judge": {**JUDGE, "url": f"http://me:pa55@{address}"}})
    assert main(["run", "--quiet"]) == 4
    err = capsys.readouterr().err
    assert "cause reward" in err
    assert f"RuntimeError: reward source judge: http://{address}/classify gave no usable" in err
    for path in project.workspace.path.rglob("*"):
        # What verl itself prints of its configuration is verl's.
        if path.is_file() and path.name != "console.log":
            assert b"pa55" not in path.read_bytes(), path
    assert "pa55" not in err


def settings(tmp_path, text):
    path = tmp_path / "kltune.yaml"
    path.write_text(text)
    return load(config=path)


@pytest.mark.parametrize("release", [r for r in RELEASES if r.launchable], ids=lambda r: r.version)
def test_sources_become_overrides_of_each_release(tmp_path, release):
    made = settings(tmp_path, "rewards: {words: {rule: length, per: 50, cap: 1, weight: 0.5}}")
    found = with_rewards(made, release)
    prefix = "reward." if release.numbers >= (0, 7, 1) else ""
    overrides = found.content.verl.overrides
    assert overrides[f"{prefix}custom_reward_function.path"].endswith("kltune/verl/rewards.py")
    sources = overrides[f"+{prefix}custom_reward_function.reward_kwargs.sources"]
    assert json.loads(sources)["words"] == {
        "rule": "length", "weight": 0.5, "cap": 1.0, "required": False, "per": 50.0
    }  # fmt: skip
    assert found.override_origin(f"{prefix}custom_reward_function.path") == "rewards"


def test_without_rewards_nothing_is_changed(tmp_path):
    made = settings(tmp_path, "{}")
    assert with_rewards(made, release_of("0.9.1")) is made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{form: {rule: pattern}}", "rule pattern needs pattern"),
        ("{form: {rule: verl, pattern: a}}", "rule verl takes no pattern"),
        ("{form: {rule: pattern, pattern: '('}}", "pattern is no regular expression"),
        ("{acc: {rule: verl}}", "acc is a name of verl's own"),
        ("{judge: {rule: model, model: m, url: 'file:///etc'}}", "url"),
        ("{mine: {rule: function, function: mine}}", "function"),
        ("{words: {rule: length, per: 0}}", "greater than 0"),
        ("{words: {rule: sentiment}}", "rule"),
    ],
)
def test_a_source_that_makes_no_sense_is_refused(tmp_path, text, words):
    with pytest.raises(SettingsError, match=words):
        settings(tmp_path, f"rewards: {text}")


def test_what_cannot_go_together_is_said_all_at_once(tmp_path):
    made = settings(
        tmp_path,
        "rewards: {mine: {rule: function, function: 'nowhere.py:f'}}\n"
        "verl: {overrides: {reward.custom_reward_function.path: mine.py}}\n",
    )
    with pytest.raises(SettingsError) as caught:
        with_rewards(made, release_of("0.9.1"))
    assert len(caught.value.faults) == 2
    assert "is set as well; make that function one of the sources" in caught.value.faults[0]
    assert "there is no file" in caught.value.faults[1]
