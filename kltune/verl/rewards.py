"""verl's custom reward function for several reward sources.

verl loads this file by its path, in each of its reward workers, so it imports nothing of kltune.
The answer is graded by each source; the score is their weighted sum, and every source is logged by
itself: verl makes a validation metric of each key of the dictionary. ``acc`` is verl's own scorer
where it is among the sources, whatever its weight, and then verl's core metric: with a weight of 0
it is a witness that training cannot bribe.
"""

from __future__ import annotations

import importlib.util
import json
import re
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

#: Seconds that a reward model may take for one answer.
PATIENCE_S = 60


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    *,
    sources: str,
    **others: Any,
) -> dict[str, float]:
    """Grade an answer, as verl calls it.

    Args:
        data_source, solution_str, ground_truth, extra_info: see verl's ``compute_score``.
        sources: JSON object: source by name, as in the settings' ``rewards``.
        others: what verl adds, among it ``reward_router_address`` of its own reward model.
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
        value = _grade(source, answer, others.get("reward_router_address"))
        if source["rule"] == "verl":
            graded["acc"] = float(value > 0)
        graded[name] = value
        cap = source.get("cap")
        total += source["weight"] * (value if cap is None else min(value, cap))
        barred = barred or (source.get("required", False) and value <= 0)
    return {"score": 0.0 if barred else total, **graded}


def _grade(source: dict[str, Any], answer: dict[str, Any], router: str | None) -> float:
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
            return _classified(
                source, f"{question}\n{text}", source.get("url") or f"http://{router}"
            )
        case _:
            from verl.utils.reward_score import default_compute_score

            return _number(default_compute_score(**answer))


def _number(found: Any) -> float:
    return float(found["score"] if isinstance(found, dict) else found)


def _classified(source: dict[str, Any], text: str, address: str) -> float:
    """Ask a classifier by vLLM's API, as verl asks its own reward model."""
    body = {"model": source["model"], "input": text, "use_activation": False}
    request = urllib.request.Request(  # noqa: S310 - settings allow http and https only
        f"{address.rstrip('/')}/classify",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:  # noqa: S310
        return float(json.load(reply)["data"][-1]["probs"][-1])


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
