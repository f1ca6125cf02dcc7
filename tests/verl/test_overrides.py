import math

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st

from kltune.errors import SettingsError
from kltune.verl.overrides import bare, lay_over, parse, render, render_value

PARSER = OverridesParser.create()


def through_hydra(value):
    return PARSER.parse_override(f"key={render_value(value)}").value()


def looks_like_another_type(text):
    return not isinstance(through_bare_hydra(text), str)


def through_bare_hydra(text):
    try:
        return PARSER.parse_override(f"key={text}").value()
    except Exception:
        return text


# No null byte: a command line cannot hold one. No surrogates: those are no text.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
HOSTILE = st.text("'\"\\ ,=:[]{}()$`!#&;|<>*?~+-./@%^\t\nü€x1", max_size=12)
WORDS = (TEXT | HOSTILE).filter(lambda text: not looks_like_another_type(text))
NUMBERS = st.integers() | st.floats(allow_nan=False)
SCALARS = st.none() | st.booleans() | NUMBERS | WORDS
KEYS = st.text("abc_ .-:,=(){}[]", min_size=1).filter(lambda text: text == text.strip())


@given(SCALARS)
@example("a'b")
@example("\\'")
@example("ends with \\")
@example("a ${not.resolved} b")
@example("")
@example(" blanks around ")
def test_hydra_reads_a_rendered_value_as_the_same_value(value):
    assert through_hydra(value) == value


@given(st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=6))
def test_hydra_reads_a_rendered_list_as_the_same_list(value):
    assert through_hydra(value) == value


@given(st.dictionaries(st.text("abc_", min_size=1), SCALARS, max_size=3))
def test_hydra_reads_a_rendered_mapping_as_the_same_mapping(value):
    assert through_hydra(value) == value


@pytest.mark.parametrize("key", ["a b", "a:b", "a=b", "a,b", "a{b}", "a[0]", "a\\b", 3])
def test_a_key_with_signs_of_the_grammar_is_read_as_it_is(key):
    assert through_hydra({key: 1}) == {key: 1}


def test_not_a_number_stays_what_it_is():
    assert math.isnan(through_hydra(math.nan))


def test_a_number_that_yaml_takes_for_text_stays_a_number():
    assert through_hydra("1e-6") == 1e-6


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a.b=1", 1),
        ("a.b=1e-6", 1e-6),
        ("a.b=true", True),
        ("a.b=null", None),
        ("a.b=", ""),
        ("a.b=no", "no"),
        ("a.b=0777", "0777"),
        ("a.b=12:30:00", "12:30:00"),
        ("a.b=2026-01-01", "2026-01-01"),
        ("a.b='b c'", "b c"),
        ('a.b="it\'s"', "it's"),
        ("a.b=[1,x,'y z']", [1, "x", "y z"]),
        ("a.b={x:1,y:[2]}", {"x": 1, "y": [2]}),
        ("a.b=/a/b=c", "/a/b=c"),
        ("a.b=ü", "ü"),
        ("a.b=it's", "it's"),
        ("a.b=a (b)", "a (b)"),
        ("a.b=${trainer.n}", "${trainer.n}"),
    ],
)
def test_a_word_is_read_as_verl_would_read_it(word, value):
    assert parse([word]) == {"a.b": value}


def test_prefixes_stay_and_the_last_word_wins():
    assert parse(["+a=1", "++b=2", "~c", "d=1", "d=2"]) == {"+a": 1, "++b": 2, "~c": "", "d": 2}


def test_every_word_that_is_no_override_is_named():
    with pytest.raises(SettingsError) as caught:
        parse(["data", "=1", "a=1,2", "b=[1", "c=1", "--x=1"])
    assert [fault.split(":")[0] for fault in caught.value.faults] == [
        "--set data",
        "--set =1",
        "--set a=1,2",
        "--set b=[1",
        "--set --x=1",
    ]


@given(st.dictionaries(st.sampled_from(["a", "+b.c", "++d"]), WORDS | NUMBERS))
def test_what_was_rendered_is_parsed_again(overrides):
    assert parse(render(overrides)) == overrides


def test_a_deleted_key_is_rendered_without_a_value():
    assert render({"~a.b": None, "c": None}) == ["~a.b", "c=null"]


def test_a_layer_replaces_a_key_whatever_stands_before_it():
    assert lay_over({"+a": 1, "b": 1}, {"a": 2, "++b": 3}) == {"+a": 2, "++b": 3}
    assert lay_over({"~a": None}, {"a": 1}) == {"a": 1}
    assert lay_over({"a": 1}, {"~a": None}) == {"~a": None}
    assert lay_over({"a": 1}, {"a": 2}, {"a": 3}) == {"a": 3}


def test_bare_takes_hydras_prefixes_away():
    assert [bare(key) for key in ("a.b", "+a.b", "++a.b", "~a.b")] == ["a.b"] * 4
