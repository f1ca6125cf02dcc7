"""Has the training data changed? Fingerprints of data sets, and what differs between two."""

from kltune.drift.compare import Drift, Shift, compare, compare_files, compare_remembered
from kltune.drift.fingerprint import Fingerprint, fingerprint

__all__ = [
    "Drift",
    "Fingerprint",
    "Shift",
    "compare",
    "compare_files",
    "compare_remembered",
    "fingerprint",
]
