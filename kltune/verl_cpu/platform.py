"""The CPU as a device that verl can be given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase


class _CpuDevice(ModuleType):
    """What ``torch.cuda`` has and ``torch.cpu`` lacks, for a device without memory of its own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def set_device(self, *_: Any) -> None:
        pass

    def get_device_name(self, *_: Any) -> str:
        return "cpu"

    def empty_cache(self) -> None:
        pass

    def ipc_collect(self) -> None:
        pass

    def reset_peak_memory_stats(self, *_: Any) -> None:
        pass

    def _no_bytes(self, *_: Any) -> int:
        return 0

    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = _no_bytes

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        return 0, 0

    def get_rng_state(self, *_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *_: Any) -> None:
        torch.set_rng_state(state)

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed


_DEVICE = _CpuDevice("kltune.verl_cpu.device")


class CpuPlatform(PlatformBase):
    """verl's platform ``cpu``, selected with ``VERL_PLATFORM=cpu``."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _DEVICE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:  # noqa: ARG002
        """Never found by verl's auto-detection: it must not take the place of a GPU."""
        return False

    def current_device(self) -> Any:
        return "cpu"  # verl passes it on as a torch device; torch has no index for the CPU

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:  # noqa: ARG002
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "KLTUNE_VISIBLE_CPUS"  # nobody sets it: verl then numbers the ranks itself

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:  # noqa: ARG002
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"  # virtual ones: ray_kwargs.ray_init.num_gpus is only a number to Ray

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
