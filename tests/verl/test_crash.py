"""Why a run died, as its log tells it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kltune.domain.crashes import CrashClass, crash_finding
from kltune.domain.findings import Action, Kind
from kltune.verl.crash import LogEvidence, plain_text

HYDRA = "Error executing job with overrides: ['trainer.nnodes=1']"


def evidence(*lines: str, after_steps: bool = False) -> LogEvidence:
    found = LogEvidence()
    if after_steps:
        found.step_follows()
    for line in lines:
        found.see(line.encode())
    return found


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4 GiB", "out-of-memory"),
        ("ray.exceptions.OutOfMemoryError: Task was killed: node low on memory", "out-of-memory"),
        ("OSError: [Errno 28] No space left on device: 'global_step_10'", "disk"),
        ("[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)", "nccl"),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp, remote exit", "nccl"),
        ("Could not override 'algorithm.kl_ctl.type'.", "configuration"),
        ("ModuleNotFoundError: No module named 'transfer_queue'", "configuration"),
        ("ValueError: Total available GPUs 4 is less than total desired GPUs 8", "configuration"),
        ("Killed", "killed"),
        ("slurmstepd: error: *** JOB 9 ON n1 CANCELLED DUE TO TIME LIMIT ***", "killed"),
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing", "ray"),
        ("A worker died or was killed. Worker exit type: SYSTEM_ERROR", "ray"),
        (HYDRA, "exception"),
    ],
)  # fmt: skip
def test_a_line_tells_the_class(line: str, cause: str) -> None:
    prefixed = f"\x1b[36m(TaskRunner pid=9, ip=198.51.100.7)\x1b[0m {line}"
    for shown in (line, prefixed):
        crash = evidence("loading", shown, HYDRA).crash()
        assert crash is not None
        assert crash.cause.value == cause
        assert crash.line == line


def test_the_cause_wins_over_what_it_led_to() -> None:
    crash = evidence(
        HYDRA,
        "Traceback (most recent call last):",
        '  File "main_ppo.py", line 1, in main',
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::TaskRunner.run()",
        "ray.exceptions.ActorDiedError: The actor died. It may be killed by SIGKILL by OOM killer",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.07 GiB",
        after_steps=True,
    ).crash()
    assert crash is not None
    assert crash.cause is CrashClass.OUT_OF_MEMORY
    assert crash.line.endswith("Tried to allocate 4.07 GiB")
    assert crash.traceback[0] == "Traceback (most recent call last):"
    assert crash.traceback[-1].startswith("ray.exceptions.RayTaskError")


def test_a_step_after_an_error_means_that_the_run_went_on() -> None:
    found = evidence("RuntimeError: CUDA out of memory", HYDRA)
    found.step_follows()
    assert found.crash() is None


@pytest.mark.parametrize(
    "lines",
    [
        ("Traceback (most recent call last):", '  File "answer.py"', "ValueError: no"),
        ("RuntimeError: CUDA out of memory, falling back to a smaller batch",),
        ("Traceback (most recent call last):", '  File "x.py"', "KeyboardInterrupt"),
        ("Final validation metrics: {'a': 1}", "ray.exceptions.ActorDiedError: teardown"),
    ],
)
def test_what_need_not_be_the_end_of_a_run_that_made_steps(lines: tuple[str, ...]) -> None:
    assert evidence(*lines, after_steps=True).crash() is None


def test_a_good_run_may_end_with_killed_data_loaders() -> None:
    line = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed."
    assert evidence(line, after_steps=True).crash() is None
    assert evidence(line, HYDRA).crash(exit_code=0) is None


@pytest.mark.parametrize(
    ("code", "cause"), [(-9, "killed"), (137, "killed"), (143, "killed"), (1, "exception")]
)
def test_the_exit_code_tells_where_the_log_does_not(code: int, cause: str) -> None:
    crash = evidence("quiet", after_steps=True).crash(code)
    assert crash is not None
    assert (crash.cause.value, crash.exit_code) == (cause, code)


@pytest.mark.parametrize("cause", list(CrashClass))
def test_a_crash_never_asks_for_other_kl_settings_but_by_the_fallback(cause: CrashClass) -> None:
    crash = evidence("x").crash(1)
    assert crash is not None
    finding = crash_finding(type(crash)(cause, "words"), 7)
    assert finding.step == 7
    assert "words" in finding.message
    assert (finding.action is Action.FALL_BACK) == (finding.kind is Kind.CRASH)
    assert finding.kind is not Kind.DIVERGENCE


def test_last_words_are_bounded_and_without_prefixes() -> None:
    found = evidence(*(f"(WorkerDict pid={i}) line {i} " + "x" * 5000 for i in range(100)))
    assert len(found.last_lines) == 40
    assert found.last_lines[-1].startswith("line 99 ")
    assert max(map(len, found.last_lines)) <= 500


def test_a_redrawn_progress_bar_shows_its_last_state() -> None:
    assert plain_text(b"(W pid=1) \rLoading: 0%\rLoading: 100%\x1b[32m done\x1b[0m") == (
        "Loading: 100% done"
    )


@given(st.lists(st.binary(max_size=80)), st.none() | st.integers(-20, 255))
def test_any_log_is_evidence(lines: list[bytes], code: int | None) -> None:
    found = LogEvidence()
    for line in lines:
        found.see(line)
    found.crash(code)
    assert len(found.last_lines) <= 40
