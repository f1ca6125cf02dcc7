"""verl's own profiler on two nodes, turned on and read by kltune."""

from __future__ import annotations

import sys

import pytest

from kltune.calibration.profiling import STEPS, profile_step
from kltune.calibration.scale import Scaling
from kltune.calibration.scaled import NodeResult
from kltune.domain.kl import KlSettings
from kltune.settings import load
from kltune.traces import read_shares
from kltune.workspace import Workspace

pytestmark = [
    pytest.mark.verl,
    pytest.mark.skipif(sys.platform != "linux", reason="verl on a CPU needs Linux"),
]


def test_the_collectives_of_a_step_on_two_nodes_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = load("cpu-tiny")
    scaling = Scaling(settings, Workspace(tmp_path / "runs"), lambda event: None)
    found = NodeResult(
        nodes=2,
        calibrated=True,
        reason="",
        gate=None,
        settings=KlSettings(kl_coef=0.001, target_kl=0.02),
        winner="hold",
        proposals=(),
        batch=(),
        overrides={},
        transfers=(),
        throughput=None,
        throughput_one_node=None,
        trials=(),
        held_fixed={},
    )

    profile = profile_step(scaling, found)

    assert (profile.step, profile.tool) == (STEPS, "torch")
    assert [share.rank for share in profile.shares] == ["0", "1"]
    for share in profile.shares:
        # FSDP2 gathers weights and sums gradients; over gloo a reduce-scatter is an all-reduce.
        assert share.families.keys() == {"all-gather", "all-reduce"}
        assert 0 < share.share < 1
        assert 0 < max(share.families.values()) <= share.communication
    # 32 prompts an update on two ranks, in one micro batch of 16 each.
    over = max(share.share for share in profile.shares) > 0.2
    key = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    assert profile.advice.overrides == ({key: 8} if over else {})

    (attempt,) = scaling.workspace.trial("profile-2", "hold-torch").attempts()
    assert profile.shares == tuple(read_shares([attempt.traces]))
    assert len(list(attempt.traces.iterdir())) == 2  # actor, reference and critic share a process
    assert profile_step(scaling, found) == profile
