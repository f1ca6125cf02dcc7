"""The ``kltune`` command: its commands, and the one place where errors become exit codes.

Nothing here, nor in the modules of the commands, imports a heavy package before a command runs:
``kltune --help`` must not take longer than reading it.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from types import FrameType
from typing import Annotated

import typer

from kltune import __version__
from kltune.cli import (
    calibrate,
    comm,
    data,
    doctor,
    drift,
    export,
    init,
    lint,
    plan,
    replay,
    report,
    scale,
    status,
    train,
    validate,
    watch,
)
from kltune.errors import KltuneError, SettingsError

EXIT_CODES = """Exit codes: 0 done; 1 the goal was not met; 2 wrong usage; 3 invalid configuration;
4 launch failed; 5 metrics unusable; 70 a bug of kltune; 130 interrupted."""

app = typer.Typer(
    name="kltune",
    help="Calibrates the KL settings of verl PPO/GRPO training with real trials.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(calibrate.run)
app.command("baseline")(calibrate.baseline)
app.command("init")(init.init)
app.command("lint")(lint.lint)
app.command("plan")(plan.plan)
app.command("export")(export.export)
app.command("watch")(watch.watch)
app.command("replay")(replay.replay)
app.command("train")(train.train)
app.command("validate")(validate.validate)
app.command("drift")(drift.drift)
app.command("data")(data.data)
app.command("scale")(scale.scale)
app.command("comm")(comm.comm)
app.command("report")(report.report)
app.command("status")(status.status)
app.command("doctor")(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"kltune {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit code; see ``EXIT_CODES``."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = _run(argv)
        sys.stdout.flush()
    except SettingsError as error:
        _complain("invalid configuration", *error.faults)
        return error.exit_code
    except KltuneError as error:
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _complain("interrupted; the same command again goes on from here")
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing may be left to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:
        return _bug()
    return code


def _run(argv: list[str] | None) -> int:
    """Run a command line; what typer makes of Ctrl-C and of a closed pipe is made undone."""
    try:
        app(args=argv, prog_name="kltune")
    except SystemExit as exit_:
        cause: BaseException | None = exit_
        while cause is not None:
            if isinstance(cause, KeyboardInterrupt | BrokenPipeError):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        return _code(exit_)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    """A job scheduler says SIGTERM where a person presses Ctrl-C."""
    del number, frame
    raise KeyboardInterrupt


def _code(exit_: SystemExit) -> int:
    if isinstance(exit_.code, int):
        return exit_.code
    return 0 if exit_.code is None else 1


def _complain(*lines: str) -> None:
    from kltune.verl.secrets import redact

    head, *rest = lines
    sys.stderr.write(redact("\n  ".join([f"kltune: {head}", *rest])) + "\n")


def _bug() -> int:
    from kltune.verl.secrets import redact

    report = redact(
        f"kltune {__version__}\nPython {sys.version}\n{' '.join(sys.argv)}\n\n"
        + traceback.format_exc()
    )
    with tempfile.NamedTemporaryFile(
        "w", prefix="kltune-crash-", suffix=".txt", delete=False, encoding="utf-8"
    ) as stream:
        stream.write(report)
    last = report.strip().splitlines()[-1]
    _complain(
        f"this is a bug of kltune: {last}",
        f"report: {stream.name}",
        "nothing that was written is lost; please attach the report to an issue",
    )
    return 70
