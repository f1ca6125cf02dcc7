"""Why a verl run died, read from what it printed. Text in, value out; bounded memory.

verl exits with 1 for an exhausted memory, a wrong configuration and a bug alike, so the log must
tell. The patterns are those of verl 0.3 to 0.9, Ray, NCCL, PyTorch, vLLM, Hydra and SLURM.
"""

from __future__ import annotations

import re
from collections import deque

from kltune.domain.crashes import Crash, CrashClass
from kltune.verl.secrets import redact

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"^\([^()]{0,80}pid=\d+[^()]{0,80}\)\s?")

_SIGNS: dict[CrashClass, re.Pattern[str]] = {
    CrashClass.OUT_OF_MEMORY: re.compile(
        r"OutOfMemoryError|(?:CUDA|HIP|NPU|XPU) out of memory|CUBLAS_STATUS_ALLOC_FAILED"
        r"|No available memory for the cache blocks|[Cc]an(?:not|'t) allocate memory"
        r"|oom[-_]kill event|OOM Killed"
    ),
    CrashClass.DISK: re.compile(
        r"No space left on device|Disk quota exceeded|Read-only file system|\[Errno (?:28|122)\]"
    ),
    # What kltune's own reward function says of a reward model that cannot be asked.
    CrashClass.REWARD: re.compile(r"RuntimeError: reward source \S+: "),
    CrashClass.NCCL: re.compile(
        r"Watchdog caught collective operation timeout|DistBackendError|NCCL (?:error|failure)"
        r"|nccl(?:System|Internal|Remote|UnhandledCuda)Error|HCCL.*(?:timeout|failed)"
        r"|gloo/transport.*(?:Connection|Timed out)|torch\.distributed\.DistNetworkError"
    ),
    CrashClass.CONFIGURATION: re.compile(
        r"Could not (?:override|append to config)|is not in struct|InstantiationException"
        r"|ConfigAttributeError|ConfigKeyError|MissingMandatoryValue|MissingConfigException"
        r"|^ModuleNotFoundError|Total available GPUs .* less than total desired"
        r"|(?:Value|Assertion|NotImplemented)Error.*(?:batch_size|micro_batch|strategy|adv_estimator)"
        r"|Unable to find '.*\.parquet'|size must be divisible by"
    ),
    CrashClass.KILLED: re.compile(
        r"^Killed$|^Terminated$|slurmstepd: error: .*(?:CANCELLED|TIME LIMIT)"
        r"|(?:received|by) (?:signal:? ?)?SIG(?:KILL|TERM|INT)|Received SIGTERM"
        r"|killed by signal"
    ),
    CrashClass.RAY: re.compile(
        r"ActorDiedError|RayActorError|WorkerCrashedError|ActorUnavailableError|NodeDiedError"
        r"|RaySystemError|ObjectLostError|OwnerDiedError|LocalRayletDiedError"
        r"|Worker exit type: SYSTEM_ERROR|raylet.*(?:died|failed to start)"
    ),
    CrashClass.EXCEPTION: re.compile(
        r"Error executing job with overrides|ray\.exceptions\.RayTaskError"
        r"|^Traceback \(most recent"
    ),
}

_ANY_SIGN = re.compile("|".join(pattern.pattern for pattern in _SIGNS.values()))

#: Words after which nothing more comes. Errors alone may be caught, retried, or part of an answer
#: that the log shows, so that in a run that has made steps they need one of these.
_FATAL = re.compile(
    r"Error executing job with overrides|ray\.exceptions\.|Watchdog caught collective"
    r"|^Killed$|^Terminated$|slurmstepd: error|SIG(?:KILL|TERM)|SYSTEM_ERROR|ActorDiedError"
    r"|WorkerCrashedError|NodeDiedError"
)

#: A line without any of these shows no sign. Each begins with a plain letter that is rare in text,
#: so that Python's regular expressions search for all of them at once, twenty times as fast.
_TRIGGER = re.compile(
    rb"Traceback \(most|Error executing job|OutOfMemoryError|CUDA out of|HIP out of"
    rb"|NPU out of|XPU out of|CUBLAS_STATUS|No available memory|Cannot allocate"
    rb"|DefaultCPUAllocator|Detected \d+ oom|OOM Killed|No space left|Disk quota"
    rb"|Read-only file|\[Errno|Watchdog caught"
    rb"|DistBackendError|DistNetworkError|NCCL (?:error|failure)|HCCL|RuntimeError: |Could not "
    rb"|InstantiationException|Config(?:Attribute|Key)Error|Missing(?:Mandatory|Config)"
    rb"|ModuleNotFoundError|Total available GPUs|Unable to find|ValueError: |AssertionError"
    rb"|NotImplementedError|Killed|Terminated|CANCELLED|TIME LIMIT|KeyboardInterrupt"
    rb"|SIG(?:KILL|TERM|INT)|SYSTEM_ERROR|Actor(?:Died|Unavailable)Error|Ray(?:Actor|System|Task)Error"
    rb"|WorkerCrashedError|NodeDiedError|ObjectLostError|OwnerDiedError|LocalRaylet"
    rb"|Final validation metrics"
)

# verl itself prints this at the end of good runs, when the data loader's workers are torn down.
_HARMLESS = re.compile(r"DataLoader worker \(pid .*\) is killed by signal")

#: The last thing that a run prints of itself; what follows is the tearing down.
_DONE = "Final validation metrics"

#: The last line of a traceback says more than the first line that names the error.
_RAISED = re.compile(r"(?:torch|builtins|RuntimeError|OSError)[\w.]*: ")

_KEPT_LINES = 40
_KEPT_TRACEBACK = 80
_KEPT_CHARACTERS = 500
_KEPT_BYTES = 4 * _KEPT_CHARACTERS


class LogEvidence:
    """What the lines of a console log tell about how the run ended; fed line by line."""

    def __init__(self) -> None:
        self._tail: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._signs: dict[CrashClass, str] = {}
        self._traceback: list[str] = []
        self._traceback_open = False
        self._fatal = False
        self._trained = False
        self._done = False

    def see(self, text: bytes) -> None:
        """Take in whole lines that are no step lines; the last line end may be missing."""
        self._tail.extend(
            line[:_KEPT_BYTES] for line in text.rsplit(b"\n", _KEPT_LINES)[-_KEPT_LINES:] if line
        )
        at = self._follow_traceback(text, 0)
        for found in _TRIGGER.finditer(text, at):
            if found.start() < at:
                continue
            start = text.rfind(b"\n", 0, found.start()) + 1
            end = text.find(b"\n", start)
            self._look(text[start : end if end >= 0 else len(text)])
            at = self._follow_traceback(text, end + 1 if end >= 0 else len(text))

    def step_follows(self) -> None:
        """Forget every sign of a crash: the run went on."""
        self._signs.clear()
        self._traceback.clear()
        self._traceback_open = self._fatal = self._done = False
        self._trained = True

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines that were printed, without colours, Ray's prefixes and secrets."""
        return tuple(redact(text) for line in self._tail if (text := plain_text(line)))

    @property
    def first_traceback(self) -> tuple[str, ...]:
        """The first Python traceback since the last step: the last is often only its echo."""
        return tuple(map(redact, self._traceback))

    def crash(self, exit_code: int | None = None) -> Crash | None:
        """Return the crash that the log, and the exit code where it is known, tell of.

        Args:
            exit_code: 0 means that there was none, whatever the log says; a negative code, 137
                and 143 mean a signal.
        """
        unsure = exit_code is None and (self._done or (self._trained and not self._fatal))
        if exit_code == 0 or unsure:
            return None
        for cause in CrashClass:
            if cause in self._signs:
                line = redact(self._signs[cause])
                return Crash(cause, line, self.first_traceback, exit_code)
        if exit_code is None:
            return None
        killed = exit_code < 0 or exit_code in {130, 137, 143}
        cause = CrashClass.KILLED if killed else CrashClass.EXCEPTION
        return Crash(cause, "", self.first_traceback, exit_code)

    def _follow_traceback(self, text: bytes, at: int) -> int:
        """Read on to the end of an open traceback; return where to go on."""
        while self._traceback_open and at < len(text):
            end = text.find(b"\n", at)
            end = end if end >= 0 else len(text)
            self._look(text[at:end])
            at = end + 1
        return at

    def _look(self, line: bytes) -> None:
        text = plain_text(line)
        if _HARMLESS.search(text):
            return
        if text.startswith("KeyboardInterrupt"):
            # The user ended the run.
            self._signs.pop(CrashClass.EXCEPTION, None)
            self._fatal = self._traceback_open = False
            return
        self._done = self._done or _DONE in text
        self._fatal = self._fatal or _FATAL.search(text) is not None
        if _ANY_SIGN.search(text):
            for cause, pattern in _SIGNS.items():
                if pattern.search(text) and (cause not in self._signs or _RAISED.match(text)):
                    self._signs[cause] = text
        if text.startswith("Traceback (most recent") and not self._traceback:
            self._traceback_open = True
        if self._traceback_open:
            self._traceback.append(text)
            ends = not text.startswith((" ", "Traceback"))
            self._traceback_open = not ends and len(self._traceback) < _KEPT_TRACEBACK


def plain_text(line: bytes) -> str:
    """Return the start of a printed line, without colours, Ray's prefix and progress bars."""
    text = line[-_KEPT_BYTES:] if b"\r" in line else line[:_KEPT_BYTES]
    shown = text.decode("utf-8", "replace").rstrip().rpartition("\r")[2]
    return _PREFIX.sub("", _ANSI.sub("", shown))[:_KEPT_CHARACTERS]
