"""The study: every point that was asked for, and what became of it. The only importer of Optuna.

Whatever asks for a point (``kltune.search.points``, or Optuna's TPE sampler), it is a trial of one
Optuna study, so that its storage, its samplers and its dashboards see everything. Several kltune,
on several machines, may share a study.
"""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter

from kltune.domain.kl import KlSettings, Placement
from kltune.domain.outcome import Band, Ending, Outcome
from kltune.domain.trials import Role, Trial
from kltune.errors import LaunchError
from kltune.search.points import Points, Seen

if TYPE_CHECKING:
    import optuna

#: Keys of a trial's user attributes, and of the study's.
_OWNER, _SETTINGS, _KL_OFF = "kltune:workspace", "kltune:settings", "kltune:kl-off"
_SOURCE, _OUTCOME, _MADE_WITH = "kltune:source", "kltune:outcome", "kltune:made-with"
_HEARD_OF = "kltune:heard-of:"

#: Seconds after which a workspace that is not heard of does not run its trials any more.
SILENT_S = 300.0

#: For so many seconds a server that several share may be gone before the trials are given up.
PATIENCE_S = 300.0

#: Seconds between two questions to a storage that did not answer.
RETRY_S = 2.0

_REDRAWS = 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A point to run.

    Attributes:
        number: Optuna's number of the trial.
        settings: the point.
        source: ``guess``, ``curve``, ``gap``, ``kl-off`` (see ``Points``) or ``sampler``.
    """

    number: int
    settings: KlSettings
    source: str


class Search:
    """One Optuna study.

    Args:
        storage: URL of Optuna's storage.
        name: the study's name.
        owner: id of the workspace; several, on several machines, may share a study.
        points: what may be tried, and what is worth a trial.
        seed: of the trials and of the sampler.
        shared: whether other workspaces ask the same study.

    Raises:
        LaunchError: the storage cannot be reached.
    """

    def __init__(
        self,
        storage: str,
        name: str,
        owner: str,
        points: Points,
        seed: int,
        shared: bool = False,
    ):
        self.owner = owner
        self.points = points
        self.seed = seed
        self.shared = shared
        # Two that share a study and a seed would draw the same points.
        own = zlib.crc32(f"{seed} {owner}".encode())
        self._study = _open_study(storage, name, own if shared else seed)

    def made_with(self, identity: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the study was made with: this, where it is new."""
        with _storage():
            found = self._study.user_attrs.get(_MADE_WITH)
            if found is None:
                self._study.set_user_attr(_MADE_WITH, dict(identity))
        return identity if found is None else dict(found)

    def others(self) -> list[Trial]:
        """Return the trials of other workspaces in this study; without an outcome while they run.

        Tells the others that this one is at work. The open trial of one that has not been heard
        of for ``SILENT_S`` seconds is left out until it comes back.
        """
        if not self.shared:
            return []
        heard_of, trials = self._patiently(self._listen)
        found = []
        for trial in trials:
            settings, told = _settings_of(trial), trial.user_attrs.get(_OUTCOME)
            if settings is None or self._is_mine(trial):
                continue
            since = time.time() - heard_of.get(_HEARD_OF + trial.user_attrs[_OWNER], 0.0)
            if told is None and (trial.state.is_finished() or since > SILENT_S):
                continue
            outcome = None if told is None else _outcomes().validate_python(told)
            found.append(Trial(self.name(trial.number), Role.SEARCH, settings, self.seed, outcome))
        return found

    def _listen(self) -> tuple[Mapping[str, Any], list[optuna.trial.FrozenTrial]]:
        self._study.set_user_attr(_HEARD_OF + self.owner, time.time())
        return self._study.user_attrs, self._study.get_trials(deepcopy=False)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask the storage what may be asked twice; bear with a server that restarts."""
        deadline = time.monotonic() + (PATIENCE_S if self.shared else 0.0)
        while time.monotonic() < deadline:
            with suppress(*_storage_failures()):
                return ask()
            time.sleep(RETRY_S)
        with _storage():
            return ask()

    def leave(self) -> None:
        """Tell the others not to wait for this workspace's open trials."""
        if self.shared:
            with _storage():
                self._study.set_user_attr(_HEARD_OF + self.owner, 0.0)

    def _is_mine(self, trial: optuna.trial.FrozenTrial) -> bool:
        return bool(trial.user_attrs.get(_OWNER) == self.owner)

    def unfinished(self) -> list[Proposal]:
        """Return the points of this workspace that were proposed and never told."""
        return self._patiently(lambda: list(self._unfinished()))

    def _unfinished(self) -> Iterator[Proposal]:
        import optuna

        running = self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        for trial in running:
            if not self._is_mine(trial):
                continue
            settings = _settings_of(trial)
            if settings is None:
                # A kill came between the question and the answer: nothing was ever run.
                self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            else:
                yield Proposal(trial.number, settings, trial.user_attrs[_SOURCE])

    def ask(self, seen: Sequence[Seen], running: Collection[KlSettings] = ()) -> Proposal | None:
        """Return the next point to run; one that was run before never comes again.

        Args:
            seen: every trial whose end is known, the reference included.
            running: what is being tried at this moment.

        Returns:
            None when the space holds nothing new.
        """
        with _storage():
            return self._ask(seen, running)

    def _ask(self, seen: Sequence[Seen], running: Collection[KlSettings]) -> Proposal | None:
        from optuna.trial import TrialState

        wanted, source = self.points.wanted(seen, running, self._open_elsewhere())
        if wanted is not None and not self._is_waiting(wanted):
            attributes = {_KL_OFF: True} if wanted.kl_coef == 0 else None
            self._study.enqueue_trial(self._params(wanted), user_attrs=attributes)
        known = {s.settings.key(): s.outcome for s in seen}
        taken = {settings.key() for settings in running}
        for _ in range(_REDRAWS):
            trial = self._study.ask()
            trial.set_user_attr(_OWNER, self.owner)
            settings = self._suggest(trial)
            asked_for = wanted is not None and wanted.key() == settings.key()
            trial.set_user_attr(_SOURCE, source if asked_for else "sampler")
            trial.set_user_attr(
                _SETTINGS, {**asdict(settings), "placement": settings.placement.value}
            )
            if settings.key() in known:
                # Drawn again: told at once, so that nothing is run twice.
                self._tell(trial.number, known[settings.key()], ran=False)
            elif settings.key() in taken or self._is_taken(settings):
                self._study.tell(trial.number, state=TrialState.FAIL)
            else:
                return Proposal(trial.number, settings, source if asked_for else "sampler")
        return None

    def _open_elsewhere(self) -> Collection[KlSettings]:
        """Return the points that other workspaces have taken, at work or not, and not told."""
        from optuna.trial import TrialState

        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        others = [trial for trial in running if not self._is_mine(trial)]
        return [found for trial in others if (found := _settings_of(trial)) is not None]

    def _is_taken(self, settings: KlSettings) -> bool:
        """Whether another workspace has taken this point while we did, or has run it since.

        Each says what it takes before it looks, so at least one of two sees the other and leaves
        the point; it may be that both do.
        """
        for trial in self._study.get_trials(deepcopy=False):
            found, told = _settings_of(trial), trial.user_attrs.get(_OUTCOME)
            if found is None or found.key() != settings.key() or self._is_mine(trial):
                continue
            if told is None and not trial.state.is_finished():
                return True
            if told is not None and not _outcomes().validate_python(told).never_trained:
                return True
        return False

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
        self._patiently(lambda: self._tell(number, outcome))

    def _tell(self, number: int, outcome: Outcome, ran: bool = True) -> None:
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
        with warnings.catch_warnings():
            # Set before a kill, or before a server was gone, they are the same.
            warnings.filterwarnings("ignore", "The constraint value is ignored")
            for name, value in violations(outcome, self.points.band).items():
                trial.set_constraint(name, value)
        if ran:
            trial.set_user_attr(_OUTCOME, _outcomes().dump_python(outcome, mode="json"))
        objective = outcome.summary.objective
        if outcome.ending is Ending.COMPLETED and objective is not None and isfinite(objective):
            self._study.tell(number, objective)
        elif outcome.ending is Ending.STOPPED:
            # Without a value on the way the sampler ranks it below everything that completed.
            self._study.tell(number, state=TrialState.PRUNED)
        else:
            self._study.tell(number, state=TrialState.FAIL)

    def _suggest(self, trial: optuna.Trial) -> KlSettings:
        if trial.user_attrs.get(_KL_OFF):
            return self.points.off
        settings = self.points.filled(
            trial.suggest_float("kl_coef", *self.points.space.kl_coef, log=True)
        )
        if settings.adaptive and self.points.space.target_kl is not None:
            target = trial.suggest_float("target_kl", *self.points.space.target_kl, log=True)
            settings = replace(settings, target_kl=target)
        if settings.adaptive and self.points.space.horizon is not None:
            horizon = trial.suggest_float("horizon", *self.points.horizons, log=True)
            settings = replace(settings, horizon=horizon)
        if self.points.space.clip_ratio is not None:
            clip = trial.suggest_float("clip_ratio", *self.points.space.clip_ratio)
            settings = replace(settings, clip_ratio=clip)
        if self.points.space.estimators is not None:
            estimator = trial.suggest_categorical("kl_penalty", list(self.points.space.estimators))
            settings = replace(settings, estimator=estimator)
        return settings

    def _params(self, settings: KlSettings) -> dict[str, Any]:
        """Return the settings as Optuna's parameters; the inverse of ``_suggest``."""
        found: dict[str, Any] = {"kl_coef": settings.kl_coef}
        if settings.kl_coef == 0:
            return found
        if settings.target_kl is not None and self.points.space.target_kl is not None:
            found["target_kl"] = settings.target_kl
        if settings.horizon is not None and self.points.space.horizon is not None:
            found["horizon"] = settings.horizon
        if settings.clip_ratio is not None and self.points.space.clip_ratio is not None:
            found["clip_ratio"] = settings.clip_ratio
        if settings.estimator is not None and self.points.space.estimators is not None:
            found["kl_penalty"] = settings.estimator
        return found


def _settings_of(trial: optuna.trial.FrozenTrial) -> KlSettings | None:
    """Return the point of a trial; None where a kill came before it was drawn."""
    found = trial.user_attrs.get(_SETTINGS)
    if found is None:
        return None
    return KlSettings(**{**found, "placement": Placement(found["placement"])})


@cache
def _outcomes() -> TypeAdapter[Outcome]:
    return TypeAdapter(Outcome)


def violations(outcome: Outcome, band: Band) -> dict[str, float]:
    """Return the constraints of a trial as Optuna wants them: satisfied where <= 0."""
    kl = outcome.summary.kl
    known = kl is not None and isfinite(kl)
    return {
        "kl above low": band.low - kl if known and kl is not None else 1.0,
        "kl below high": kl - band.high if known and kl is not None else 1.0,
        "no critical finding": float(len(outcome.critical)),
    }


@contextmanager
def _storage(*also: type[Exception]) -> Iterator[None]:
    """Name the setting where a storage fails: a server that is gone, a disk that is full."""
    try:
        yield
    except (*_storage_failures(), *also) as error:
        first = str(error.__cause__ or error).splitlines()[0]
        raise LaunchError(
            f"search.storage: the study cannot be used ({first}); check the URL and that the "
            "directory or server can be written"
        ) from error


def _storage_failures() -> tuple[type[Exception], ...]:
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    return SQLAlchemyError, StorageInternalError, OSError


def _open_study(storage: str, name: str, seed: int) -> optuna.Study:
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    # Our own journal says what happens; Optuna's lines would go between those of the live view.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # The liar keeps trials that run side by side apart.
        sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, n_startup_trials=5, constant_liar=True
        )

    def create() -> optuna.Study:
        return optuna.create_study(
            # Between two questions lies a training: a server may have closed the connection.
            storage=optuna.storages.RDBStorage(storage, engine_kwargs={"pool_pre_ping": True}),
            study_name=name,
            direction="maximize",
            sampler=sampler,
            load_if_exists=True,
        )

    with _storage(ImportError, ValueError, LookupError):
        # Who opens a new database in the same moment makes the same tables.
        with suppress(SQLAlchemyError):
            return create()
        time.sleep(RETRY_S)
        return create()
