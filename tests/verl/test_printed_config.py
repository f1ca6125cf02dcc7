from importlib.util import find_spec
from pprint import pformat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kltune.verl.printed_config import not_in_effect, printed_config

RAY = b"\x1b[36m(TaskRunnerV1 pid=4711)\x1b[0m "
WORKER = b"\x1b[36m(WorkerDict pid=99, ip=10.0.0.2)\x1b[0m "
CONFIG = {
    "actor_rollout_ref": {
        "actor": {"optim": {"lr": 1e-06, "betas": [0.9, 0.999]}, "clip_ratio": 0.2},
        "model": {"path": "/a path/with 'quotes'", "override_config": {}},
    },
    "algorithm": {"kl_ctrl": {"kl_coef": 0.001, "type": "adaptive"}, "kl_penalty": None},
    "trainer": {"logger": ["console", "file"], "nnodes": 1, "val_before_train": True},
}
STARTUP = [
    b"INFO:2026-01-01 10:00:00,000:Platform override from VERL_PLATFORM: cpu",
    b"ray init kwargs: {'num_cpus': 8, 'runtime_env': {'env_vars': {'NCCL_DEBUG': 'WARN'}}}",
]


def printed(config, prefix=RAY):
    return [prefix + line.encode() for line in pformat(config).splitlines()]


def test_the_configuration_is_found_behind_ray_prefix_and_colours():
    assert printed_config([*STARTUP, *printed(CONFIG), b"step:1 - a/b:1"]) == CONFIG


def test_without_ray_it_is_found_as_well():
    assert printed_config([*STARTUP, *printed(CONFIG, b"")]) == CONFIG


def test_what_is_not_all_there_yet_is_none():
    lines = printed(CONFIG)
    assert printed_config(STARTUP) is None
    assert all(printed_config(lines[:n]) is None for n in range(len(lines)))


def test_lines_of_others_in_between_do_not_hide_it():
    noise = [
        WORKER + b"Loading weights",
        WORKER + b" {'a': 1,",
        b"2026-01-01 10:00:01,000\tINFO worker.py:2038 -- Started a local Ray instance.",
        RAY + b"warnings.warn('deprecated')",
        b"",
    ]
    lines = printed(CONFIG)
    mixed = [part for n, line in enumerate(lines) for part in (line, noise[n % len(noise)])]
    assert printed_config([*STARTUP, *mixed]) == CONFIG


def test_another_dictionary_before_it_is_passed_over():
    other = {"timing": {f"key {n}": "x" * 30 for n in range(9)}}
    assert printed_config([*printed(other), *printed(CONFIG)]) == CONFIG


def test_a_long_value_without_blanks_is_read_whole():
    config = {**CONFIG, "zzz": {"template": "x" * 5000}}
    assert printed_config(printed(config)) == config


@pytest.mark.timeout(5)
def test_a_log_full_of_dictionaries_is_read_in_no_time():
    lines = [RAY + b"{'actor': {'a': 1,"]
    lines += [RAY + b" 'engine': {'args': {'x': 1}}"] * 20_000
    assert printed_config(lines) is None


SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
SCALARS = SCALARS.filter(lambda value: value not in (float("inf"), float("-inf")))
NAMES = st.text("abcdefgh_", min_size=1)
TREES = st.recursive(SCALARS, lambda t: st.lists(t) | st.dictionaries(NAMES, t), max_leaves=6)


@settings(max_examples=30)
@given(st.dictionaries(NAMES, TREES, min_size=2, max_size=4))
def test_whatever_is_printed_is_read_back(config):
    config = {**CONFIG, **config}
    assert printed_config(printed(config)) == config


def test_lines_that_arrive_in_pieces_are_put_together():
    whole = pformat(CONFIG).replace(", ", "\n,").replace("}", "\n}")
    torn = [RAY + piece.encode() for piece in whole.splitlines()]
    assert printed_config(
        [*STARTUP, *torn, RAY + b"{'balance_batch': True, 'device': 'cpu'}"]
    ) == (CONFIG)


def test_a_section_by_itself_is_no_configuration():
    assert printed_config(printed(CONFIG["trainer"])) is None


@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
def test_the_whole_configuration_of_the_installed_verl_is_read_back():
    from kltune.verl.compose import compose
    from kltune.verl.installation import find_verl

    config = compose({"actor_rollout_ref.rollout.name": "vllm"}, find_verl())
    assert printed_config([*STARTUP, *printed(config)]) == config


def test_an_override_that_is_not_in_effect_is_named_with_both_values():
    wanted = {"a.b": 1, "+a.c": 2, "~a.d": None, "hydra.run.dir": "/x", "a.e": [1]}
    composed = {"a": {"b": 1, "c": 2, "e": [1]}}
    assert not_in_effect(wanted, composed, {"a": {"b": 1, "c": 2, "e": [1]}}) == []
    assert not_in_effect(wanted, composed, {"a": {"b": 3, "e": [2]}}) == [
        "a.b: should be 1, and is 3 in the run",
        "a.c: should be 2, and is missing in the run",
        "a.e: should be [1], and is [2] in the run",
    ]
