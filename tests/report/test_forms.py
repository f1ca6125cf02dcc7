from pathlib import Path

import pytest

from kltune.errors import SettingsError
from kltune.report.forms import places


@pytest.mark.parametrize(
    ("output", "wanted", "found"),
    [
        ("runs", [], {"html": "runs/report.html"}),
        ("runs", ["json", "markdown"], {"json": "runs/report.json", "markdown": "runs/report.md"}),
        ("a/b.md", [], {"markdown": "a/b.md"}),
        ("a/b.html", ["html", "json"], {"html": "a/b.html", "json": "a/b.json"}),
        ("v1.2", [], {"html": "v1.2/report.html"}),
    ],
)
def test_a_form_goes_where_the_output_says(output, wanted, found):
    assert places(Path(output), wanted) == {form: Path(path) for form, path in found.items()}


def test_a_directory_may_end_like_a_file(tmp_path):
    (tmp_path / "x.html").mkdir()
    assert places(tmp_path / "x.html", []) == {"html": tmp_path / "x.html" / "report.html"}


def test_unknown_forms_are_told_all_at_once():
    with pytest.raises(SettingsError) as caught:
        places(Path("runs"), ["pdf", "html", "docx"])
    assert caught.value.faults == (
        "--as pdf: must be one of html, markdown, json",
        "--as docx: must be one of html, markdown, json",
    )


def test_a_file_of_another_form_is_refused():
    with pytest.raises(SettingsError, match=r"b\.md: ends like markdown, and --as names html"):
        places(Path("a/b.md"), ["html"])
