"""Every rule is given runs on which it fires, and runs on which it must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kltune.domain.findings import Severity
from kltune.domain.history import Setup
from kltune.domain.judgement import judge
from kltune.domain.profiles import PROFILES, profile
from tests.rules.series import steps

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs" / "detection.md"
RULES = {rule.id: rule for any_profile in PROFILES.values() for rule in any_profile.rules}


def _cases() -> list[Any]:
    found = []
    for path in sorted(HERE.glob("*.yaml")):
        for case in yaml.safe_load(path.read_text(encoding="utf-8"))["cases"]:
            found.append(pytest.param(path.stem, case, id=f"{path.stem}: {case['run']}"))
    return found


@pytest.mark.parametrize(("rule", "case"), _cases())
def test_rule_fires_where_it_should(rule: str, case: dict[str, Any]) -> None:
    chosen = profile(case.get("profile", "robust"), case.get("thresholds"))
    run = steps(case["series"], case.get("first_step", 1))
    findings = [f for f in judge(run, chosen, Setup(**case.get("setup", {}))) if f.rule == rule]
    first = {
        severity.value: next((f.step for f in findings if f.severity is severity), None)
        for severity in Severity
    }
    never = ["info", "warning", "critical"] if case.get("never") is True else case.get("never", [])
    expected = {
        **dict.fromkeys([never] if isinstance(never, str) else never),
        **case.get("at", {}),
    }
    assert {severity: first[severity] for severity in expected} == expected
    if "count" in case:
        assert len(findings) == case["count"]


@pytest.mark.parametrize("rule", sorted(RULES))
def test_rule_has_cases_of_both_kinds(rule: str) -> None:
    path = HERE / f"{rule}.yaml"
    cases = yaml.safe_load(path.read_text(encoding="utf-8"))["cases"]
    assert any(case.get("at") for case in cases), f"{path.name}: no run on which it fires"
    assert any(case.get("never") is True for case in cases), f"{path.name}: no quiet run"


@pytest.mark.parametrize("rule", sorted(RULES))
def test_rule_stands_in_the_documentation(rule: str) -> None:
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert any(line.startswith(f"| `{rule}` |") for line in rows)


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_threshold_is_used_and_documented(name: str) -> None:
    text = DOCS.read_text(encoding="utf-8")
    for key, threshold in PROFILES[name].thresholds.items():
        assert f"| `{key}` | {threshold.value:g} |" in text
