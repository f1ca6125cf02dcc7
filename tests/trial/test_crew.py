from threading import Barrier

import pytest

from kltune.errors import LaunchError
from kltune.trial import Crew


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("kltune.trial.crew.POLL_S", 0)


def trial(looks, story, name, error=None, at_end=None):
    """A trial of so many looks that says what happens to it."""
    try:
        for _ in range(looks):
            story.append(f"look at {name}")
            yield
    except KeyboardInterrupt:
        story.append(f"end {name}")
        if at_end is not None:
            raise at_end from None
        raise
    if error is not None:
        raise error
    return f"outcome of {name}"


def test_trials_are_looked_at_in_turn_and_told_once():
    story = []
    with Crew(2) as crew:
        crew.start("a", trial(2, story, "a"))
        assert not crew.is_full
        crew.start("b", trial(4, story, "b"))
        assert crew.is_full
        crew.wait()
        assert crew.ended() == [("a", "outcome of a")]
        assert crew.ended() == []
        assert list(crew.running) == ["b"]
        crew.wait()
        assert crew.ended() == [("b", "outcome of b")]
    assert story[:4] == ["look at a", "look at b", "look at a", "look at b"]


def test_what_has_ended_at_the_first_look_is_not_waited_for():
    with Crew() as crew:
        crew.start("a", trial(0, [], "a"))
        crew.wait()
        assert crew.ended() == [("a", "outcome of a")]


def run(*trials):
    with Crew(len(trials)) as crew:
        for number, one in enumerate(trials):
            crew.start(str(number), one)
        crew.wait()


def test_an_error_of_one_ends_the_others():
    story = []
    failing = trial(1, story, "a", error=LaunchError("no disk"))
    with pytest.raises(LaunchError, match="disk"):
        run(failing, trial(9, story, "b"))
    assert story[-1] == "end b"


def test_an_interrupt_ends_all_of_them(monkeypatch):
    story = []

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("kltune.trial.crew.time.sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(trial(9, story, "a"), trial(9, story, "b"))
    assert sorted(story[-2:]) == ["end a", "end b"]


def test_they_are_ended_at_the_same_time():
    together = Barrier(3)

    def stubborn():
        try:
            yield
        except KeyboardInterrupt:
            together.wait(timeout=30)
            raise

    with Crew(3) as crew:
        for name in "abc":
            crew.start(name, stubborn())
    assert not together.broken


def test_one_that_cannot_be_ended_does_not_keep_the_others():
    story = []
    stubborn = trial(9, story, "a", at_end=LaunchError("still there"))
    short = trial(1, story, "c", error=LaunchError("no disk"))
    with pytest.raises(LaunchError, match="still there"):
        run(stubborn, trial(9, story, "b"), short)
    assert sorted(story[-2:]) == ["end a", "end b"]
