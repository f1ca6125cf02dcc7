"""Checks of what surrounds the training: checkpoints, validation, resume, loggers, schedules."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kltune.verl.keys import Key
from kltune.verl.lint.finding import Level, LintFinding
from kltune.verl.lint.subject import ACTOR, Subject
from kltune.verl.overrides import bare
from kltune.verl.secrets import is_secret_name, redact, variable_of


def no_checkpoints(s: Subject) -> Iterator[LintFinding]:
    """`save_freq` is off: nothing to roll back to, nothing to resume."""
    if s.script and (s.count("trainer.save_freq") or -1) <= 0:
        yield LintFinding(
            "no-checkpoints",
            Level.WARNING,
            "trainer.save_freq is off: there is nothing to roll back to when KL runs away, and "
            "nothing to resume from after a crash",
            {"trainer.save_freq": s.value("trainer.save_freq")},
            fix={"trainer.save_freq": 20},
            safe=True,
        )


def no_validation(s: Subject) -> Iterator[LintFinding]:
    """`test_freq` is off: training score is all there is to judge by."""
    if s.script and (s.count("trainer.test_freq") or -1) <= 0:
        yield LintFinding(
            "no-validation",
            Level.WARNING,
            "trainer.test_freq is off: no validation score is logged, so that a policy that "
            "only pleases its reward cannot be told from one that learns",
            {"trainer.test_freq": s.value("trainer.test_freq")},
            fix={"trainer.test_freq": 5},
            safe=True,
        )


def val_only_alone(s: Subject) -> Iterator[LintFinding]:
    """`val_only` is read only when `val_before_train` is on; else verl trains."""
    if s.at(Key.VAL_ONLY) and s.at(Key.VAL_BEFORE_TRAIN) is False:
        yield LintFinding(
            "val-only-alone",
            Level.ERROR,
            "trainer.val_only is read only inside val_before_train, which is off: "
            "this would train",
            {"trainer.val_only": True, "trainer.val_before_train": False},
            fix={s.release.key(Key.VAL_BEFORE_TRAIN) or "": True},
        )


def resume_other_run(s: Subject) -> Iterator[LintFinding]:
    """`resume_mode=auto` in a directory that another run of the same name shares."""
    saves = (s.count("trainer.save_freq") or -1) > 0
    if not s.script or s.value("trainer.resume_mode") != "auto" or not saves:
        return
    if s.given("trainer.default_local_dir"):
        return
    named = bool(s.given("trainer.experiment_name"))
    yield LintFinding(
        "resume-other-run",
        Level.WARNING if named else Level.ERROR,
        "trainer.resume_mode=auto continues whatever lies in checkpoints/<project>/<experiment>, "
        + (
            f"here {s.value('trainer.project_name')}/{s.value('trainer.experiment_name')}: a "
            "second run of this name goes on from the first"
            if named
            else "and the experiment has verl's default name"
        ),
        {
            "trainer.resume_mode": "auto",
            "trainer.experiment_name": s.value("trainer.experiment_name"),
        },
        fix={"trainer.resume_mode": "disable"},
        safe=not named,
    )


def resume_path_form(s: Subject) -> Iterator[LintFinding]:
    """`resume_from_path` is missing, or not of the form that verl parses the step from."""
    path = s.value("trainer.resume_from_path")
    if s.value("trainer.resume_mode") != "resume_path":
        return
    if not isinstance(path, str) or not re.search(r"global_step_\d+$", path):
        cure = re.sub(r"(global_step_\d+).*", r"\1", path) if isinstance(path, str) else ""
        yield LintFinding(
            "resume-path-form",
            Level.ERROR,
            f"resume_from_path is {path!r}; verl reads the step from what stands after "
            "global_step_, so the path must end there, without a slash",
            {"trainer.resume_from_path": path},
            fix={"trainer.resume_from_path": cure} if "global_step_" in cure else {},
        )


def schedule_follows_steps(s: Subject) -> Iterator[LintFinding]:
    """A learning-rate schedule is tied to the number of steps, which trials shorten."""
    keys = (f"{ACTOR}.optim.lr_scheduler_type", f"{ACTOR}.optim.warmup_style")
    kinds = {key: s.value(key) for key in keys if s.value(key) not in (None, "constant")}
    ratio = s.number(f"{ACTOR}.optim.lr_warmup_steps_ratio") or 0
    fixed = (s.number(f"{ACTOR}.optim.lr_warmup_steps") or -1) > 0
    if ratio > 0 and not fixed:
        kinds[f"{ACTOR}.optim.lr_warmup_steps_ratio"] = ratio
    if kinds:
        yield LintFinding(
            "schedule-follows-steps",
            Level.WARNING,
            f"{', '.join(f'{k}={v}' for k, v in kinds.items())} depends on the number of steps: a "
            "short trial and the full run train with different learning rates at the same step, "
            "and KL follows the learning rate",
            kinds,
            fix={key: "constant" for key in kinds if key.endswith(("type", "style"))}
            | ({f"{ACTOR}.optim.lr_warmup_steps": 10} if ratio > 0 and not fixed else {}),
        )


def logger_unknown(s: Subject) -> Iterator[LintFinding]:
    """A logger that this verl does not have, or whose file cannot be read in this release."""
    names = _loggers(s)
    unknown = [name for name in names if name not in s.release.loggers]
    if unknown:
        yield LintFinding(
            "logger-unknown",
            Level.ERROR,
            f"trainer.logger has {', '.join(map(repr, unknown))}; verl {s.release.version} knows "
            f"{', '.join(s.release.loggers)}",
            {"trainer.logger": names},
            fix={"trainer.logger": [n for n in names if n not in unknown] or ["console"]},
        )
    elif "file" in names and not s.release.file_logger:
        yield LintFinding(
            "logger-unknown",
            Level.ERROR,
            f"the file logger of verl {s.release.version} crashes at the first step with the "
            "default balance_batch=True, and writes only when it closes",
            {"trainer.logger": names},
            fix={"trainer.logger": [n if n != "file" else "tensorboard" for n in names]},
            safe=True,
        )


def logger_unreadable(s: Subject) -> Iterator[LintFinding]:
    """No logger that can be read while training goes on, at full precision."""
    names, wanted = _loggers(s), s.release.metrics_logger
    if not s.script or wanted in names or "tensorboard" in names:
        return
    rounded = s.release.numbers < (0, 5, 0)
    yield LintFinding(
        "logger-unreadable",
        Level.WARNING if "console" not in names or rounded else Level.INFO,
        f"trainer.logger={names} has no {wanted}: "
        + (
            "this verl prints three decimals to the console, a KL of 0.0004 reads 0.000"
            if rounded and "console" in names
            else "kltune would have to read the console's log"
            if "console" in names
            else "kltune cannot watch this run"
        ),
        {"trainer.logger": names},
        fix={"trainer.logger": [*names, wanted]},
        safe=True,
    )


def secret_in_command(s: Subject) -> Iterator[LintFinding]:
    """A secret stands in the command line, where everyone on the machine can read it."""
    for key, value in s.overrides.items():
        text = str(value)
        named = is_secret_name(bare(key)) and isinstance(value, str) and value
        if text.startswith("${") or not (named or redact(text) != text):
            continue
        variable = variable_of(key)
        yield LintFinding(
            "secret-in-command",
            Level.ERROR,
            f"{bare(key)} carries a secret: process lists, Hydra's own files and logs show it. "
            f"Set {variable} in the environment instead",
            {bare(key): redact(text) if redact(text) != text else "REDACTED"},
            fix={key: f"${{oc.env:{variable}}}"} if named else {},
        )


def _loggers(s: Subject) -> list[str]:
    value = s.value("trainer.logger")
    if isinstance(value, (list, tuple)):
        return [str(name) for name in value]
    return [] if value is None else [str(value)]


CHECKS = (
    no_checkpoints,
    no_validation,
    val_only_alone,
    resume_other_run,
    resume_path_form,
    schedule_follows_steps,
    logger_unknown,
    logger_unreadable,
    secret_in_command,
)
