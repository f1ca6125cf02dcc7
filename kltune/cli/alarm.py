"""The user's own command that is told of every critical finding."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass

from kltune.cli.output import Output
from kltune.domain.findings import Finding, Severity
from kltune.domain.verdict import finding_record
from kltune.errors import SettingsError

#: Seconds after which the command is no longer waited for; it may be one that pages somebody.
PATIENCE_S = 30


@dataclass(frozen=True, slots=True)
class Alarm:
    """Runs a command for each critical finding, with the finding as JSON on its input."""

    argv: tuple[str, ...]
    out: Output

    @classmethod
    def parse(cls, command: str | None, out: Output) -> Alarm:
        """Return the alarm of a command line; no shell ever reads it.

        Raises:
            SettingsError: the quotes in it do not match.
        """
        try:
            return cls(tuple(shlex.split(command or "")), out)
        except ValueError as error:
            raise SettingsError(f"--on-critical {command!r}: {error}") from None

    def ring(self, source: str, findings: list[Finding]) -> None:
        """Run the command for each critical one; its failure is told and changes nothing."""
        if not self.argv:
            return
        for finding in findings:
            if finding.severity is not Severity.CRITICAL:
                continue
            text = json.dumps({"source": source, **finding_record(finding)})
            try:
                done = subprocess.run(  # noqa: S603 - the user's own command, word by word
                    self.argv, input=text, text=True, timeout=PATIENCE_S, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                self.out.note(f"--on-critical: {error}")
                continue
            if done.returncode:
                self.out.note(f"--on-critical: {self.argv[0]} ended with code {done.returncode}")
