"""Users' own launch scripts: read without running anything, and given back with changes marked."""

from kltune.verl.script.launch import Launch, LaunchScript, Note, Override, Parameter, Word
from kltune.verl.script.reader import read_script
from kltune.verl.script.rewrite import rewrite

__all__ = [
    "Launch",
    "LaunchScript",
    "Note",
    "Override",
    "Parameter",
    "Word",
    "read_script",
    "rewrite",
]
