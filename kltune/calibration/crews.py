"""How many trials run side by side."""

from __future__ import annotations

from kltune.domain.events import Note, Observer
from kltune.launchers import Launcher
from kltune.settings import Cluster
from kltune.trial import Crew


def open_crew(cluster: Cluster, launcher: Launcher, observe: Observer) -> Crew:
    """Return a crew of as many trials as were asked for, or as there is room for.

    Where not even one fits, one is started all the same: machines may come.

    Raises:
        LaunchError: the cluster does not answer.
    """
    wanted = cluster.parallel
    room = launcher.room(cluster.nodes, cluster.gpus_per_node) if wanted > 1 else None
    if room is None or room >= wanted:
        return Crew(wanted)
    observe(
        Note(
            f"room for {room} of {wanted} trials side by side, each with {cluster.nodes} x "
            f"{cluster.gpus_per_node} GPUs"
        )
    )
    return Crew(max(1, room))
