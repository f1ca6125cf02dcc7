"""GPUs of this machine, as CUDA names them."""

from __future__ import annotations

import os


def visible_devices() -> tuple[str, ...]:
    """Return the names of the GPUs that a process started here would see; none without torch.

    ``CUDA_VISIBLE_DEVICES`` decides where it is set, as it would for the process.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(name for part in named.split(",") if (name := part.strip()))
    try:
        from torch.cuda import device_count
    except ImportError:
        return ()
    return tuple(str(number) for number in range(device_count()))
