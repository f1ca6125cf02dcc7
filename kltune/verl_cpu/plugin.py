"""Entry point ``verl.plugins``: makes verl 0.9 train on a CPU where ``VERL_PLATFORM=cpu``.

verl imports this module at the end of ``import verl``, in the driver and in every Ray worker, also
in those of people who train on GPUs. Unless the CPU platform was asked for, importing it does
nothing and costs nothing: it must import only the standard library at this level.
"""

from __future__ import annotations

import os
import sys

_SUPPORTED = "0.9."


def _install() -> None:
    # The FSDP engines are registered for cuda and npu only (verl/workers/engine/fsdp/
    # transformer_impl.py:1143); on the CPU the cuda one does the work.
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    # The TransferQueue sets torch to this many threads for each message, 8 unless told otherwise,
    # and warns each time on a machine with fewer cores.
    os.environ.setdefault("TQ_NUM_THREADS", "1")
    version = sys.modules["verl"].__version__
    if not version.startswith(_SUPPORTED):
        raise RuntimeError(
            f"kltune's CPU platform is written for verl {_SUPPORTED}*, found {version}: "
            "install verl==0.9.1, or unset VERL_PLATFORM"
        )

    from verl.plugin.platform.platform_manager import PlatformRegistry

    from kltune.verl_cpu import hooks
    from kltune.verl_cpu.platform import CpuPlatform

    PlatformRegistry.register(platform="cpu")(CpuPlatform)
    hooks.install()


if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    try:
        _install()
    except Exception as error:
        # verl swallows exceptions of its plugins (verl/__init__.py:75, DEBUG) and would go on
        # with a platform that is not there; only the end of the process is loud enough.
        import traceback

        traceback.print_exc()
        raise SystemExit(f"VERL_PLATFORM=cpu: the CPU platform did not load: {error}") from error
