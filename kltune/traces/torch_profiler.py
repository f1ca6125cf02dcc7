"""Traces of torch's profiler (``export_chrome_trace``, verl's ``global_profiler.tool=torch``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kltune.domain.communication import RankShare, RankTrace, family
from kltune.errors import MetricsError
from kltune.traces.json_events import ChromeTrace

_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_HOST = {"cpu_op", "user_annotation"}
_MICROSECOND = 1e-6


def read_torch_profiler(path: Path) -> list[RankShare]:
    """Return the communication of the one rank that such a trace is of.

    On a GPU its kernels count. Without one gloo's own spans do: a collective operation runs in a
    thread beside the computation there, and whether anybody waits for it is not in the trace.

    Raises:
        MetricsError: no trace, cut off, or without any work in it.
    """
    trace = ChromeTrace(path)
    device, host = RankTrace(""), RankTrace("")
    has_device = has_host = launches = False
    for event in trace:
        category, duration = event.get("cat"), event.get("dur")
        if event.get("ph") != "X" or not isinstance(duration, int | float):
            continue
        start, name = float(event["ts"]) * _MICROSECOND, str(event.get("name", ""))
        end = start + duration * _MICROSECOND
        if category in _DEVICE:
            has_device = True
            device.add(name, start, end)
        elif category in _HOST:
            # "nccl:all_reduce" of the host is the launch, not the operation.
            if family(name) and not name.startswith("gloo:"):
                launches = True
                continue
            has_host = True
            host.add(name, start, end)
    if launches and not has_device:
        raise MetricsError(
            f"{path}: shows NCCL being called and no GPU kernel; profile with CUDA activities "
            "(verl: global_profiler.global_tool_config.torch.contents)"
        )
    if not (has_device or has_host):
        raise MetricsError(f"{path}: holds no kernel and no operation")
    chosen = device if has_device else host
    chosen.rank = _rank(trace.header, path)
    return [chosen.share(computing_is_known=has_device)]


def _rank(header: str, path: Path) -> str:
    """Return the rank that torch wrote into the header, else the file's name."""
    _, found, rest = header.partition('"distributedInfo":')
    if found:
        try:
            info: Any = json.JSONDecoder().raw_decode(rest.lstrip())[0]
            return str(info["rank"])
        except (ValueError, KeyError, TypeError):
            pass
    return path.name
