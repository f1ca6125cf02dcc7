from kltune.domain.history import History, Setup
from kltune.domain.steps import Step


def clip_ratio_seen(length: float, ratio: float, limit: float | None) -> float | None:
    run = History(Setup(response_limit=limit))
    run.add(Step(1, response_length=length, clip_ratio=ratio))
    return run.step.clip_ratio


def test_answers_as_long_as_the_limit_are_cut():
    assert clip_ratio_seen(length=480.0, ratio=0.9, limit=512) == 0.9


def test_answers_as_long_as_the_longest_of_the_batch_are_not_cut():
    assert clip_ratio_seen(length=10.9, ratio=0.92, limit=16) is None


def test_without_a_known_limit_the_ratio_is_believed():
    assert clip_ratio_seen(length=10.9, ratio=0.92, limit=None) == 0.92
