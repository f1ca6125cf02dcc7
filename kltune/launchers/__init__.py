"""Ways to run one verl process, by name; loaded when one is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kltune.errors import LaunchError
from kltune.launchers.base import JobSpec, JobState, JobStatus, Launcher, LaunchPlan
from kltune.launchers.devices import visible_devices
from kltune.settings import Cluster

#: By the scheme of their handles.
LAUNCHERS = {
    "local": "kltune.launchers.local:LocalLauncher",
    "ray": "kltune.launchers.ray_job:RayJobLauncher",
    "slurm": "kltune.launchers.slurm:SlurmLauncher",
}
_VIRTUAL_NODES = "kltune.launchers.virtual_nodes:VirtualNodesLauncher"


def open_launcher(cluster: Cluster) -> Launcher:
    """Return the launcher of these settings.

    Several nodes of one machine are virtual ones.
    """
    if cluster.launcher == "ray":
        return _load(LAUNCHERS["ray"], cluster.ray.address)
    if cluster.launcher == "slurm":
        return _load(LAUNCHERS["slurm"], cluster.slurm.options)
    if cluster.nodes > 1:
        return _load(_VIRTUAL_NODES)
    # One job at a time sees the machine as it is.
    return _load(LAUNCHERS["local"], visible_devices() if cluster.parallel > 1 else ())


def launcher_of(handle: str) -> Launcher:
    """Return a launcher that can see and end the job of a handle.

    Raises:
        LaunchError: no launcher makes such handles.
    """
    scheme = handle.partition("://")[0]
    if scheme not in LAUNCHERS:
        raise LaunchError(f"{handle}: no launcher makes such handles")
    return _load(LAUNCHERS[scheme])


def _load(path: str, *arguments: Any) -> Launcher:
    module, _, attribute = path.partition(":")
    launcher: Launcher = getattr(import_module(module), attribute)(*arguments)
    return launcher


__all__ = [
    "LAUNCHERS",
    "JobSpec",
    "JobState",
    "JobStatus",
    "LaunchPlan",
    "Launcher",
    "launcher_of",
    "open_launcher",
]
