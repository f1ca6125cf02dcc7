"""Several nodes on one machine: a Ray cluster of raylets with virtual GPUs around one command.

    python -m kltune.launchers.virtual_nodes --nodes 2 --gpus 1 -- python3 -m verl...

Every job has a cluster of its own, which ends with the job, however that ends: the raylets are
children of this process, carry the job's token as it does, and inherit its variables, so that
verl's workers have them too. To Ray the number of GPUs is only a number; with real ones two nodes
would take the same devices, so this is for platforms without.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from dataclasses import replace
from types import FrameType

from kltune.launchers.base import JobSpec, LaunchPlan
from kltune.launchers.local import LocalLauncher

#: Ray's CPUs of a node are only a number as well: enough for verl's actors on each.
_CPUS = 8

_OBJECT_STORE_BYTES = 200 * 1024 * 1024


class VirtualNodesLauncher(LocalLauncher):
    """Runs jobs of several nodes on this machine; see the module's docstring."""

    def plan(self, spec: JobSpec, handle: str | None = None) -> LaunchPlan:
        """Return the script that ``submit`` runs: the command, with the cluster around it."""
        size = ("--nodes", str(spec.nodes), "--gpus", str(spec.gpus_per_node))
        around = (sys.executable, "-m", __name__, *size, "--")
        return super().plan(replace(spec, argv=(*around, *spec.argv)), handle)


def main(argv: list[str] | None = None) -> int:
    """Start the nodes, run the command on them, end the nodes; return the command's exit code."""
    parser = argparse.ArgumentParser(prog="python -m kltune.launchers.virtual_nodes")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True, help="virtual GPUs of each node")
    parser.add_argument("command", nargs="+", help="after --")
    asked = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _end)

    from ray.cluster_utils import Cluster

    node = {
        "num_cpus": _CPUS,
        "num_gpus": asked.gpus,
        "object_store_memory": _OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    # A worker started before the first task would import for seconds what no task asks for.
    os.environ.setdefault("RAY_enable_worker_prestart", "0")
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    cluster = Cluster(initialize_head=True, head_node_args=node)
    driver: subprocess.Popen[bytes] | None = None
    try:
        for _ in range(asked.nodes - 1):
            cluster.add_node(**node)
        variables = {**os.environ, "RAY_ADDRESS": cluster.address}
        driver = subprocess.Popen(asked.command, env=variables)  # noqa: S603 - words, no shell text
        code = driver.wait()
    finally:
        if driver is not None and driver.poll() is None:
            driver.terminate()
        cluster.shutdown()
    # As a shell says it.
    return code if code >= 0 else 128 - code


def _end(number: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
