"""MLflow stores, SQLite and file, read with MLflow's own client."""

from __future__ import annotations

import math
import os
import re
import sys
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

from kltune.domain.steps import Step
from kltune.errors import MetricsError
from kltune.verl.metrics import step_record

#: Runs named in the message when a store holds several.
_NAMED_RUNS = 8

#: MLflow has no ``@`` in names; verl writes ``mean@1`` as ``mean_at_1``.
_AT = re.compile(r"_at_(?=\d)")


class MlflowReader:
    """Reads one run of a store.

    MLflow gives whole histories only, so a poll reads them again when the run has a newer value,
    and returns the steps after the last one that it returned.

    Args:
        source: a SQLite file, a file store's directory or a tracking URI; ``#RUN_ID`` behind it
            chooses a run where there are several.
    """

    format = "mlflow"
    ended = False

    def __init__(self, source: str):
        self._source, _, self._run = source.partition("#")
        self._client = _client(self._source) if self._exists() else None
        self._returned = -1
        self._latest: dict[str, float] = {}
        self._held_back: list[Step] = []

    def poll(self) -> list[Step]:
        """Return the steps after which another one has begun."""
        if self._client is None:
            if not self._exists():
                return []
            self._client = _client(self._source)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                steps = self._new_steps(self._client)
        except MetricsError:
            raise
        except Exception as error:  # MLflow's and SQLAlchemy's many kinds
            raise MetricsError(f"{self._source}: MLflow cannot read it: {error}") from error
        # verl logs the numbers of a step in one call, which MLflow stores one by one.
        done, self._held_back = steps[:-1], steps[-1:]
        if done:
            self._returned = done[-1].step
        return done

    def finish(self) -> list[Step]:
        """Return the last step, which no other follows."""
        steps, self._held_back = self._held_back, []
        if steps:
            self._returned = steps[-1].step
        return steps

    def close(self) -> None:
        """Let go of the client."""
        self._client = None

    def _exists(self) -> bool:
        return ":" in self._source or Path(self._source).exists()

    def _new_steps(self, client: Any) -> list[Step]:
        run_id = self._run or _only_run(client, self._source)
        latest = dict(client.get_run(run_id).data.metrics)
        if latest == self._latest:
            return self._held_back
        self._latest = latest
        data: defaultdict[int, dict[str, float]] = defaultdict(dict)
        for name in latest:
            for point in client.get_metric_history(run_id, name):
                if point.step > self._returned:
                    data[point.step][_AT.sub("@", name)] = _unclipped(point.value)
        return [step_record(step, numbers) for step, numbers in sorted(data.items())]


def _only_run(client: Any, source: str) -> str:
    experiments = [found.experiment_id for found in client.search_experiments()]
    runs = client.search_runs(experiments) if experiments else []
    if len(runs) == 1:
        return str(runs[0].info.run_id)
    named = [f"{source}#{run.info.run_id} ({run.info.run_name})" for run in runs[:_NAMED_RUNS]]
    way_out = ", name one: " + ", ".join(named) if named else ""
    raise MetricsError(f"{source}: holds {len(runs)} runs{way_out}")


def _unclipped(value: float) -> float:
    # SQL stores of MLflow keep the largest float in place of infinity.
    return math.copysign(math.inf, value) if abs(value) == sys.float_info.max else value


def _client(source: str) -> Any:
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise MetricsError(
            "reading MLflow stores needs mlflow: pip install 'kltune[mlflow]'"
        ) from error
    path = Path(source)
    if path.is_file():
        uri = f"sqlite:///{path.resolve()}"
    elif path.is_dir():
        uri = path.resolve().as_uri()
        # MLflow 3 refuses file stores unless told that they are meant; they are only read here.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    else:
        uri = source
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return MlflowClient(tracking_uri=uri)
    except Exception as error:
        raise MetricsError(f"{source}: MLflow cannot open it: {error}") from error
