"""verl's custom reward function for several reward sources.

verl loads this file by its path, in each of its reward workers, so it imports nothing of kltune.
The answer is graded by each source; the score is their weighted sum, and every source is logged by
itself: verl makes a validation metric of each key of the dictionary. ``acc`` is verl's own scorer
where it is among the sources, whatever its weight, and then verl's core metric: with a weight of 0
it is a witness that training cannot bribe.

Of the answers of a training step verl logs the score alone, so that what each source gave is noted
here, without a word of the answer (``kltune.verl.reward_notes`` reads it).
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

#: Seconds that a reward model may take for one answer, and between the times it is asked again.
PATIENCE_S = 60
PAUSES_S: tuple[float, ...] = (1, 5, 20)

#: When and why a reward model gave no answer; for a while it is not asked again. verl grades a few
#: answers at a time, and a thousand would wait for it one after the other.
_silent: dict[str, tuple[float, str]] = {}


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    *,
    sources: str,
    notes: str | None = None,
    **others: Any,
) -> dict[str, float]:
    """Grade an answer, as verl calls it.

    Args:
        data_source, solution_str, ground_truth, extra_info: see verl's ``compute_score``.
        sources: JSON object: source by name, as in the settings' ``rewards``.
        notes: directory in which to note what each source gave; None notes nothing.
        others: what verl adds, among it ``reward_router_address`` of its own reward model.

    Raises:
        RuntimeError: a reward model gave no answer.
    """
    answer = {
        "data_source": data_source,
        "solution_str": solution_str,
        "ground_truth": ground_truth,
        "extra_info": extra_info,
    }
    graded: dict[str, float] = {}
    total, barred = 0.0, False
    for name, source in json.loads(sources).items():
        value = _grade(name, source, answer, others.get("reward_router_address"))
        if source["rule"] == "verl":
            graded["acc"] = float(value > 0)
        graded[name] = value
        cap = source.get("cap")
        total += source["weight"] * (value if cap is None else min(value, cap))
        barred = barred or (source.get("required", False) and value <= 0)
    version = (extra_info or {}).get("max_global_steps")
    if notes is not None and version is not None:
        _note(notes, int(version), graded)
    return {"score": 0.0 if barred else total, **graded}


def _note(directory: str, version: int, graded: dict[str, float]) -> None:
    """Append a line to this process's file about the answers of one policy.

    Args:
        directory: made where it is missing.
        version: updates that the policy had seen when it gave the answer.
        graded: value by source.
    """
    line = json.dumps({"at": time.time(), "graded": graded}) + "\n"
    path = Path(directory, f"{version}-{socket.gethostname()}-{os.getpid()}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Closed at once, so that others see it on a network file system, too.
    with path.open("a", encoding="utf-8") as stream:
        stream.write(line)


def _grade(name: str, source: dict[str, Any], answer: dict[str, Any], router: str | None) -> float:
    text = answer["solution_str"]
    match source["rule"]:
        case "pattern":
            return float(re.search(source["pattern"], text) is not None)
        case "length":
            return len(text) / float(source["per"])
        case "function":
            return _number(_load(source["function"])(**answer))
        case "model":
            question = (answer["extra_info"] or {}).get("question", "")
            address = source.get("url") or f"http://{router}"
            return _classified(name, source["model"], f"{question}\n{text}", address)
        case _:
            from verl.utils.reward_score import default_compute_score

            return _number(default_compute_score(**answer))


def _number(found: Any) -> float:
    return float(found["score"] if isinstance(found, dict) else found)


def _classified(name: str, model: str, text: str, address: str) -> float:
    """Ask a classifier by vLLM's API, as verl asks its own reward model.

    A password of the address is sent, and shown nowhere.
    """
    parts = urllib.parse.urlsplit(address)
    login, _, host = parts.netloc.rpartition("@")
    place = f"{parts.scheme}://{host}{parts.path.rstrip('/')}/classify"
    headers = {"Content-Type": "application/json"}
    if login:
        secret = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
        headers["Authorization"] = f"Basic {secret}"
    body = json.dumps({"model": model, "input": text, "use_activation": False}).encode()
    request = urllib.request.Request(place, data=body, headers=headers)  # noqa: S310 - checked
    if place in _silent and time.monotonic() < _silent[place][0] + PATIENCE_S:
        raise RuntimeError(_silent[place][1])
    for pause in (*PAUSES_S, None):
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:  # noqa: S310
                return float(json.load(reply)["data"][-1]["probs"][-1])
        except (OSError, ValueError, LookupError, TypeError) as error:
            cause = error
        why = (
            f"reward source {name}: {place} gave no usable answer: {type(cause).__name__}: {cause}"
        )
        refused = False
        if isinstance(cause, urllib.error.HTTPError):
            cause.close()
            refused = cause.code < 500
        if refused or not isinstance(cause, OSError):
            raise RuntimeError(why)
        if pause is not None:
            time.sleep(pause)
    _silent[place] = (time.monotonic(), why)
    raise RuntimeError(why)


@cache
def _load(place: str) -> Any:
    """Return the user's own function of ``path.py:name``."""
    path, _, name = place.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"rewards: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)
