"""From the answers of a validation to results by problem."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kltune.errors import MetricsError
from kltune.validation.results import Results, Tally
from kltune.verl.datasets import Problem
from kltune.verl.dumps import Answer


def tally(answers: Sequence[Answer], tasks: Mapping[str, Sequence[Problem]]) -> dict[str, Results]:
    """Return the results of a validation by task.

    verl's dump names neither task nor row, and its order is not that of the file; an answer
    belongs to the problem whose text stands in its prompt. Rows with the same text and expected
    answer are one problem.

    Raises:
        MetricsError: an answer belongs to no problem, or a problem has no answer.
    """
    known: dict[str | None, list[tuple[str, Problem]]] = defaultdict(list)
    for task, problems in tasks.items():
        for problem in problems:
            known[problem.truth].append((task, problem))
            known[None].append((task, problem))
    counts: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for answer in answers:
        # Of two texts of which one holds the other, the longer one is meant.
        found = [c for c in known.get(answer.truth, ()) if c[1].text in answer.prompt]
        if not found:
            raise MetricsError(
                f"validation: the answer to {answer.prompt[:60]!r} belongs to no problem of "
                f"{', '.join(tasks)}; is data.max_prompt_length so small that prompts are cut?"
            )
        task, problem = max(found, key=lambda c: len(c[1].text))
        counts[task, problem.text + "\0" + problem.truth].append(answer.right)
    results = {}
    for task, problems in tasks.items():
        wanted = {p.text + "\0" + p.truth: p.name for p in problems}
        missing = [key for key in wanted if (task, key) not in counts]
        if missing:
            raise MetricsError(
                f"validation: {len(missing)} of {len(wanted)} problems of {task} have no answer; "
                "verl leaves out prompts that are too long with data.filter_overlong_prompts"
            )
        results[task] = Results(
            {
                name: Tally(sum(counts[task, key]), len(counts[task, key]))
                for key, name in wanted.items()
            }
        )
    return results
