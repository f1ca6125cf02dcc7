import pytest
from omegaconf import OmegaConf

from kltune.errors import SettingsError
from kltune.verl.keys import Key
from kltune.verl.releases import NEWEST, RELEASES, UNSUPPORTED, LegacyReward, numbers, release_of

from .wheels import VERSIONS, compose


def _has(config, path):
    parent, _, name = path.rpartition(".")
    node = OmegaConf.select(config, parent)
    return node is not None and name in list(node)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_key_is_where_the_release_has_it(version):
    release, config = release_of(version), compose(version)
    wrong = []
    for key in Key:
        found = release.key(key)
        if found is None or found.startswith("hydra."):
            continue
        present = _has(config, release.path(key))
        if present == found.startswith("+"):
            wrong.append(found)
    assert wrong == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_key_is_absent_before_its_first_release(version):
    release, config = release_of(version), compose(version)
    absent = [key for key in Key if release.key(key) is None]
    assert [key for key in absent if _has(config, key.value.lstrip("+"))] == []


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.9.1", "0.9.1"), ("0.3.0.post1", "0.3.0"), ("v0.8.0", "0.8.0"), ("0.4.1+cu126", "0.4.1")],
)
def test_known_versions_carry_no_note(version, known):
    release = release_of(version)
    assert (release.version, release.note) == (known, "")


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.9.0", "0.9.1"), ("0.9.2", "0.9.1"), ("0.10.0", "0.9.1"), ("1.0", "0.9.1"),
        ("0.5.3", "0.5.0"), ("0.8.0.dev", "0.8.0"),
    ],
)  # fmt: skip
def test_other_versions_work_as_the_nearest_known_with_a_note(version, known):
    release = release_of(version)
    assert release.version == known
    assert version in release.note
    assert known in release.note


@pytest.mark.parametrize("version", [*UNSUPPORTED, "0.2.1", "0.1"])
def test_an_unsupported_version_is_refused_by_name(version):
    with pytest.raises(SettingsError, match=f"verl {version} is not supported"):
        release_of(version)


@pytest.mark.parametrize("version", ["", "main", "9"])
def test_what_is_no_version_is_refused(version):
    with pytest.raises(SettingsError, match="expected something like"):
        release_of(version)


def test_releases_are_sorted():
    assert [r.numbers for r in RELEASES] == sorted(r.numbers for r in RELEASES)
    assert NEWEST.numbers == numbers("0.9.1")


def test_plus_stands_in_the_override_key_and_not_in_the_path():
    old, new = release_of("0.3.0"), release_of("0.4.1")
    assert old.key(Key.HORIZON) == "+algorithm.kl_ctrl.horizon"
    assert old.path(Key.HORIZON) == new.key(Key.HORIZON) == "algorithm.kl_ctrl.horizon"
    assert old.key(Key.USE_KL_IN_REWARD) is None


@pytest.mark.parametrize(
    ("version", "logger", "variable"),
    [("0.6.1", "tensorboard", "TENSORBOARD_DIR"), ("0.7.1", "file", "VERL_FILE_LOGGER_PATH")],
)
def test_metrics_go_to_the_file_logger_once_it_can_be_read(version, logger, variable):
    release = release_of(version)
    assert (release.metrics_logger, release.metrics_env) == (logger, variable)
    assert logger in release.loggers


@pytest.mark.parametrize("version", VERSIONS)
def test_legacy_reward_keys_are_null_once_they_are_no_longer_the_real_ones(version):
    name = OmegaConf.select(compose(version), "custom_reward_function.name")
    current = release_of(version).legacy_reward is LegacyReward.CURRENT
    assert (name is not None) == current
