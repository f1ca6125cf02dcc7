"""Carries out what the protocol asks for: preflight, trials, budget, resume, the result."""

from kltune.calibration.baseline import Baseline
from kltune.calibration.fresh import start_over
from kltune.calibration.preflight import Setup, prepare
from kltune.calibration.record import Calibration, read_calibration
from kltune.calibration.training import Training

__all__ = [
    "Baseline",
    "Calibration",
    "Setup",
    "Training",
    "prepare",
    "read_calibration",
    "start_over",
]
