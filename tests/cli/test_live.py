import math

import pytest

from kltune.domain.kl import KlSettings
from kltune.domain.outcome import Band, Ending, Outcome, Summary
from kltune.domain.trials import Role, Trial
from kltune.report.rows import ROW_NAMES, row_of

BAND = Band(0.01, 0.03)


def row(kl, target=0.02):
    outcome = Outcome(Ending.COMPLETED, "", Summary(3, kl=kl), (), 75.0, 0.1, 1)
    trial = Trial("search-000", Role.SEARCH, KlSettings(0.001, target), 1, outcome)
    return dict(zip(ROW_NAMES, row_of(trial, trial.outcome, BAND), strict=True))


@pytest.mark.parametrize(
    ("kl", "place"),
    [
        (0.02, "inside"),
        (0.03, "above"),
        (0.01, "below"),
        (-0.01, "below"),
        (math.inf, "above"),
        (math.nan, ""),
        (None, ""),
    ],
)
def test_a_row_says_where_the_kl_lies(kl, place):
    assert row(kl)["band"] == place


def test_a_row_shows_a_fixed_coefficient_and_the_time():
    cells = row(0.02, target=None)
    assert (cells["target"], cells["time"], cells["ended"]) == ("fixed", "1:15", "completed")
