"""What ``kltune.yaml`` may hold, section by section, and the rules of each value."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kltune.domain.kl import ESTIMATORS


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


#: What a process can be given: no null byte.
_Word = Annotated[str, Field(pattern=r"^[^\x00]*$")]

#: A finite number above 0.
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Verl(_Section):
    """How verl is started."""

    # YAML reads ``OMP_NUM_THREADS: 1`` as a number, and a variable is text.
    model_config = ConfigDict(coerce_numbers_to_str=True)

    command: list[_Word] = Field(["python3", "-m", "verl.trainer.main_ppo"], min_length=1)
    overrides: dict[str, Any] = {}
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], _Word] = {}


class Ray(_Section):
    """A Ray cluster that is up; ``address`` is its dashboard's."""

    address: str = "http://127.0.0.1:8265"


class Slurm(_Section):
    """``options`` of sbatch, each as it stands after ``#SBATCH``."""

    options: list[str] = []

    @model_validator(mode="after")
    def _options(self) -> Slurm:
        wrong = [o for o in self.options if not o.startswith("-") or "\n" in o]
        if wrong:
            raise ValueError(f"options must begin with a dash, one a line, got {wrong}")
        return self


class Cluster(_Section):
    """Where trials run.

    ``parallel`` trials run side by side where there is room for them, each with ``nodes`` times
    ``gpus_per_node`` GPUs of its own. ``pending_minutes`` is how long a trial may wait for its
    machines. ``shared`` says whether they see the workspace; where they do not, metrics are read
    from what verl prints.
    """

    launcher: Literal["local", "ray", "slurm"] = "local"
    nodes: int = Field(1, ge=1)
    gpus_per_node: int = Field(8, ge=1)
    parallel: int = Field(1, ge=1, le=1000)
    ray: Ray = Ray()
    slurm: Slurm = Slurm()
    pending_minutes: float = Field(60.0, gt=0)
    shared: bool = True


class BandSection(_Section):
    """Wanted average reference KL, nats per token."""

    low: float = Field(0.01, ge=0, allow_inf_nan=False)
    high: float = Field(0.03, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _ordered(self) -> BandSection:
        if self.low >= self.high:
            raise ValueError(f"low must be below high, got {self.low:g} and {self.high:g}")
        return self


Range = tuple[float, float]


class Space(_Section):
    """What the search may change, and how far. A dimension that is null stays as the user has it.

    ``kl_coef``, ``target_kl`` and ``horizon`` are ranges (searched in log scale), ``clip_ratio``
    is a range, ``kl_penalty`` a list of estimators.
    """

    kl_coef: Range = (0.0001, 1.0)
    target_kl: Range | None = (0.005, 0.05)
    horizon: Range | None = None
    clip_ratio: Range | None = None
    kl_penalty: list[str] | None = None

    @model_validator(mode="after")
    def _sound(self) -> Space:
        faults = []
        for name in ("kl_coef", "target_kl", "horizon", "clip_ratio"):
            bounds = getattr(self, name)
            if bounds is None:
                continue
            low, high = bounds
            if not 0 < low < high < float("inf"):
                faults.append(
                    f"{name} must be [low, high] with 0 < low < high, got {list(bounds)}"
                )
        known = {*ESTIMATORS, *ESTIMATORS.values()}
        for estimator in self.kl_penalty or []:
            if estimator not in known:
                faults.append(f"kl_penalty: {estimator!r} is none of {', '.join(sorted(known))}")
        if faults:
            raise ValueError("; ".join(faults))
        return self


class SearchSection(_Section):
    """Budget and space of the search.

    ``steps`` counts training steps of a trial; without it ``epochs`` of the training data are
    made. ``timeout_minutes`` and ``max_gpu_hours`` bound all trials of a stage together.
    ``study`` is the name under which several kltune, each with a workspace of its own, share one
    study and its budget in ``storage``.
    """

    trials: int = Field(12, ge=0)
    steps: int | None = Field(None, ge=2)
    epochs: _Positive = 10
    timeout_minutes: _Positive | None = None
    max_gpu_hours: _Positive | None = None
    storage: str | None = None
    study: Annotated[str, Field(pattern=r"^[\w.-]{1,200}$")] | None = None
    seed: int = Field(1, ge=0)
    confirmations: int = Field(1, ge=0, le=20)
    kl_off: bool = False
    space: Space = Space()

    @field_validator("storage")
    @classmethod
    def _readable(cls, url: str | None) -> str | None:
        # Drivers and the hiding of passwords would both take the rest for the host.
        if url is not None and url.partition("://")[2].count("@") > 1:
            raise ValueError("an @ in a user name or password must be written %40")
        return url

    @model_validator(mode="after")
    def _reachable(self) -> SearchSection:
        if self.study is not None and self.storage is None:
            raise ValueError("study needs search.storage: the URL of a server that all can reach")
        return self


class Watch(_Section):
    """Rules that end a trial, and the limits of its restarts."""

    profile: str = "protocol"
    restarts: int = Field(3, ge=0)
    kl_coef_max: _Positive = 1.0
    cooldown: int = Field(5, ge=0)
    thresholds: dict[str, float] = {}


class Reward(_Section):
    """One source of reward.

    ``rule`` is ``verl`` (its own scorer of the data source), ``pattern`` (1 where the regular
    expression is found in the answer), ``length`` (characters divided by ``per``), ``function``
    (``path.py:name``, called like verl's own) or ``model`` (a classifier behind vLLM's API at
    ``url``, or verl's own reward model). The score is the sum of ``weight`` times what a source
    gives, at most ``cap``; nothing where a ``required`` source gives nothing. A weight of 0 logs a
    source and does not reward it.
    """

    rule: Literal["verl", "pattern", "length", "function", "model"]
    weight: float = Field(1.0, allow_inf_nan=False)
    cap: float | None = Field(None, allow_inf_nan=False)
    required: bool = False
    pattern: str | None = None
    per: float | None = Field(None, gt=0, allow_inf_nan=False)
    function: str | None = Field(None, pattern=r".+\.py:\w+$")
    model: str | None = None
    url: str | None = Field(None, pattern=r"^https?://")

    @model_validator(mode="after")
    def _fits(self) -> Reward:
        needed = {"pattern": "pattern", "length": "per", "function": "function", "model": "model"}
        for rule, name in needed.items():
            if (getattr(self, name) is not None) != (self.rule == rule):
                verb = "needs" if self.rule == rule else "takes no"
                raise ValueError(f"rule {self.rule} {verb} {name}")
        if self.url is not None and self.rule != "model":
            raise ValueError(f"rule {self.rule} takes no url")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(f"pattern is no regular expression: {error}") from None
        return self


#: What verl itself calls a number of an answer.
_TAKEN = {"score", "acc", "reward", "pred"}


class Validate(_Section):
    """What is validated, and how often.

    ``tasks`` are ``gsm8k``, ``aime24``, ``aime25`` or parquet files in verl's schema; none takes
    verl's own ``data.val_files``. ``samples`` answers are drawn to each problem, greedily where it
    is 1. ``pass_at`` asks for pass@k besides pass@1.
    """

    tasks: list[str] = []
    seeds: int = Field(3, ge=1, le=50)
    samples: int = Field(1, ge=1)
    temperature: float = Field(1.0, gt=0)
    pass_at: list[int] = []

    @model_validator(mode="after")
    def _enough(self) -> Validate:
        if any(not 1 <= k <= self.samples for k in self.pass_at):
            raise ValueError(
                f"pass_at must lie between 1 and samples ({self.samples}), got {self.pass_at}"
            )
        return self


class DriftSection(_Section):
    """Share of changed training data from which a calibration is to be made again, 0 to 1."""

    limit: float = Field(0.1, gt=0, le=1)


class Scale(_Section):
    """From one node to many. ``steps`` null takes the baseline's; ``tensor_parallel`` null leaves
    the protocol's rule ``target_kl *= TP`` out.
    """

    nodes: list[int] = [8]
    rule: Literal["per-8-nodes", "literal", "hold", "tensor-parallel"] = "per-8-nodes"
    trials: int = Field(6, ge=1)
    steps: int | None = Field(None, ge=2)
    tensor_parallel: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _sound(self) -> Scale:
        if not self.nodes or min(self.nodes) < 1:
            raise ValueError(f"nodes must be numbers of 1 and more, got {self.nodes}")
        if self.rule == "tensor-parallel" and self.tensor_parallel is None:
            raise ValueError("rule tensor-parallel needs scale.tensor_parallel")
        return self


class Content(_Section):
    """Everything that ``kltune.yaml`` may hold."""

    preset: str | None = None
    about: dict[str, Any] = {}
    verl: Verl = Verl()
    cluster: Cluster = Cluster()
    band: BandSection = BandSection()
    search: SearchSection = SearchSection()
    watch: Watch = Watch()
    scale: Scale = Scale()
    rewards: dict[Annotated[str, Field(pattern=r"^[A-Za-z]\w*$")], Reward] = {}
    validation: Validate = Field(Validate(), alias="validate")
    drift: DriftSection = DriftSection()

    @model_validator(mode="after")
    def _names_are_free(self) -> Content:
        if taken := sorted(_TAKEN & self.rewards.keys()):
            raise ValueError(
                f"rewards: {', '.join(taken)} is a name of verl's own; choose another"
            )
        return self
