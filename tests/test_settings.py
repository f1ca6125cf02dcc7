from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kltune.errors import SettingsError
from kltune.settings import Content, differences, load, preset_names, presets_dir


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "kltune.yaml"
        path.write_text(text if isinstance(text, str) else yaml.safe_dump(text))
        return path

    return write


def faults_of(**kwargs):
    with pytest.raises(SettingsError) as caught:
        load(**kwargs)
    return caught.value.faults


def test_without_anything_the_defaults_hold():
    assert load().content == Content()


def test_a_preset_finds_its_own_files():
    settings = load(preset="cpu-tiny")
    assert settings.content.preset == "cpu-tiny"
    assert Path(settings.content.verl.overrides["data.train_files"]).is_file()


def test_every_value_knows_where_it_came_from(config):
    path = config(
        {
            "preset": "cpu-tiny",
            "search": {"trials": 7},
            "verl": {"overrides": {"data.train_batch_size": 8, "+a.b": 1}},
        }
    )
    settings = load(
        config=path, overrides={"++a.b": 2}, options={"search.timeout_minutes": 3.0, "x": None}
    )
    assert settings.origin("search.trials") == str(path)
    assert settings.origin("search.steps") == "preset cpu-tiny"
    assert settings.origin("search.timeout_minutes") == "--timeout"
    assert settings.origin("search.seed") == "kltune's default"
    assert settings.override_origin("data.train_batch_size") == str(path)
    assert settings.override_origin("+a.b") == "--set"
    assert settings.override_origin("algorithm.kl_penalty") == "preset cpu-tiny"
    assert settings.content.verl.overrides["++a.b"] == 2


def test_the_preset_of_the_command_line_wins_over_that_of_the_file(config):
    path = config("preset: no-such\n")
    assert load(preset="cpu-tiny", config=path).content.preset == "cpu-tiny"


def test_every_fault_is_told_at_once_with_its_origin(config):
    path = config(
        "band: {low: 0.05, high: 0.01}\n"
        "search: {trials: -1, stepz: 3, space: {kl_coef: [1, 0.1], kl_penalty: [k9]}}\n"
        "cluster: {launcher: cloud}\n"
        "verl: {env: {'A-B': x}}\n"
        "serach: {}\n"
    )
    faults = faults_of(config=path, options={"search.epochs": -2.0})
    assert len(faults) == 8
    assert f"band ({path}): low must be below high, got 0.05 and 0.01" in faults
    assert any(f.startswith(f"search.trials ({path}): ") and "got -1" in f for f in faults)
    assert any(f.startswith("search.epochs (--epochs): ") and "got -2.0" in f for f in faults)
    assert any("search.stepz" in f and "did you mean steps?" in f for f in faults)
    assert any("serach" in f and "did you mean search?" in f for f in faults)
    assert any("kl_coef must be [low, high]" in f and "'k9' is none of" in f for f in faults)
    assert any(f.startswith("cluster.launcher") for f in faults)
    assert any("A-B" in f for f in faults)


def test_an_unknown_preset_names_the_near_one_and_all():
    [fault] = faults_of(preset="cpu-tin")
    assert "did you mean cpu-tiny?" in fault
    assert all(name in fault for name in preset_names())


@pytest.mark.parametrize("name", ["", "../pyproject", "cpu-tiny.yaml", "/etc/passwd", "\0"])
def test_a_preset_is_a_name_and_no_path(config, name):
    assert "there is no such preset" in faults_of(config=config({"preset": name}))[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1", "is not valid YAML"),
        ("a: !!python/object/apply:os.system [true]", "is not valid YAML"),
        ("- a", "must hold settings by name, got a list"),
        ("just text", "must hold settings by name, got a str"),
        ("a: \x00", "is not valid YAML"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(config, text, says):
    assert says in faults_of(config=config(text))[0]


def test_a_file_that_is_missing_a_directory_or_not_text_is_refused(tmp_path):
    assert "there is no such file" in faults_of(config=tmp_path / "none.yaml")[0]
    assert "cannot be read" in faults_of(config=tmp_path)[0]
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in faults_of(config=tmp_path / "binary.yaml")[0]


@pytest.mark.parametrize("text", ["", "# nothing\n", "search:\n  # trials: 3\nverl:\nband:\n"])
def test_an_empty_file_or_section_changes_nothing(config, text):
    path = config("preset: cpu-tiny\n" + text)
    assert load(config=path).content == load(preset="cpu-tiny").content


@pytest.mark.parametrize("section", ["verl.overrides", "verl.env", "watch.thresholds"])
def test_an_empty_mapping_changes_nothing(config, section):
    outer, inner = section.split(".")
    path = config({"preset": "cpu-tiny", outer: {inner: None}})
    assert load(config=path).content == load(preset="cpu-tiny").content


def test_a_number_that_is_null_is_a_fault_and_not_a_default(config):
    [fault] = faults_of(config=config("search: {trials: null}"))
    assert fault.startswith("search.trials")


def test_numbers_of_the_environment_become_text(config):
    path = config("verl: {env: {OMP_NUM_THREADS: 1, RATE: 0.5}}")
    assert load(config=path).content.verl.env == {"OMP_NUM_THREADS": "1", "RATE": "0.5"}


@pytest.mark.parametrize("word", ["a\0b", "\0"])
def test_a_null_byte_can_reach_no_process(word):
    [fault] = faults_of(options={"verl.command": ["python3", word]})
    assert fault.startswith("verl.command.1")


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0.0, -1.0])
@pytest.mark.parametrize("name", ["epochs", "timeout_minutes", "max_gpu_hours"])
def test_a_budget_is_a_finite_number_above_0(name, value):
    [fault] = faults_of(options={f"search.{name}": value})
    assert fault.startswith(f"search.{name}")


def test_epochs_take_the_place_of_steps_that_stand_below_them(config):
    assert load(preset="cpu-tiny").content.search.steps is not None
    by_option = load(preset="cpu-tiny", options={"search.epochs": 3.0})
    by_file = load(config=config("preset: cpu-tiny\nsearch: {epochs: 3}\n"))
    for settings in (by_option, by_file):
        assert (settings.content.search.steps, settings.content.search.epochs) == (None, 3.0)
    both = load(options={"search.epochs": 3.0, "search.steps": 5})
    assert both.content.search.steps == 5


def test_overrides_with_odd_keys_are_kept_as_text(config):
    path = config("verl: {overrides: {1: 2, a.b: {c: 1}, +x: null}}")
    assert load(config=path).content.verl.overrides == {"1": 2, "a.b": {"c": 1}, "+x": None}


def test_budgets_may_change_and_everything_that_decides_a_trial_may_not():
    base = load().identity()
    free = {"search.trials": 99, "search.timeout_minutes": 5.0, "search.max_gpu_hours": 1.0}
    assert differences(base, load(options=free).identity()) == []
    for path, value in {
        "search.steps": 7,
        "search.seed": 9,
        "search.storage": "sqlite:///other.db",
        "band.high": 0.5,
        "verl.env": {"A": "b"},
        "verl.overrides": {"a": 1},
        "cluster.nodes": 2,
    }.items():
        [change] = differences(base, load(options={path: value}).identity())
        assert path.split(".")[0] in change
        assert " there, " in change


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
PATHS = st.sampled_from(
    [f"{name}" for name in Content.model_fields] + ["search.space", "verl.env"]
)


@given(st.dictionaries(PATHS, JSON, max_size=3))
def test_whatever_stands_in_the_settings_is_taken_or_refused(values):
    with suppress(SettingsError):
        load(options=values).identity()


def test_presets_lie_in_the_project():
    assert isinstance(presets_dir(), Path)
    assert presets_dir().is_dir()
