"""The trials of a stage side by side: how many, and what each is begun with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from kltune.domain.events import Note, Observer
from kltune.domain.outcome import Outcome
from kltune.launchers import Launcher, open_launcher
from kltune.settings import Cluster
from kltune.trial import Crew, TrialSpec, watch_trial
from kltune.trial.records import free_slot
from kltune.trial.run import is_under_way
from kltune.workspace import TrialDir, Workspace


class StageCrew(Crew):
    """A crew of one stage; see ``open_crew``."""

    def __init__(
        self, width: int, workspace: Workspace, stage: str, launcher: Launcher, observe: Observer
    ) -> None:
        super().__init__(width)
        self._workspace = workspace
        self._stage = stage
        self._launcher = launcher
        self._observe = observe

    def begin(self, spec: TrialSpec) -> None:
        """Begin a trial, or take it up; it has a place that no running one has.

        Raises:
            LaunchError, SettingsError, KeyboardInterrupt: from the trial.
        """
        name = spec.trial.name
        spec = replace(spec, slot=free_slot(self._directory(other) for other in self.running))
        directory = self._directory(name)
        trial = watch_trial(spec, directory, self._workspace, self._launcher, self._observe)
        self.start(name, trial)

    def is_under_way(self, name: str) -> bool:
        """Whether a killed kltune has left the trial running.

        It has its place, so it is to be taken up before any other is given away.
        """
        return is_under_way(self._directory(name), self._launcher)

    def _directory(self, name: str) -> TrialDir:
        return self._workspace.trial(self._stage, name)


def open_crew(cluster: Cluster, workspace: Workspace, stage: str, observe: Observer) -> StageCrew:
    """Return a crew of as many trials as were asked for, or as there is room for.

    Where not even one fits, one is started all the same: machines may come.

    Raises:
        LaunchError: the cluster does not answer.
    """
    launcher, wanted = open_launcher(cluster), cluster.parallel
    room = launcher.room(cluster.nodes, cluster.gpus_per_node) if wanted > 1 else None
    if room is not None and room < wanted:
        observe(
            Note(
                f"room for {room} of {wanted} trials side by side, each with {cluster.nodes} x "
                f"{cluster.gpus_per_node} GPUs"
            )
        )
        wanted = max(1, room)
    return StageCrew(wanted, workspace, stage, launcher, observe)


def each_ended(crew: StageCrew, trials: Iterable[TrialSpec]) -> Iterator[tuple[str, Outcome]]:
    """Run trials that do not depend on one another, and yield each, by name, as it ends.

    Args:
        crew: runs them.
        trials: the next is asked for when there is a place for it.

    Raises:
        LaunchError, SettingsError, KeyboardInterrupt: from one of the trials.
    """
    for spec in trials:
        crew.begin(spec)
        while crew.is_full:
            crew.wait()
            yield from crew.ended()
    while crew.running:
        crew.wait()
        yield from crew.ended()
    yield from crew.ended()
