"""From one node to many: rules for ``target_kl``, the horizon that keeps the gain, the batch.

Rules propose, trials decide. No paper or thread gives a law for ``target_kl`` against nodes: verl
has one controller, and its batch is global. What does change with the batch is the controller's
gain, rows per step over horizon, so every proposal keeps that constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import gcd

from kltune.domain.kl import KlSettings

#: Protocol: ``target_kl`` is 0.02 on one node and 0.015 on several, and is lowered by this.
STEP = 0.005

#: No rule lowers a target below this, nats per token: half of the protocol's band's lower end,
#: and the noise of one batch's KL is no longer small against it.
FLOOR = 0.005

#: Protocol, step 3: reference KL above which a run is restarted, nats per token.
ALARM = 0.05


class Rule(Enum):
    """A rule for ``target_kl`` on n > 1 nodes, from the target on one node.

    The protocol's formula and its example disagree, so both are here.

    - ``PER_8_NODES``: target - 0.005 - 0.005·n/8. From 0.02 on one node it gives the protocol's
      0.015 for several, less 0.005 for every eight: 0.01 at 8 nodes, as in the worked example.
    - ``LITERAL``: target - 0.005/n, the formula as it is written. It falls *less* the more nodes
      there are.
    - ``HOLD``: the target stays.
    - ``TENSOR_PARALLEL``: target × TP. Only on request: the KL of a token does not depend on how
      the model is split, and at TP=4 it turns the protocol's 0.015 into 0.06, above its alarm.
    """

    PER_8_NODES = "per-8-nodes"
    LITERAL = "literal"
    HOLD = "hold"
    TENSOR_PARALLEL = "tensor-parallel"


@dataclass(frozen=True, slots=True)
class ScaledSettings:
    """What a rule proposes for a number of nodes.

    Attributes:
        rule: where it comes from.
        settings: the KL settings.
        notes: what was done to the target and the horizon, one sentence each.
    """

    rule: Rule
    settings: KlSettings
    notes: tuple[str, ...]


def scaled_target(rule: Rule, target_kl: float, nodes: int, tensor_parallel: int = 1) -> float:
    """Return the target of a rule before the floor, nats per token; may be negative.

    Args:
        rule: see ``Rule``.
        target_kl: target on one node, nats per token.
        nodes: number of nodes; on one every rule leaves the target alone.
        tensor_parallel: ranks that share one copy of the model in the rollout.
    """
    if rule is Rule.TENSOR_PARALLEL:
        return target_kl * tensor_parallel
    if nodes == 1 or rule is Rule.HOLD:
        return target_kl
    if rule is Rule.LITERAL:
        return target_kl - STEP / nodes
    return target_kl - STEP - STEP * nodes / 8


def scale(
    rule: Rule,
    one_node: KlSettings,
    nodes: int,
    rows_before: int,
    rows_after: int,
    tensor_parallel: int = 1,
) -> ScaledSettings:
    """Return what a rule makes of the settings of one node.

    Args:
        rule: see ``Rule``.
        one_node: calibrated settings of one node.
        nodes: number of nodes.
        rows_before, rows_after: sequences of a step on one node and on ``nodes``.
        tensor_parallel: ranks that share one copy of the model in the rollout.
    """
    if one_node.target_kl is None:
        return ScaledSettings(rule, one_node, ("a fixed coefficient has no target to scale",))
    notes = []
    wanted = scaled_target(rule, one_node.target_kl, nodes, tensor_parallel)
    # A target that the user put below the floor himself is not raised to it.
    target = max(wanted, min(FLOOR, one_node.target_kl))
    notes.append(f"target_kl {one_node.target_kl:.4g} -> {target:.4g} by the rule {rule.value}")
    if target > wanted:
        notes.append(f"the rule gives {wanted:.4g}; held at the floor of {target:.4g}")
    if rule is Rule.TENSOR_PARALLEL and target > ALARM:
        notes.append(
            f"{target:.4g} is above the protocol's own alarm of {ALARM:g} nats per token, so a "
            "run that holds this target is restarted by it"
        )
    horizon = scaled_horizon(one_node.horizon, rows_before, rows_after)
    if horizon is not None and horizon != one_node.horizon:
        notes.append(
            f"horizon {one_node.horizon:.6g} -> {horizon:.6g} sequences: a step has {rows_after} "
            f"instead of {rows_before}, and the gain stays {rows_after / horizon:.3g}"
        )
    return ScaledSettings(rule, replace(one_node, target_kl=target, horizon=horizon), tuple(notes))


def scaled_horizon(horizon: float | None, rows_before: int, rows_after: int) -> float | None:
    """Return the horizon, in sequences, that keeps the gain when the rows of a step change.

    The gain, rows over horizon, is the share by which one step can move the coefficient (times
    0.2). With the horizon left alone, a batch five times the horizon turns the coefficient
    negative.
    """
    return None if horizon is None else horizon * rows_after / rows_before


def proposals(
    one_node: KlSettings,
    nodes: int,
    rows_before: int,
    rows_after: int,
    first: Rule = Rule.PER_8_NODES,
    tensor_parallel: int | None = None,
) -> list[ScaledSettings]:
    """Return what the rules propose, the chosen one first; each setting once.

    Args:
        one_node, nodes, rows_before, rows_after: see ``scale``.
        first: rule that is tried first.
        tensor_parallel: size to multiply the target with; None leaves that rule out.
    """
    order = [first, *(rule for rule in Rule if rule is not first)]
    if tensor_parallel is None:
        order.remove(Rule.TENSOR_PARALLEL)
    found: dict[tuple[object, ...], ScaledSettings] = {}
    for rule in order:
        scaled = scale(rule, one_node, nodes, rows_before, rows_after, tensor_parallel or 1)
        found.setdefault(scaled.settings.key(), scaled)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """Prompts of one update, and rows that a GPU takes at a time; None where it decides itself."""

    prompts: int
    micro: int | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Sizes of a training step; the batch and its mini batches count prompts of all GPUs.

    Attributes:
        prompts: prompts of a step.
        responses: responses to each prompt.
        actor, critic: mini batches; None without a critic.
        rollout_micro, reference_micro: rows that a GPU takes at a time for log probabilities.
    """

    prompts: int
    responses: int
    actor: MiniBatch
    critic: MiniBatch | None = None
    rollout_micro: int | None = None
    reference_micro: int | None = None

    @property
    def rows(self) -> int:
        """Sequences of a step."""
        return self.prompts * self.responses


def fit(batch: Batch, ranks: int) -> tuple[Batch, tuple[str, ...]]:
    """Return the batch nearest to this one that divides over the ranks, and what was changed.

    Prompts are added, never taken away, and the number of updates of a step stays. Micro batches
    are lowered to the next size that divides; that is memory and rounding, and changes no
    gradient. verl checks some of this before it starts and the rest in its workers, after the
    model is loaded.

    Args:
        batch: sizes on one node.
        ranks: data-parallel ranks, nodes times GPUs per node.
    """
    unit = ranks // gcd(ranks, batch.responses)
    actor = _fit_mini(batch.actor, batch.responses, ranks)
    updates, rest = divmod(batch.prompts, batch.actor.prompts)
    prompts = updates * actor.prompts if updates and not rest else _up(batch.prompts, unit)
    critic = batch.critic and _fit_mini(batch.critic, batch.responses, ranks)
    rows_per_rank = prompts * batch.responses // ranks
    fitted = replace(
        batch,
        prompts=prompts,
        actor=actor,
        critic=critic,
        rollout_micro=_fit_micro(batch.rollout_micro, rows_per_rank),
        reference_micro=_fit_micro(batch.reference_micro, rows_per_rank),
    )
    return fitted, tuple(_changes(batch, fitted))


def _fit_mini(mini: MiniBatch, responses: int, ranks: int) -> MiniBatch:
    prompts = _up(mini.prompts, ranks // gcd(ranks, responses))
    return MiniBatch(prompts, _fit_micro(mini.micro, prompts * responses // ranks))


def _fit_micro(micro: int | None, rows: int) -> int | None:
    """Return the largest size up to ``micro`` that divides the rows of a rank."""
    if micro is None:
        return None
    return max(size for size in range(1, min(micro, rows) + 1) if rows % size == 0)


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _changes(before: Batch, after: Batch) -> Sequence[str]:
    pairs = [
        ("prompts per step", before.prompts, after.prompts),
        ("prompts per update", before.actor.prompts, after.actor.prompts),
        ("rows per GPU at a time (actor)", before.actor.micro, after.actor.micro),
        ("rows per GPU at a time (rollout)", before.rollout_micro, after.rollout_micro),
        ("rows per GPU at a time (reference)", before.reference_micro, after.reference_micro),
    ]
    if before.critic is not None and after.critic is not None:
        pairs += [
            ("prompts per update (critic)", before.critic.prompts, after.critic.prompts),
            ("rows per GPU at a time (critic)", before.critic.micro, after.critic.micro),
        ]
    return [f"{name} {old} -> {new}" for name, old, new in pairs if old != new]
