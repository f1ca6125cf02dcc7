"""Where verl is installed, found without importing it: an import takes seconds and torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kltune.errors import LaunchError
from kltune.verl.releases import Release


@dataclass(frozen=True, slots=True)
class Installation:
    """A verl that this Python can import.

    Attributes:
        version: as verl's own version file says, e.g. ``0.9.1``.
        package: directory of the package ``verl``.
    """

    version: str
    package: Path

    @property
    def config_dir(self) -> Path:
        """Directory of verl's Hydra configuration."""
        return self.package / "trainer" / "config"


def find_verl() -> Installation:
    """Return the verl of this Python.

    Raises:
        LaunchError: there is none.
    """
    spec = find_spec("verl")
    if spec is None or spec.origin is None:
        raise LaunchError(
            "verl: not installed in the environment of kltune; install kltune where you train, "
            "or try a CPU: pip install 'kltune[cpu]'"
        )
    package = Path(spec.origin).parent
    version = (package / "version" / "version").read_text(encoding="utf-8").strip()
    return Installation(version, package)


def missing_imports(release: Release) -> list[str]:
    """Return the modules that this release imports, does not declare, and does not find here."""
    return [module for module in release.undeclared if find_spec(module) is None]
