"""One trial: plan, submit, read, judge, stop, and what follows."""

from kltune.trial.crew import Crew, run_trial
from kltune.trial.run import watch_trial
from kltune.trial.spec import TrialSpec

__all__ = ["Crew", "TrialSpec", "run_trial", "watch_trial"]
