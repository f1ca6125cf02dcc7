import pytest
from hypothesis import given
from hypothesis import strategies as st

from kltune.domain.communication import Intervals, MicroBatch, RankShare, advise, family


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)", "all-reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all-reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_TREE_LL", "reduce-scatter"),
        ("ncclDevKernel_AllGather_RING_LL", "all-gather"),
        ("ncclDevKernel_SendRecv", "send-receive"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("gloo:all_reduce", "all-reduce"),
        ("gloo:scatter", "scatter"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>", "all-reduce"),
        ("ncclDevKernel_Generic_4", "other"),
        ("void at::native::reduce_kernel<512, 1>", None),
        ("ampere_bf16_s16816gemm_128x128", None),
        ("void at::native::vectorized_gather_kernel<16, long>", None),
    ],
)
def test_family_of_a_kernel(name, operation):
    assert family(name) == operation


spans = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 60)), max_size=60)


@given(spans, spans)
def test_time_counts_once(first, second):
    def covered(*groups):
        return {
            t for group in groups for start, length in group for t in range(start, start + length)
        }

    kept = []
    for group in (first, second):
        intervals = Intervals()
        for start, length in group:
            intervals.add(start, start + length)
        kept.append(intervals)
    assert kept[0].length == len(covered(first))
    assert kept[0].covered_by(kept[1]) == len(covered(first, second))


def test_many_overlapping_intervals_are_joined_on_the_way():
    intervals = Intervals()
    for n in range(200_000):
        intervals.add(n, n + 1.5)
    assert len(intervals._starts) <= 1 << 16
    assert intervals.length == 200_000.5


def share(part):
    return RankShare("5", 10.0, 10.0 * part, None, {})


MICRO = MicroBatch.of_rows("actor.micro", 32, 64)


def test_the_advice_is_for_the_worst_rank():
    advice = advise([share(0.1), RankShare("7", 10.0, 5.0, None, {}), share(0.3)], MICRO)
    assert "rank 7" in advice.text
    assert "50.0%" in advice.text


@pytest.mark.parametrize(
    ("part", "micro", "overrides", "says"),
    [
        (0.20, MICRO, {}, "nothing is to be done"),
        (0.21, MICRO, {"actor.micro": 16}, "gathers them 2 times as often"),
        (0.21, MicroBatch.of_rows("m", 6, 36), {"m": 4}, "from 6 to 4 rows"),
        (0.21, MicroBatch.of_rows("m", 1, 36), {}, "cannot be lower than 1 rows"),
        (0.21, MicroBatch.of_tokens("t", 20480, 10240), {"t": 10240}, "to 10240 tokens"),
        (0.21, MicroBatch.of_tokens("t", 16384, 12288), {"t": 12288}, "1.3 times as often"),
        (0.21, MicroBatch.of_tokens("t", 10240, 10240), {}, "cannot be lower than 10240 tokens"),
        (0.21, None, {}, "name the run's configuration"),
    ],
)
def test_advice(part, micro, overrides, says):
    advice = advise([share(part)], micro)
    assert advice.overrides == overrides
    assert says in advice.text


def test_a_trace_without_length_has_no_share():
    assert RankShare("0", 0.0, 0.0, 0.0, {}).share == 0
