"""Ray workers forked from one process that has imported everything already.

A verl run on one machine has five or six Ray workers, and each would start as a new Python that
spends 4 to 8 s of CPU on the same imports: with two cores that is most of the time to step 1.
The driver starts one more process instead, the nursery. It imports what does not depend on Ray
while the driver starts Ray, the rest on Ray's first request for a worker, and from then on forks
each worker that Ray asks for. It ends with the driver; its workers end with their raylet, as
Ray's own do.

Nothing here may import Ray before that first request: its C++ part reads the raylet's process id
and the job's number from the environment when it is loaded, and never again.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import secrets
import select
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

_ADDRESS = "KLTUNE_NURSERY"
_SWITCH = "KLTUNE_FORK_WORKERS"
_WITHOUT_RAY = (
    "torch.distributed.fsdp",
    "tensordict",
    "transformers.modeling_utils",
    "transformers.generation.utils",
    "datasets",
    "hydra",
    "peft",
    "torchdata.stateful_dataloader",
    "zmq.asyncio",
    "aiohttp",
    "uvicorn",
    "fastapi",
    "msgspec",
)
_WITH_RAY = (
    "kltune.verl_cpu.server",
    "kltune.verl_cpu.rollout",
    "verl.trainer.ppo.v1",
    "verl.workers.engine_workers",
)
# What Ray's C++ part reads once, and what all workers of one driver have in common.
_FIXED = ("RAY_RAYLET_PID", "RAY_JOB_ID")


def start() -> str | None:
    """Start the nursery of a driver and return its address.

    Returns:
        None where there is one already, ``KLTUNE_FORK_WORKERS=0`` forbids it, or the system has
        no abstract sockets.
    """
    if os.environ.get(_SWITCH) == "0" or sys.platform != "linux" or _ADDRESS in os.environ:
        return None
    address = f"kltune-nursery-{os.getpid()}-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + address)  # abstract: there is no file to remove
    listener.listen(64)
    driver_ended, _held_to_the_end = os.pipe()
    handed_over = (listener.fileno(), driver_ended)
    subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", __name__, *map(str, handed_over)],
        pass_fds=handed_over,
        stdin=subprocess.DEVNULL,
    )
    listener.close()
    os.close(driver_ended)
    return address


def employ(address: str) -> None:
    """Have the Ray cluster that this process is about to start ask a nursery for its workers."""
    from ray._private import parameter

    class Params(parameter.RayParams):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.setup_worker_path = str(Path(__file__).with_name("launcher.py"))

    parameter.RayParams = Params
    os.environ[_ADDRESS] = address
    # A worker started ahead of its task has no runtime environment, and verl's tasks all have.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    os.environ.setdefault("RAY_enable_worker_prestart", "0")


def main() -> None:
    """Be the nursery, or a worker that it forked, to the end of the process."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    driver_ended = int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the workers
    for module in _WITHOUT_RAY:
        importlib.import_module(module)
    code = 1
    try:
        birth = _next_birth(listener, driver_ended)
        code = _Worker(*birth).run() if birth else 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a worker would run what the nursery has registered for its own end.
    os._exit(code)


def _next_birth(
    listener: socket.socket, driver_ended: int
) -> tuple[socket.socket, dict[str, Any]] | None:
    """Return in each forked worker what it is to become; in the nursery None, at its end."""
    fixed: dict[str, str | None] | None = None
    while True:
        ready, _, _ = select.select([listener.fileno(), driver_ended], [], [])
        if driver_ended in ready:
            return None
        connection, _ = listener.accept()
        descriptors, birth = _receive(connection)
        asked = {name: birth["environ"].get(name) for name in _FIXED}
        if fixed is None and all(asked.values()):
            fixed = asked
            os.environ.update(birth["environ"])
            for module in _WITH_RAY:
                importlib.import_module(module)
            gc.collect()
            gc.freeze()  # else the collector would write to, and so copy, every shared page
        if asked == fixed:
            connection.sendall(b"y")
            if os.fork() == 0:
                listener.close()
                os.close(driver_ended)
                for number, descriptor in enumerate(descriptors):
                    os.dup2(descriptor, number)
                    os.close(descriptor)
                return connection, birth
        for descriptor in descriptors:
            os.close(descriptor)
        connection.close()


def _receive(connection: socket.socket) -> tuple[list[int], dict[str, Any]]:
    """Return the launcher's standard streams, and what it was started with."""
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as stream:
        return descriptors, json.load(stream)


class _Worker:
    """The forked process, in place of the one that a launcher was started to be."""

    def __init__(self, launcher: socket.socket, birth: dict[str, Any]):
        self._launcher = launcher
        self._birth = birth

    def run(self) -> int:
        """Work to the end, tell the launcher, return the exit code."""
        from ray._private.runtime_env.context import RuntimeEnvContext
        from ray._private.workers import setup_worker
        from ray.core.generated.common_pb2 import Language

        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(self._birth["cwd"])
        os.environ.clear()
        os.environ.update(self._birth["environ"])
        setup, rest = setup_worker.parser.parse_known_args(self._birth["argv"])
        context = RuntimeEnvContext.deserialize(setup.serialized_runtime_env_context or "{}")
        plain = RuntimeEnvContext(env_vars=context.env_vars)
        if setup.language != "PYTHON" or context.serialize() != plain.serialize():
            self._launcher.set_inheritable(True)  # the launcher ends when the last copy closes
            context.exec_worker(rest, Language.Value(setup.language))
        os.environ.update(context.env_vars)
        sys.argv = rest
        code = 0
        try:
            runpy.run_path(rest[0], run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        self._launcher.sendall(bytes([code & 0xFF]))
        return code


if __name__ == "__main__":
    main()
