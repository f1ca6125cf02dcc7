"""``python -m kltune`` is the ``kltune`` command."""

from kltune.cli.app import main

if __name__ == "__main__":
    raise SystemExit(main())
