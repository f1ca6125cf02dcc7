"""One trial: plan, submit, read, judge, stop, and what follows."""

from kltune.trial.run import run_trial
from kltune.trial.spec import TrialSpec

__all__ = ["TrialSpec", "run_trial"]
