"""Readers of training metrics: one per format, found by what the source holds."""

from kltune.readers.base import Reader, drain
from kltune.readers.formats import FORMATS, open_reader

__all__ = ["FORMATS", "Reader", "drain", "open_reader"]
