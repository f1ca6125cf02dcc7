"""How many trials run side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kltune.domain.events import Note, Observer
from kltune.domain.outcome import Outcome
from kltune.launchers import Launcher
from kltune.settings import Cluster
from kltune.trial import Crew
from kltune.trial.run import Looks


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


def each_ended(crew: Crew, trials: Iterable[tuple[str, Looks]]) -> Iterator[tuple[str, Outcome]]:
    """Run trials that do not depend on one another, and yield each as it ends.

    Args:
        crew: runs them.
        trials: by name; the next is asked for when there is a place for it.

    Raises:
        LaunchError, SettingsError, KeyboardInterrupt: from one of the trials.
    """
    for name, trial in trials:
        crew.start(name, trial)
        while crew.is_full:
            crew.wait()
            yield from crew.ended()
    while crew.running:
        crew.wait()
        yield from crew.ended()
    yield from crew.ended()
