"""The search: which KL settings to try next. The only importer of Optuna.

Points come from three places, in this order: known good guesses, the curve of reference KL over
the coefficient (``kltune.domain.curve``), and Optuna's TPE sampler. All of them are trials of one
Optuna study, so that its storage, its samplers and its dashboards see everything.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import isfinite, log
from typing import TYPE_CHECKING, Any

from kltune.domain.curve import CurvePoint, coefficient_for, must_exceed
from kltune.domain.kl import KlSettings, Placement, reachable, smallest_horizon
from kltune.domain.outcome import Band, Ending, Outcome
from kltune.domain.protocol import FALL_BACK, ONE_NODE
from kltune.domain.rules.band import KL_ABOVE_BAND
from kltune.domain.rules.divergence import KL_DIVERGENCE
from kltune.errors import LaunchError

if TYPE_CHECKING:
    import optuna

#: Where inside the band the curve is asked for a coefficient, one after the other: the middle
#: first, then to either side. Shares of the way from low to high, in log scale.
AIMS = (0.5, 0.8, 0.2)

#: Rules that stop a trial because its reference KL is too high.
DIVERGED = {KL_ABOVE_BAND.id, KL_DIVERGENCE.id}

#: Keys of a trial's user attributes.
_OWNER, _SETTINGS, _KL_OFF = "kltune:workspace", "kltune:settings", "kltune:kl-off"
_SOURCE = "kltune:source"

_REDRAWS = 20


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What may be changed. A None dimension stays as the user has it.

    Attributes:
        kl_coef, target_kl, horizon, clip_ratio: (low, high).
        estimators: verl's names to choose from.
    """

    kl_coef: tuple[float, float]
    target_kl: tuple[float, float] | None = None
    horizon: tuple[float, float] | None = None
    clip_ratio: tuple[float, float] | None = None
    estimators: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A trial of which the search knows the end."""

    settings: KlSettings
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Proposal:
    """A point to run.

    Attributes:
        number: Optuna's number of the trial.
        settings: the point.
        source: ``guess``, ``curve``, ``sampler`` or ``kl-off``.
    """

    number: int
    settings: KlSettings
    source: str


class Search:
    """One Optuna study.

    Args:
        storage: URL of Optuna's storage.
        name: the study's name.
        owner: id of the workspace; several may share a study.
        space: what may be changed.
        base: the user's own settings; they fill what the space leaves alone.
        band: wanted reference KL, nats per token.
        rows: sequences of a step.
        steps: steps of a trial.
        seed: of the sampler.
        kl_off: whether "KL off" is tried as well.
        known: settings that were good before; they are tried first.

    Raises:
        LaunchError: the storage cannot be reached.
    """

    def __init__(
        self,
        storage: str,
        name: str,
        owner: str,
        space: SearchSpace,
        base: KlSettings,
        band: Band,
        rows: int,
        steps: int,
        seed: int,
        kl_off: bool = False,
        known: Sequence[KlSettings] = (),
    ):
        self.owner = owner
        self.space = space
        self.base = base
        self.band = band
        self.rows = rows
        self.steps = steps
        self.kl_off = kl_off
        self.known = known
        self._study = _open_study(storage, name, seed)

    def unfinished(self) -> list[Proposal]:
        """Return the points of this workspace that were proposed and never told."""
        with _storage():
            return list(self._unfinished())

    def _unfinished(self) -> Iterator[Proposal]:
        import optuna

        running = self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        for trial in running:
            if trial.user_attrs.get(_OWNER) != self.owner:
                continue
            settings = trial.user_attrs.get(_SETTINGS)
            if settings is None:
                # A kill came between the question and the answer: nothing was ever run.
                self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            else:
                point = KlSettings(**{**settings, "placement": Placement(settings["placement"])})
                yield Proposal(trial.number, point, trial.user_attrs[_SOURCE])

    def ask(self, seen: Sequence[Seen]) -> Proposal | None:
        """Return the next point to run; one that was run before never comes again.

        Args:
            seen: every trial whose end is known, the reference included.

        Returns:
            None when the space holds nothing new.
        """
        with _storage():
            return self._ask(seen)

    def _ask(self, seen: Sequence[Seen]) -> Proposal | None:
        wanted, source = self._wanted(seen)
        if wanted is not None and not self._is_waiting(wanted):
            attributes = {_KL_OFF: True} if wanted.kl_coef == 0 else None
            self._study.enqueue_trial(self._params(wanted), user_attrs=attributes)
        known = {s.settings.key(): s.outcome for s in seen}
        for _ in range(_REDRAWS):
            trial = self._study.ask()
            trial.set_user_attr(_OWNER, self.owner)
            settings = self._suggest(trial)
            asked_for = wanted is not None and wanted.key() == settings.key()
            trial.set_user_attr(_SOURCE, source if asked_for else "sampler")
            trial.set_user_attr(
                _SETTINGS, {**asdict(settings), "placement": settings.placement.value}
            )
            if settings.key() not in known:
                return Proposal(trial.number, settings, source if asked_for else "sampler")
            # Drawn again: told at once, so that nothing is run twice.
            self.tell(trial.number, known[settings.key()])
        return None

    def _is_waiting(self, settings: KlSettings) -> bool:
        """Whether a kill came between the wish for this point and its proposal."""
        from optuna.trial import TrialState

        waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        params = self._params(settings)
        return any(t.system_attrs.get("fixed_params") == params for t in waiting)

    def name(self, number: int) -> str:
        """Return the name of the trial's directory."""
        return f"search-{number:03d}"

    def tell(self, number: int, outcome: Outcome) -> None:
        """Give the end of a point to the study; a second time is not counted."""
        with _storage():
            self._tell(number, outcome)

    def _tell(self, number: int, outcome: Outcome) -> None:
        import optuna
        from optuna.trial import TrialState

        trials = self._study.get_trials(deepcopy=False)
        if number >= len(trials):
            raise LaunchError(
                f"search.storage: the study does not hold trial {number} of this workspace; it "
                "was removed, or another is named now; start over with --fresh"
            )
        frozen = trials[number]
        if frozen.state.is_finished():
            return
        # The id is Optuna's only way back to a trial that another process asked for.
        trial = optuna.trial.Trial(self._study, frozen._trial_id)
        for name, value in violations(outcome, self.band).items():
            trial.set_constraint(name, value)
        objective = outcome.summary.objective
        if outcome.ending is Ending.COMPLETED and objective is not None and isfinite(objective):
            self._study.tell(number, objective)
        elif outcome.ending is Ending.STOPPED:
            # Without a value on the way the sampler ranks it below everything that completed.
            self._study.tell(number, state=TrialState.PRUNED)
        else:
            self._study.tell(number, state=TrialState.FAIL)

    def _wanted(self, seen: Sequence[Seen]) -> tuple[KlSettings | None, str]:
        """Return the point that something better than sampling asks for, and what that is."""
        known = {s.settings.key() for s in seen}
        curve = curve_points(seen, self.band)
        if self.kl_off and self._off.key() not in known:
            return self._off, "kl-off"
        for guess in self._guesses():
            if guess.key() not in known and not self._excluded(guess, curve):
                return guess, "guess"
        for share in AIMS:
            low, high = self.band.low or self.band.high / 100, self.band.high
            aim = low * (high / low) ** share
            if any(_near(p.kl, aim, low, high) for p in curve):
                continue
            coefficient = coefficient_for(aim, curve, *self.space.kl_coef)
            if coefficient is None:
                continue
            settings = self._filled(coefficient, aim)
            if settings.key() not in known:
                return settings, "curve"
        return None, "sampler"

    @property
    def _off(self) -> KlSettings:
        """The user's settings with the penalty multiplied by nothing."""
        return replace(
            self.base, kl_coef=0.0, target_kl=None, horizon=None, placement=Placement.REWARD
        )

    def _guesses(self) -> Iterable[KlSettings]:
        """Return what is worth a trial before any search: what was good, the protocol's own."""
        for known in (*self.known, ONE_NODE, FALL_BACK):
            yield self._filled(known.kl_coef, known.target_kl)

    def _excluded(self, settings: KlSettings, curve: Sequence[CurvePoint]) -> bool:
        """Whether trials have shown that these settings cannot keep the KL in the band."""
        largest = settings.kl_coef
        if settings.adaptive and settings.horizon:
            _, largest = reachable(settings.kl_coef, self.rows, settings.horizon, self.steps)
        return must_exceed(self.band.high, largest, curve)

    def _filled(self, coefficient: float, target: float | None = None) -> KlSettings:
        """Return the user's settings with this coefficient, moved into the space.

        They are adaptive if targets are searched; without one given, the target is the user's.
        """
        space, base = self.space, self.base
        found = replace(base, kl_coef=_within(coefficient, space.kl_coef))
        if space.target_kl is not None and base.placement is Placement.REWARD:
            target = target or base.target_kl or ONE_NODE.target_kl
            assert target is not None
            found = replace(
                found, target_kl=_within(target, space.target_kl), horizon=self._horizon()
            )
        if space.clip_ratio is not None and base.clip_ratio is not None:
            found = replace(found, clip_ratio=_within(base.clip_ratio, space.clip_ratio))
        if space.estimators is not None and base.estimator not in space.estimators:
            found = replace(found, estimator=space.estimators[0])
        return found

    def _horizon(self) -> float:
        """Return the user's horizon where it is sound, else one of five sequences a row."""
        horizon = self.base.horizon
        if horizon is None or horizon <= smallest_horizon(self.rows):
            horizon = max(10_000.0, 5.0 * self.rows)
        return horizon if self.space.horizon is None else _within(horizon, self._horizons)

    @property
    def _horizons(self) -> tuple[float, float]:
        """The space's horizons at which the coefficient keeps its sign."""
        assert self.space.horizon is not None
        low = max(self.space.horizon[0], 1.01 * smallest_horizon(self.rows))
        return low, max(self.space.horizon[1], low * 1.01)

    def _suggest(self, trial: optuna.Trial) -> KlSettings:
        if trial.user_attrs.get(_KL_OFF):
            return self._off
        settings = self._filled(trial.suggest_float("kl_coef", *self.space.kl_coef, log=True))
        if settings.adaptive and self.space.target_kl is not None:
            target = trial.suggest_float("target_kl", *self.space.target_kl, log=True)
            settings = replace(settings, target_kl=target)
        if settings.adaptive and self.space.horizon is not None:
            horizon = trial.suggest_float("horizon", *self._horizons, log=True)
            settings = replace(settings, horizon=horizon)
        if self.space.clip_ratio is not None:
            clip = trial.suggest_float("clip_ratio", *self.space.clip_ratio)
            settings = replace(settings, clip_ratio=clip)
        if self.space.estimators is not None:
            estimator = trial.suggest_categorical("kl_penalty", list(self.space.estimators))
            settings = replace(settings, estimator=estimator)
        return settings

    def _params(self, settings: KlSettings) -> dict[str, Any]:
        """Return the settings as Optuna's parameters; the inverse of ``_suggest``."""
        found: dict[str, Any] = {"kl_coef": settings.kl_coef}
        if settings.kl_coef == 0:
            return found
        if settings.target_kl is not None and self.space.target_kl is not None:
            found["target_kl"] = settings.target_kl
        if settings.horizon is not None and self.space.horizon is not None:
            found["horizon"] = settings.horizon
        if settings.clip_ratio is not None and self.space.clip_ratio is not None:
            found["clip_ratio"] = settings.clip_ratio
        if settings.estimator is not None and self.space.estimators is not None:
            found["kl_penalty"] = settings.estimator
        return found


def violations(outcome: Outcome, band: Band) -> dict[str, float]:
    """Return the constraints of a trial as Optuna wants them: satisfied where <= 0."""
    kl = outcome.summary.kl
    known = kl is not None and isfinite(kl)
    return {
        "kl above low": band.low - kl if known and kl is not None else 1.0,
        "kl below high": kl - band.high if known and kl is not None else 1.0,
        "no critical finding": float(len(outcome.critical)),
    }


def curve_points(seen: Iterable[Seen], band: Band) -> list[CurvePoint]:
    """Return what the trials show of the curve; a diverged one shows at least its highest KL.

    A trial that was stopped for another reason shows nothing: its KL was still on the way up.
    """
    points = []
    for trial in seen:
        summary, ending = trial.outcome.summary, trial.outcome.ending
        kl, coefficient = summary.kl, summary.coefficient or trial.settings.kl_coef
        if trial.settings.placement is Placement.LOSS:
            coefficient = trial.settings.kl_coef
        diverged = ending is Ending.STOPPED and not DIVERGED.isdisjoint(trial.outcome.critical)
        if diverged:
            highest = [v for v in (kl, summary.kl_max) if v is not None and isfinite(v)]
            kl = max([*highest, 2.01 * band.high])
        known = diverged or ending is Ending.COMPLETED
        if known and coefficient > 0 and kl is not None and isfinite(kl):
            points.append(CurvePoint(coefficient, max(kl, 1e-6)))
    return points


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(bounds[1], max(bounds[0], value))


def _near(kl: float, aim: float, low: float, high: float) -> bool:
    """Whether a trial's KL is so close to an aim that another trial would show nothing new."""
    return abs(log(kl / aim)) < 0.12 * log(high / low)


@contextmanager
def _storage(*also: type[Exception]) -> Iterator[None]:
    """Name the setting where a storage fails: a server that is gone, a disk that is full."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    failures: tuple[type[Exception], ...]
    failures = (SQLAlchemyError, StorageInternalError, OSError, *also)
    try:
        yield
    except failures as error:
        first = str(error.__cause__ or error).splitlines()[0]
        raise LaunchError(
            f"search.storage: the study cannot be used ({first}); check the URL and that the "
            "directory or server can be written"
        ) from error


def _open_study(storage: str, name: str, seed: int) -> optuna.Study:
    import optuna

    # Our own journal says what happens; Optuna's lines would go between those of the live view.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=5)
    with _storage(ImportError, ValueError, LookupError):
        return optuna.create_study(
            storage=storage,
            study_name=name,
            direction="maximize",
            sampler=sampler,
            load_if_exists=True,
        )
