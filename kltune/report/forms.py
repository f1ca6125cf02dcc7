"""The forms of a report, and where they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic_core import to_json

from kltune.calibration.report import Report, report_json
from kltune.errors import SettingsError
from kltune.report.compose import compose
from kltune.report.markdown import markdown
from kltune.report.page import page
from kltune.workspace import write_text

NAME = "report"


def _json(report: Report) -> str:
    # JSON has no NaN: what is not finite becomes null.
    return to_json(report_json(report), indent=2, inf_nan_mode="null").decode() + "\n"


#: Form to the ending of its file, and what makes its text.
FORMS: Mapping[str, tuple[str, Callable[[Report], str]]] = {
    "html": (".html", lambda report: page(compose(report))),
    "markdown": (".md", lambda report: markdown(compose(report))),
    "json": (".json", _json),
}


def places(output: Path, wanted: Sequence[str]) -> dict[str, Path]:
    """Return where each form goes.

    Args:
        output: a directory, or a file whose ending is that of a form; the others go beside it.
            That form is taken where none is wanted, and HTML for a directory.
        wanted: keys of ``FORMS``.

    Raises:
        SettingsError: a form is unknown, or the file's ending is that of another one.
    """
    unknown = [form for form in wanted if form not in FORMS]
    if unknown:
        known = ", ".join(FORMS)
        raise SettingsError([f"--as {form}: must be one of {known}" for form in unknown])
    of_file = next((f for f, (suffix, _) in FORMS.items() if suffix == output.suffix), None)
    if of_file is None or output.is_dir():
        return {form: output / f"{NAME}{FORMS[form][0]}" for form in wanted or ["html"]}
    if wanted and of_file not in wanted:
        raise SettingsError(
            f"--output {output}: ends like {of_file}, and --as names {', '.join(wanted)}; leave "
            "one of them out"
        )
    return {form: output.with_suffix(FORMS[form][0]) for form in wanted or [of_file]}


def write_report(report: Report, where: Mapping[str, Path]) -> None:
    """Write the forms of a report, all or none.

    Raises:
        LaunchError: a file cannot be written, or a package that draws the plots is missing.
    """
    texts = {path: FORMS[form][1](report) for form, path in where.items()}
    for path, text in texts.items():
        write_text(path, text)
