"""Step 2 of the protocol: from the baseline's settings to those of many nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from kltune.calibration.batches import batch_of, batch_overrides
from kltune.calibration.crews import open_crew
from kltune.calibration.fresh import set_stage_aside
from kltune.calibration.identity import identify
from kltune.calibration.preflight import Setup, prepare
from kltune.calibration.record import Calibration, read_calibration
from kltune.calibration.scaled import (
    NodeResult,
    Transfer,
    begun_from,
    is_of_others,
    stage_of,
)
from kltune.calibration.specs import rules_of, trial_spec
from kltune.domain.attempts import Limits
from kltune.domain.confirmation import fresh_seeds
from kltune.domain.consistency import with_gate
from kltune.domain.curve import CurvePoint
from kltune.domain.events import Note, Observer
from kltune.domain.nodes import NodePlan, NodeVerdict, next_node_action
from kltune.domain.outcome import Ending, Outcome
from kltune.domain.profiles import SEARCH
from kltune.domain.protocol import RunTrial
from kltune.domain.scaling import Batch, Rule, ScaledSettings, fit, proposals
from kltune.domain.steps import Step, values
from kltune.domain.transfer import elasticity, predicted_kl
from kltune.domain.trials import Trial
from kltune.errors import LaunchError, NotCalibratedError, SettingsError
from kltune.settings import Settings
from kltune.trial import TrialSpec
from kltune.trial.records import TrialRecord, as_json, read, read_trial, save
from kltune.trial.run import last_words, read_steps
from kltune.verl.command import held_fixed
from kltune.verl.keys import Key
from kltune.verl.overrides import lay_over
from kltune.workspace import TrialDir, Workspace


@dataclass(slots=True)
class Scaling:
    """The scale stage in one workspace, after its baseline.

    ``run`` may be called again after a kill at any moment, in a new process, and goes on.

    Attributes:
        settings: the baseline's.
    """

    settings: Settings
    workspace: Workspace
    observe: Observer
    _one_node: Mapping[int, Sequence[Step]] = field(default_factory=dict)

    def run(self) -> list[NodeResult]:
        """Walk up the numbers of nodes, and stop at the first that fails.

        Raises:
            NotCalibratedError: there is no baseline, or it found no settings.
            SettingsError: the workspace was made by other settings, or trials of another length.
            LaunchError: trials cannot be started, or end before their first step.
            KeyboardInterrupt: passed on after the running trial was ended.
        """
        with self.workspace.locked():
            calibration = read_calibration(self.workspace)
            if calibration.settings is None or calibration.winner is None:
                raise NotCalibratedError(f"nothing to scale: {calibration.reason}")
            identify(self.workspace, self.settings)
            self._one_node = self._steps_by_seed(calibration)
            results: list[NodeResult] = []
            for nodes in self.settings.content.scale.nodes:
                results.append(self._scale(nodes, calibration))
                if not results[-1].calibrated:
                    break
            return results

    def _scale(self, nodes: int, calibration: Calibration) -> NodeResult:
        stage, scale = stage_of(nodes), self.settings.content.scale
        setup, before, after, changes = self._setup(nodes, scale.steps or calibration.steps)
        assert calibration.settings is not None
        proposed = proposals(
            calibration.settings,
            nodes,
            before.rows,
            after.rows,
            Rule(scale.rule),
            scale.tensor_parallel,
        )
        plan = NodePlan(
            tuple(proposed),
            setup.settings.band,
            scale.trials,
            setup.settings.content.search.seed,
            setup.settings.content.search.space.kl_coef,
            fresh_seeds(
                setup.settings.content.search.seed, setup.settings.content.search.confirmations
            ),
        )
        for text in (*changes, *(note for p in proposed for note in p.notes)):
            self.observe(Note(f"{nodes} nodes: {text}"))
        if is_of_others(self.workspace, nodes, calibration.settings):
            self.observe(
                Note(f"{nodes} nodes: the baseline has found other settings since; begun anew")
            )
            set_stage_aside(self.workspace, stage)
        self._check_length(stage, setup.steps)
        save(begun_from(self.workspace, nodes), calibration.settings)
        cluster = setup.settings.content.cluster
        with open_crew(cluster, self.workspace, stage, self.observe) as crew:
            for directory in self.workspace.trials(stage):
                if crew.is_under_way(directory.path.name):
                    crew.begin(self._spec(read_trial(directory), setup, after))
            while True:
                for name, outcome in crew.ended():
                    self._stop_if_nothing_ran(self.workspace.trial(stage, name), outcome)
                history = [read_trial(d) for d in self.workspace.trials(stage)]
                match next_node_action(plan, history, crew.running):
                    case NodeVerdict() as verdict:
                        crew.end()
                        return self._conclude(
                            nodes, verdict, history, proposed, setup, changes, calibration
                        )
                    case RunTrial(trial) if not crew.is_full:
                        crew.begin(self._spec(trial, setup, after))
                    case _:
                        crew.wait()

    def _steps_by_seed(self, calibration: Calibration) -> dict[int, list[Step]]:
        """Return the steps that the baseline made with the settings it found, by seed.

        In a shared study the winner may have been run in another workspace; then this one has
        confirmed it all the same.
        """
        assert calibration.settings is not None
        wanted = calibration.settings.key()
        same = [t for t in calibration.trials if t.settings.key() == wanted]
        found = {t.seed: read_steps(self.workspace.trial(calibration.stage, t.name)) for t in same}
        return {seed: steps for seed, steps in found.items() if steps}

    @property
    def _measured_on_one_node(self) -> Sequence[Step]:
        return next(iter(self._one_node.values()), ())

    def setup(self, nodes: int, steps: int) -> Setup:
        """Return the checked configuration of trials on so many nodes.

        Raises:
            LaunchError, SettingsError: see ``prepare``.
        """
        return self._setup(nodes, steps)[0]

    def _setup(self, nodes: int, steps: int) -> tuple[Setup, Batch, Batch, tuple[str, ...]]:
        """Return the checked configuration of so many nodes, and what became of the batch."""
        one = self._resized(1, {}, steps)
        setup = prepare(one)
        before = batch_of(setup.config, setup.release)
        after, changes = fit(before, nodes * self.settings.content.cluster.gpus_per_node)
        overrides = batch_overrides(before, after, setup.release)
        return prepare(self._resized(nodes, overrides, steps)), before, after, changes

    def _resized(self, nodes: int, overrides: Mapping[str, Any], steps: int) -> Settings:
        content = self.settings.content
        changed = content.model_copy(
            update={
                "cluster": content.cluster.model_copy(update={"nodes": nodes}),
                "search": content.search.model_copy(update={"steps": steps}),
                "verl": content.verl.model_copy(
                    update={"overrides": lay_over(content.verl.overrides, overrides)}
                ),
            }
        )
        return replace(self.settings, content=changed)

    def _spec(self, trial: Trial, setup: Setup, batch: Batch) -> TrialSpec:
        one_node = self._one_node.get(trial.seed, ())
        first = next((step for step in one_node if step.step == 1), None)
        updates = -(-batch.prompts // batch.actor.prompts)
        profile = with_gate(rules_of(setup, SEARCH.name), first, updates, batch.rows)
        limits = Limits(restarts=0)
        return trial_spec(setup, trial, profile, limits, steps=setup.steps, validate_first=False)

    def _check_length(self, stage: str, steps: int) -> None:
        for directory in self.workspace.trials(stage):
            record = read(directory.trial, TrialRecord)
            if record is not None and record.steps != steps:
                raise SettingsError(
                    f"{directory.path}: has {record.steps} steps, and {steps} were asked for; ask "
                    "for the same, or move the directory of the stage away"
                )

    def _stop_if_nothing_ran(self, directory: TrialDir, outcome: Outcome) -> None:
        if outcome.ending is not Ending.FAILED or outcome.summary.steps:
            return
        words = "\n".join(f"    {line}" for line in last_words(directory))
        # Whatever kept it from starting may be mended when the command is given again.
        self.workspace.set_aside(directory)
        raise LaunchError(
            f"{directory.path.name}: ended before its first step: {outcome.reason}\n{words}"
        )

    def _conclude(
        self,
        nodes: int,
        verdict: NodeVerdict,
        history: Sequence[Trial],
        proposed: Sequence[ScaledSettings],
        setup: Setup,
        changes: tuple[str, ...],
        calibration: Calibration,
    ) -> NodeResult:
        stage, winner = stage_of(nodes), verdict.winner
        shown = winner or (history[-1] if history else None)
        steps = read_steps(self.workspace.trial(stage, shown.name)) if shown else []
        overrides = {
            key: value
            for key, value in setup.settings.content.verl.overrides.items()
            if self.settings.content.verl.overrides.get(key) != value
        }
        overrides[setup.release.key(Key.NODES) or "trainer.nnodes"] = nodes
        result = NodeResult(
            nodes=nodes,
            calibrated=verdict.calibrated,
            reason=verdict.reason,
            gate=verdict.gate,
            settings=winner.settings if winner else None,
            winner=winner.name if winner else None,
            proposals=tuple(proposed),
            batch=changes,
            overrides=overrides,
            transfers=tuple(self._transfer(t, setup.rows, calibration) for t in history),
            throughput=_throughput(steps),
            throughput_one_node=_throughput(self._measured_on_one_node),
            trials=tuple(history),
            held_fixed=held_fixed(setup.config, setup.release),
        )
        save(self.workspace.stage_result(stage), result)
        self.workspace.decide_once(
            "scale-verdict", stage=stage, trial=result.winner or "", reason=result.reason,
            calibrated=result.calibrated, gate=result.gate,
            settings=as_json(result.settings) if result.settings else None,
        )  # fmt: skip
        return result

    def _transfer(self, trial: Trial, rows: int, calibration: Calibration) -> Transfer:
        steepness = elasticity([p for t in calibration.trials if (p := _point(t)) is not None])
        one_node = self._one_node.get(trial.seed) or self._measured_on_one_node
        predicted = predicted_kl(one_node, trial.settings, rows, steepness)
        measured = trial.outcome.summary.kl if trial.outcome else None
        return Transfer(trial.name, predicted, measured)


def _point(trial: Trial) -> CurvePoint | None:
    outcome = trial.outcome
    if outcome is None or outcome.ending is not Ending.COMPLETED:
        return None
    kl, coefficient = outcome.summary.kl, outcome.summary.coefficient
    return CurvePoint(coefficient, kl) if kl and coefficient else None


def _throughput(steps: Sequence[Step]) -> float | None:
    found = [value for _, value in values(steps, "throughput")]
    half = found[len(found) // 2 :]
    return fmean(half) if half else None
