"""One profiled step on many nodes: how much of its time the ranks spend in communication."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kltune.calibration.batches import micro_batch
from kltune.calibration.preflight import Setup
from kltune.calibration.scale import Scaling
from kltune.calibration.scaled import NodeResult
from kltune.calibration.specs import rules_of, trial_spec
from kltune.domain.attempts import Limits
from kltune.domain.communication import Advice, RankShare, advise
from kltune.domain.outcome import Ending
from kltune.domain.profiles import SEARCH
from kltune.domain.trials import Role, Trial
from kltune.errors import LaunchError, MetricsError, NotCalibratedError, SettingsError
from kltune.launchers import open_launcher
from kltune.traces import read_shares
from kltune.trial import TrialSpec, run_trial
from kltune.trial.records import save
from kltune.trial.run import last_words
from kltune.verl.profiler import profiler_overrides, profiler_tool

#: Training steps of the run, of which the last is profiled: kernels are compiled and memory is
#: taken in the first two.
STEPS = 3

#: With more ranks than this, the first of each node stands for its node: the trace of a step takes
#: some 100 MB a rank.
_ALL_RANKS = 16


@dataclass(frozen=True, slots=True)
class StepProfile:
    """What verl's profiler saw of one step.

    Attributes:
        nodes: how many.
        trial: the trial whose settings it trains with.
        tool: verl's profiler.
        step: the profiled step.
        traces: directory of the traces.
        shares: communication of every profiled rank, while it trains; generation is left out.
        advice: what the protocol says to it, with the run's own micro batch.
    """

    nodes: int
    trial: str
    tool: str
    step: int
    traces: str
    shares: tuple[RankShare, ...]
    advice: Advice


def check_profiler(setup: Setup) -> str:
    """Return verl's profiler in a configuration, before anything is spent on it.

    Raises:
        SettingsError: it shows no communication, or the traces would stay on machines that kltune
            does not see.
    """
    if not setup.settings.content.cluster.shared:
        raise SettingsError(
            "--profile: the machines write traces into the workspace, and cluster.shared is "
            "false; put the workspace where all of them see it"
        )
    return profiler_tool(setup.config, setup.release)


def profile_step(scaling: Scaling, result: NodeResult) -> StepProfile:
    """Train a few steps as a number of nodes was calibrated, and profile the last.

    May be called again after a kill at any moment; once it has ended, its traces are read again.

    Args:
        scaling: the scale stage, run to its end.
        result: what it found on that number of nodes.

    Raises:
        NotCalibratedError: it found no settings there.
        SettingsError: see ``check_profiler``.
        LaunchError: the run cannot be started, or ends before its last step.
        MetricsError: there is no trace, or none that can be read.
        KeyboardInterrupt: passed on after the run was ended.
    """
    if result.settings is None or result.winner is None:
        raise NotCalibratedError(f"{result.nodes} nodes, nothing to profile: {result.reason}")
    workspace = scaling.workspace
    setup = scaling.setup(result.nodes, STEPS)
    tool = check_profiler(setup)
    seed = setup.settings.content.search.seed
    trial = Trial(f"{result.winner}-{tool}", Role.PROFILE, result.settings, seed)
    directory = workspace.trial(f"profile-{result.nodes}", trial.name)
    with workspace.locked():
        launcher = open_launcher(setup.settings.content.cluster)
        outcome = run_trial(_spec(trial, setup), directory, workspace, launcher, scaling.observe)
        if outcome.ending is not Ending.COMPLETED:
            words = "\n".join(f"    {line}" for line in last_words(directory))
            # What kept it from its end may be mended when the command is given again.
            workspace.set_aside(directory)
            raise LaunchError(f"{trial.name}: ended before its profile: {outcome.reason}\n{words}")
        traces = directory.attempts()[-1].traces
        if not traces.is_dir() or not any(traces.iterdir()):
            raise MetricsError(
                f"{traces}: verl's profiler ({tool}) left nothing here; reports of Nsight may lie "
                "in logs/nsight of Ray's session on each machine, and kltune comm reads them"
            )
        shares = tuple(read_shares([traces]))
        profile = StepProfile(
            nodes=result.nodes,
            trial=result.winner,
            tool=tool,
            step=STEPS,
            traces=str(traces),
            shares=shares,
            advice=advise(shares, micro_batch(setup.settings)),
        )
        save(workspace.stage_result(f"profile-{result.nodes}"), profile)
        workspace.decide_once(
            "profile", stage=f"profile-{result.nodes}", trial=trial.name, nodes=result.nodes,
            advice=profile.advice.text, overrides=dict(profile.advice.overrides),
        )  # fmt: skip
    return profile


def _spec(trial: Trial, setup: Setup) -> TrialSpec:
    cluster = setup.settings.content.cluster
    ranks = _ranks(cluster.nodes, cluster.gpus_per_node)
    spec = trial_spec(
        setup,
        trial,
        rules_of(setup, SEARCH.name),
        Limits(restarts=0),
        steps=STEPS,
        validate_first=False,
        overrides=profiler_overrides(setup.config, setup.release, STEPS, ranks),
    )
    # It is not scored, and a validation may take longer than its steps.
    return replace(spec, test_freq=-1, keep_traces=True)


def _ranks(nodes: int, gpus_per_node: int) -> range:
    """Return the ranks to profile; verl numbers them node by node."""
    ranks = nodes * gpus_per_node
    return range(0, ranks, 1 if ranks <= _ALL_RANKS else gpus_per_node)
