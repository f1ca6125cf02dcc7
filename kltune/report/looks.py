"""How a trial looks in a plot, by what it is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kltune.calibration.validation import REFERENCE
from kltune.domain.trials import Role, Trial

#: Stands for the page's own text colour until a plot is put into a page.
INK = "#010203"
#: After Okabe and Ito, whose colours people with any colour vision tell apart.
BLUE, ORANGE, GREY, BAND = "#0a84d0", "#d55e00", "#8a8a8a", "#009e73"


@dataclass(frozen=True, slots=True)
class Look:
    """Look of a trial.

    Attributes:
        kind: its name in the legend.
        colour, dashed, width: of its line; points.
        rank: what ranks higher is drawn over it.
    """

    kind: str
    colour: str
    dashed: bool
    width: float
    rank: int

    @property
    def ink(self) -> str:
        """Colour of what is written about it; grey is too pale for small letters."""
        return INK if self.colour == GREY else self.colour

    def line(self) -> dict[str, Any]:
        """Return the line's style, as matplotlib takes it."""
        style = "--" if self.dashed else "-"
        alpha = 0.75 if self.colour == GREY else 1.0
        return {"color": self.colour, "ls": style, "lw": self.width, "alpha": alpha}

    def marker(self, stopped: bool = False) -> dict[str, Any]:
        """Return the style of a single point."""
        if stopped:
            return {"color": self.colour, "marker": "X", "ms": 6, "mew": 0.3}
        face = "none" if self.dashed else self.colour
        return {"color": self.colour, "marker": "o", "ms": 5.5, "mfc": face}


def look_of(trial: Trial, winner: str | None) -> Look:
    """Return the look of a trial, in a stage whose best one is ``winner``."""
    match trial.role:
        case _ if trial.name == winner:
            return Look("winner", BLUE, False, 2.2, 5)
        case Role.REFERENCE:
            return Look("reference", ORANGE, False, 2.2, 4)
        case Role.CONFIRM_WINNER:
            return Look("winner confirmed", BLUE, True, 1.3, 3)
        case Role.CONFIRM_REFERENCE:
            return Look("reference confirmed", ORANGE, True, 1.3, 2)
        case Role.VALIDATION if trial.name.startswith(REFERENCE):
            return Look("reference", ORANGE, False, 1.0, 1)
        case Role.VALIDATION:
            return Look("calibrated", BLUE, False, 1.0, 2)
        case Role.TRAINING:
            return Look("training", BLUE, False, 2.0, 5)
        case _:
            return Look("search", GREY, False, 1.0, 0)
