"""The scale stage: every number of nodes against one."""

from __future__ import annotations

from collections.abc import Iterator

from kltune.calibration.profiling import StepProfile
from kltune.calibration.report import Report
from kltune.calibration.scaled import STAGE, NodeResult, Transfer
from kltune.report.document import Block, Section, Table, Text
from kltune.report.rows import short
from kltune.report.trials import course_plot, trial_table


def nodes(report: Report, workspace: str) -> Section:
    """Return what was found on each number of nodes, or how to find it."""
    stages = sorted({r.stage for r in report.runs if r.stage.startswith(STAGE)}, key=_number)
    blocks = tuple(block for stage in stages for block in _nodes(report, stage, workspace))
    missing = Text("Not carried over to more nodes:", f"kltune scale --nodes 8{workspace}")
    return Section("scale", "Scale", blocks or (missing,))


def _number(stage: str) -> int:
    return int(stage.removeprefix(STAGE))


def _nodes(report: Report, stage: str, workspace: str) -> Iterator[Block]:
    number, runs = _number(stage), report.of(stage)
    result = next((found for found in report.nodes if found.nodes == number), None)
    if result is None:
        text = f"{number} nodes: not finished with the settings that one node has now:"
        yield Text(text, f"kltune scale --nodes {number}{workspace}")
    else:
        yield from _found(result)
    winner = result.winner if result is not None else None
    yield course_plot(stage, runs, report.band, winner)
    yield trial_table(runs, report.band)
    if result is not None:
        rows = tuple(_transfer(found) for found in result.transfers)
        columns = ("trial", "KL predicted from one node", "KL measured", "transfer error")
        yield Table(columns, rows, "Reference KL, nats/token, mean over the last half.")
    for profile in report.profiles:
        if profile.nodes == number:
            yield _communication(profile)
            yield Text(profile.advice.text)


def _found(result: NodeResult) -> Iterator[Block]:
    done = "calibrated" if result.calibrated else "not calibrated"
    yield Text(f"{result.nodes} nodes, {done}: {result.reason}")
    gate = "passed" if result.gate is None else f"failed: {result.gate}"
    rows = [("consistency gate", gate)]
    rows += [
        (f"rule {proposal.rule.value}", f"{proposal.settings.describe()}; {note}")
        for proposal in result.proposals
        for note in ["; ".join(proposal.notes)]
    ]
    rows += [("batch", change) for change in result.batch]
    if result.settings is not None:
        rows.append((f"settings ({result.winner})", result.settings.describe()))
    if result.throughput and result.throughput_one_node:
        share = result.throughput / result.throughput_one_node
        rows.append(
            (
                "throughput",
                f"{result.throughput:.4g} tokens/s per GPU, {share:.0%} of the "
                f"{result.throughput_one_node:.4g} on one node",
            )
        )
    yield Table((f"{result.nodes} nodes", ""), tuple(rows))


def _transfer(found: Transfer) -> tuple[str, ...]:
    error = "" if found.error is None else f"{round(found.error, 3) + 0.0:+.1%}"
    return found.trial, short(found.predicted_kl), short(found.measured_kl), error


def _communication(profile: StepProfile) -> Table:
    rows = tuple(
        (
            rank.rank,
            f"{rank.seconds:.3g}",
            f"{rank.communication:.3g}",
            f"{rank.share:.1%}",
            ", ".join(f"{name} {seconds:.3g}" for name, seconds in rank.families.items()),
        )
        for rank in profile.shares
    )
    caption = f"Step {profile.step} with the settings of {profile.trial}, {profile.tool} profiler."
    return Table(("rank", "seconds", "communication", "share", "operations (s)"), rows, caption)
