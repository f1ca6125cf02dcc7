"""The bash script of a job, which does by hand what a launcher does."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from kltune.launchers.base import JobSpec
from kltune.verl.secrets import is_secret_name, redact


def environment(spec: JobSpec) -> dict[str, str]:
    """Return the job's variables: those of the spec, and kltune's own environment first on PATH.

    A trial must find the ``python3`` that kltune is installed in, whether or not that environment
    was activated.
    """
    here = str(Path(sys.executable).parent)
    path = spec.env.get("PATH", os.environ.get("PATH", os.defpath))
    return {**spec.env, "PATH": path if path.startswith(here) else f"{here}{os.pathsep}{path}"}


def script(spec: JobSpec) -> str:
    """Return the script of a job on one machine; secrets have to be set by whoever runs it."""
    lines = ["#!/usr/bin/env bash", f"# {spec.name}", "set -e", *exports(spec)]
    return "\n".join([*lines, f"cd {shlex.quote(str(spec.cwd))}", command(spec), ""])


def exports(spec: JobSpec) -> list[str]:
    """Return the lines that set the job's variables."""
    return [_export(name, value) for name, value in sorted(environment(spec).items())]


def command(spec: JobSpec) -> str:
    """Return the job's command, quoted, one word a line."""
    return " \\\n  ".join(shlex.quote(redact(word)) for word in spec.argv)


def _export(name: str, value: str) -> str:
    if is_secret_name(name):
        return f': "${{{name}:?is a secret and not kept here; set it first}}"; export {name}'
    return f"export {name}={shlex.quote(redact(value))}"
