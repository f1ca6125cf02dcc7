import io
import math

import pytest
from rich.console import Console

from kltune.cli.trial_table import trial_table
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


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_of_80_columns_shows_every_number(width):
    cells = ("confirm-reference-1", "0.009069", "0.0241", "0.004589", "inside", "0.001006",
             "0.5119", "0.5123", "completed", "1:02:03")  # fmt: skip
    console = Console(file=io.StringIO(), width=width)
    console.print(trial_table([cells], console.width))
    printed = console.file.getvalue()
    assert "…" not in printed
    name, *numbers = cells
    assert all(number in printed for number in numbers)
    # Its rest stands below.
    assert name == "".join(line.split()[0] for line in printed.splitlines()[1:])
