from math import inf, nan
from xml.etree import ElementTree

import pytest

from kltune.calibration.report import FindingTold, Run, StepNumbers
from kltune.domain.curve import CurvePoint
from kltune.domain.findings import Action, Finding, Kind, Severity
from kltune.domain.kl import KlSettings
from kltune.domain.outcome import Band, Ending, Outcome, Summary
from kltune.domain.trials import Role, Trial
from kltune.report import plots
from kltune.report.trials import course_plot

BAND = Band(0.01, 0.03)


def run(name, kls, role=Role.SEARCH, ending=Ending.COMPLETED, findings=()):
    outcome = Outcome(ending, "", Summary(len(kls), kl=kls[-1] if kls else None), (), 1, 1, 1)
    steps = tuple(StepNumbers(n, kl, 0.001, None, None) for n, kl in enumerate(kls, 1))
    return Run(
        "baseline", Trial(name, role, KlSettings(0.001), 1, outcome), 1, (), findings, steps
    )


def finding(step, rule):
    seen = Finding(rule, Severity.CRITICAL, Kind.DIVERGENCE, Action.STOP, step, "", 1, 1, "")
    return FindingTold(1, seen)


def parsed(svg):
    return ElementTree.fromstring(svg)  # noqa: S314 - our own


def texts(svg):
    """Return what is written in a picture, which has to be well-formed."""
    return [e.text for e in parsed(svg).iter() if e.tag.endswith("}text")]


def longest(svg):
    """Return the number of points of the longest line."""
    paths = (e.get("d", "") for e in parsed(svg).iter() if e.tag.endswith("}path"))
    return max(path.count("L") for path in paths)


def test_a_trial_is_marked_at_the_step_of_the_finding_that_stopped_it():
    kls = [0.01 * n for n in range(1, 41)]
    stopped = run("search-7", kls, ending=Ending.STOPPED, findings=(finding(25, "max-kl"),))
    svg = plots.course(
        [run("reference", [0.02] * 40, Role.REFERENCE), stopped], BAND, None, "c", ""
    )
    # Twice the range of those that ran to their end is drawn; beyond that the value is written.
    assert "search-7 (0.25): max-kl" in texts(svg)
    assert "stopped" in texts(svg)


def test_a_failed_trial_without_a_finding_is_marked_at_its_last_step():
    svg = plots.course([run("search-1", [0.01, 0.02], ending=Ending.FAILED)], BAND, None, "c", "")
    assert "search-1: failed" in texts(svg)


@pytest.mark.parametrize("kls", [[], [None, None], [nan, inf]])
def test_trials_that_logged_nothing_to_draw_are_one_line(kls):
    steps = tuple(StepNumbers(n, kl, None, None, None) for n, kl in enumerate(kls, 1))
    empty = Run("scale-2", Trial("hold", Role.SEARCH, KlSettings(0.001), 1), 1, steps=steps)
    assert course_plot("scale-2", [empty], BAND).text == "No trial of scale-2 has logged a step."


def test_numbers_that_are_not_finite_leave_a_picture():
    seen = run("search-1", [0.01, nan, inf, -inf, 1e300, -0.002], ending=Ending.STOPPED)
    assert "search-1: stopped" in texts(plots.course([seen], BAND, None, "c", ""))
    far = [CurvePoint(0.001, 1e-6), CurvePoint(1e3, 1e6)]
    svg = plots.coefficient_curve([run("search-1", [inf]).trial], far, BAND, None, "c", "")
    assert "reference KL (nats/token)" in texts(svg)


def test_a_long_run_keeps_its_spikes_and_takes_little_room():
    kls = [0.02 + 0.001 * (n % 7) for n in range(50_000)]
    kls[31_007] = 0.9
    series = list(enumerate(kls))
    thinned = plots._thinned(series)
    assert (31_007, 0.9) in thinned
    assert thinned == sorted(thinned)
    assert len(thinned) <= 600
    assert longest(plots.course([run("search-1", kls)], BAND, None, "c", "")) <= 600


def test_the_winner_is_emphasised_and_every_kind_is_in_the_legend():
    runs = [
        run("reference", [0.02, 0.05], Role.REFERENCE),
        run("search-000", [0.02, 0.02]),
        run("search-001", [0.01, 0.03]),
        run("confirm-winner-1", [0.02, 0.02], Role.CONFIRM_WINNER),
    ]
    written = texts(plots.course(runs, BAND, "search-000", "c", ""))
    legend = ["winner", "reference", "winner confirmed", "search", "band"]
    assert [text for text in written if text in legend][-5:] == legend


def test_two_pictures_of_a_page_share_no_id():
    runs = [run("search-000", [0.02, 0.02])]
    one, two = (plots.course(runs, BAND, None, name, "") for name in ("one", "two"))
    ids = [{e.get("id") for e in parsed(svg).iter() if e.get("id")} for svg in (one, two)]
    assert not ids[0] & ids[1]
    assert plots.course(runs, BAND, None, "one", "") == one


def test_a_picture_takes_colour_and_size_of_the_page():
    svg = plots.course([run("search-000", [0.02, 0.02])], BAND, None, "c", 'a "label" <b>')
    head = parsed(svg)
    assert head.get("aria-label") == 'a "label" <b>'
    assert head.get("width") is None
    assert "currentColor" in svg
    assert "#010203" not in svg
