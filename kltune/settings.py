"""Settings: a preset, ``kltune.yaml`` and the command line, laid over each other.

Every value keeps its origin, so that a report or an export can say where it came from.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kltune.domain.kl import ESTIMATORS
from kltune.domain.outcome import Band
from kltune.errors import SettingsError
from kltune.verl.overrides import bare, lay_over
from kltune.verl.profiler import is_profiler

#: Preset of a first run without a file of settings.
FIRST_PRESET = "cpu-tiny"


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


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one command.

    Attributes:
        content: the checked values.
        origins: where a value came from, by dotted path (``verl.overrides`` is followed by the
            override's key without Hydra's prefix, in brackets).
    """

    content: Content
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def band(self) -> Band:
        """Wanted average reference KL, nats per token."""
        return Band(self.content.band.low, self.content.band.high)

    def origin(self, path: str) -> str:
        """Return where the value at a dotted path came from."""
        return self.origins.get(path, "kltune's default")

    def override_origin(self, key: str) -> str:
        """Return where a verl override came from."""
        return self.origin(f"verl.overrides[{bare(key)}]")

    def names(self, section: str) -> bool:
        """Whether the preset, the file or the command line says anything about a section."""
        return any(path.startswith(f"{section}.") for path in self.origins)

    def identity(self) -> dict[str, Any]:
        """Return what decides the result of a trial: a workspace holds one identity.

        Budgets are left out: a run may be continued with more trials. So is verl's profiler.
        """
        content = self.content.model_dump(mode="json")
        search, cluster = content["search"], dict(content["cluster"])
        del cluster["pending_minutes"], cluster["parallel"]
        return {
            "verl.command": content["verl"]["command"],
            "verl.overrides": {
                key: value
                for key, value in content["verl"]["overrides"].items()
                if not is_profiler(key)
            },
            "verl.env": content["verl"]["env"],
            "cluster": cluster,
            "band": content["band"],
            "search.steps": search["steps"],
            "search.epochs": search["epochs"],
            "search.seed": search["seed"],
            "search.storage": search["storage"],
            "search.study": search["study"],
            "search.space": search["space"],
            "watch": content["watch"],
        }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return one sentence for every value in which two identities differ."""
    flat_old, flat_new = _flat(old), _flat(new)
    return [
        f"{key}: {json.dumps(flat_old.get(key))} there, {json.dumps(flat_new.get(key))} now"
        for key in sorted({*flat_old, *flat_new})
        if flat_old.get(key) != flat_new.get(key)
    ]


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            found.update(_flat(item, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = item
    return found


def presets_dir() -> Path:
    """Return the directory that holds the presets, of a wheel or of a source tree."""
    package = Path(str(files("kltune")))
    inside = package / "presets"
    return inside if inside.is_dir() else package.parent / "presets"


def preset_names() -> list[str]:
    """Return the names of all presets."""
    return sorted(path.stem for path in presets_dir().glob("*.yaml"))


def load(
    preset: str | None = None,
    config: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings of a command.

    Args:
        preset: name of the preset; None takes that of the file, if any.
        config: a ``kltune.yaml``; None for none.
        overrides: verl overrides of ``--set``.
        options: other values of the command line by dotted path, e.g. ``search.trials``; None
            values are left out.

    A layer that gives a length in epochs takes the place of a length in steps below it.

    Raises:
        SettingsError: everything that is wrong in them, with the file that it stands in.
    """
    file_layer = _read(config) if config is not None else {}
    name = preset or file_layer.get("preset")
    layers: list[tuple[str, dict[str, Any]]] = []
    if name is not None:
        layers.append((f"preset {name}", _read_preset(str(name))))
    if config is not None:
        layers.append((str(config), file_layer))
    if overrides:
        layers.append(("--set", {"verl": {"overrides": dict(overrides)}}))
    given = {path: value for path, value in (options or {}).items() if value is not None}
    if "search.epochs" in given:
        given.setdefault("search.steps", None)
    layers += [(_option(path), _nested(path, value)) for path, value in given.items()]

    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        _lay(merged, layer, origin, origins)
    if name is not None:
        merged["preset"] = str(name)
    try:
        return Settings(Content.model_validate(merged), origins)
    except ValidationError as error:
        raise SettingsError([_fault(e, origins) for e in error.errors()]) from None


def _option(path: str) -> str:
    return "--" + path.rsplit(".", 1)[-1].removesuffix("_minutes").replace("_", "-")


def _nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def _read_preset(name: str) -> dict[str, Any]:
    path = presets_dir() / f"{name}.yaml"
    if name not in preset_names():
        near = difflib.get_close_matches(name, preset_names(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise SettingsError(
            f"preset {name!r}: there is no such preset; {hint}there are: "
            f"{', '.join(preset_names())}"
        )
    content: dict[str, Any] = _substitute(_read(path), {"${presets}": str(presets_dir())})
    return content


def _substitute(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _substitute(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, names) for item in value]
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace(name, text)
    return value


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file; `kltune init` writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        raise SettingsError(f"{path}: is not valid YAML: {where}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: must hold settings by name, got a {type(content).__name__}")
    search = content.get("search")
    if isinstance(search, dict) and "epochs" in search:
        search.setdefault("steps", None)
    return content


def _lay(
    below: dict[str, Any], layer: Mapping[str, Any], origin: str, origins: dict[str, str]
) -> None:
    """Lay one layer over what is below; mappings are merged, everything else replaces."""

    def merge(target: dict[str, Any], source: Mapping[str, Any], prefix: str) -> None:
        for key, value in source.items():
            path = f"{prefix}{key}"
            if value is None and path in _MAPPINGS:
                continue  # a section whose every line is commented out
            if path == "verl.overrides" and isinstance(value, Mapping):
                named = {str(k): v for k, v in value.items()}
                target[key] = lay_over(target.get(key) or {}, named)
                origins.update({f"verl.overrides[{bare(k)}]": origin for k in named})
            elif isinstance(value, Mapping) and isinstance(target.get(key, {}), dict):
                merge(target.setdefault(key, {}), value, f"{path}.")
            else:
                target[key] = value
                origins[path] = origin

    merge(below, layer, "")


def _mappings(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every setting that holds settings, or values by name."""
    for name, info in model.model_fields.items():
        path = f"{prefix}{info.alias or name}"
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield path
            yield from _mappings(info.annotation, f"{path}.")
        elif get_origin(info.annotation) is dict:
            yield path


_MAPPINGS = frozenset(_mappings(Content))


def _fault(error: Any, origins: Mapping[str, str]) -> str:
    location: Sequence[Any] = error["loc"]
    path = ".".join(str(part) for part in location)
    parent = ".".join(str(part) for part in location[:-1])
    within = {origin for name, origin in origins.items() if name.startswith(f"{path}.")}
    origin = origins.get(path) or ", ".join(sorted(within)) or origins.get(parent)
    where = f" ({origin})" if origin else ""
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(location[-1]), _fields(location[:-1]), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{path}{where}: there is no such setting{hint}"
    message = error["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    received = error.get("input")
    got = f", got {received!r}" if not isinstance(received, dict) else ""
    return f"{path}{where}: {message}{got}"


def _fields(location: Sequence[Any]) -> list[str]:
    model: Any = Content
    for part in location:
        found = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        if found is None:
            return []
        model = found.annotation
    return list(model.model_fields) if hasattr(model, "model_fields") else []
