import copy
import re
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from kltune.verl.defaults import offline_config
from kltune.verl.lint import CHECKS, Level, lint
from kltune.verl.overrides import bare
from kltune.verl.releases import release_of

from .wheels import compose

CASES = yaml.safe_load((Path(__file__).parents[1] / "fixtures" / "verl" / "lint.yaml").read_text())
DOCS = Path(__file__).parents[2] / "docs" / "lint.md"


def overrides_of(case):
    sound = {k: v for k, v in CASES["sound"].items() if k not in case.get("unset", ())}
    changed = {bare(key) for key in case.get("set", {})}
    return {k: v for k, v in sound.items() if k not in changed} | case.get("set", {})


def findings(case, overrides):
    release = release_of(case.get("verl", "0.9.1"))
    schema = None
    if case.get("schema"):
        version = case.get("verl", "0.9.1")
        schema = OmegaConf.to_container(compose(version))
    return lint(
        offline_config(overrides, release),
        overrides,
        release,
        schema=schema,
        band=case.get("band"),
        script=case.get("script", True),
    )


def cases(kind):
    return [
        pytest.param(check, case, id=f"{check}-{index}")
        for check, both in CASES["checks"].items()
        for index, case in enumerate(both[kind])
    ]


@pytest.mark.parametrize(("check", "case"), cases("fires"))
def test_a_check_fires_and_its_fix_cures(check, case):
    overrides = overrides_of(case)
    found = [f for f in findings(case, overrides) if f.id == check]
    assert found
    finding = found[0]
    assert finding.level is Level(case.get("level", "error"))
    assert finding.evidence
    if case.get("unfixable") or not (finding.fix or finding.drop):
        return
    for finding in found:
        overrides = {k: v for k, v in overrides.items() if k not in finding.drop}
        fixed = {bare(key) for key in finding.fix}
        overrides = {k: v for k, v in overrides.items() if bare(k) not in fixed} | finding.fix
    assert [f for f in findings(case, overrides) if f.id == check] == []


@pytest.mark.parametrize(("check", "case"), cases("quiet"))
def test_a_check_stays_quiet(check, case):
    assert [f.message for f in findings(case, overrides_of(case)) if f.id == check] == []


def test_a_sound_configuration_has_no_findings():
    assert findings({"schema": True}, dict(CASES["sound"])) == []


def test_every_check_has_cases_of_both_kinds_and_a_row_in_the_docs():
    assert set(CASES["checks"]) == set(CHECKS)
    assert all(both["fires"] and both["quiet"] for both in CASES["checks"].values())
    rows = dict(re.findall(r"^\| `([\w-]+)` \| [^|]+ \| (.*) \|$", DOCS.read_text(), re.M))
    assert rows == {name: check.__doc__ for name, check in CHECKS.items()}


def test_the_worst_comes_first():
    found = findings({}, overrides_of({"set": {"algorithm.use_kl_in_reward": False}}))
    levels = [list(Level).index(finding.level) for finding in found]
    assert levels == sorted(levels)


def test_a_secret_is_not_repeated():
    case = {"set": {"+trainer.wandb_proxy": "http://me:s3cr3t@h", "+a.hf_token": "t0k3nt0k3n"}}
    text = repr(findings(case, overrides_of(case)))
    assert "s3cr3t" not in text
    assert "t0k3n" not in text


def test_a_fix_is_pasted_as_overrides():
    case = {"set": {"algorithm.use_kl_in_reward": False}}
    fix = findings(case, overrides_of(case))[0].fix_words()
    assert fix == ["algorithm.use_kl_in_reward=true"]


@pytest.mark.parametrize("version", ["0.3.0", "0.6.1", "0.9.1"])
@pytest.mark.parametrize("value", [None, "", "x", "${oc.env:X}", -1, 0, 1e9, [], {}, True])
def test_odd_values_make_no_check_fail(version, value):
    release = release_of(version)
    config = offline_config(CASES["sound"], release)
    keys = [
        k for case in CASES["checks"].values() for c in case["fires"] for k in c.get("set", {})
    ]
    for key in dict.fromkeys(map(bare, [*CASES["sound"], *keys])):
        odd = copy.deepcopy(config)
        *parents, name = key.split(".")
        node = odd
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
        lint(odd, {**CASES["sound"], key: value}, release, band=(0.01, 0.03))
