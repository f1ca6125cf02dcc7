import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from kltune.errors import MetricsError
from kltune.traces import read_shares

from .nsight import GPU_TRACE, KERN_SUM, csv_text, write_sqlite

HERE = Path(__file__).parent
GLOO = [HERE / f"gloo-rank{rank}.json.gz" for rank in (0, 1)]

GEMM = "ampere_bf16_s16816gemm_128x128"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
GATHER = "ncclDevKernel_AllGather_RING_LL"


def event(name, ts, dur, cat="kernel"):
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur}


def write_trace(path, events, rank=3, **more):
    content = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 8},
        **more,
        "traceEvents": events,
        "traceName": "t.json",
    }
    path.write_text(json.dumps(content, indent=1))
    return path


def test_a_recorded_trace_of_two_gloo_processes():
    shares = read_shares(GLOO)
    assert [share.rank for share in shares] == ["0", "1"]
    for path, share in zip(GLOO, shares, strict=True):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        named = [e for e in events if e["name"].startswith("gloo:")]
        assert len(named) == 12
        alone = {"all-gather": 0.0, "all-reduce": 0.0, "broadcast": 0.0}
        for e in named:
            alone[e["name"].removeprefix("gloo:").replace("_", "-")] += e["dur"] * 1e-6
        # One operation follows the other here, so the sum of all is the union.
        assert share.families == pytest.approx(alone)
        assert share.communication == pytest.approx(sum(alone.values()))
        assert 0.1 < share.share < 1
        assert share.exposed is None  # a thread beside the computation; the trace does not tell


def test_overlap_counts_once_and_what_computation_hides_is_told(tmp_path):
    events = [
        event(GEMM, 0, 40),
        event(REDUCE, 30, 30),  # 10 hidden behind the kernel before
        event(GATHER, 50, 20),  # 10 beside the all-reduce
        event(GEMM, 90, 10),
        event("nccl:all_reduce", 0, 90, "user_annotation"),  # the host's launch is no operation
        event("ncclDevKernel_AllReduce_Sum", 0, 90, "gpu_user_annotation"),
    ]
    (share,) = read_shares([write_trace(tmp_path / "t.json", events)])
    assert share.rank == "3"
    assert share.seconds == pytest.approx(100e-6)
    assert share.communication == pytest.approx(40e-6)
    assert share.exposed == pytest.approx(30e-6)
    assert share.families == pytest.approx({"all-gather": 20e-6, "all-reduce": 30e-6})
    assert share.share == pytest.approx(0.4)


def test_events_in_any_order_and_the_short_form(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([event(GEMM, 60, 40), event(REDUCE, 0, 10), event(GEMM, 10, 20)]))
    (share,) = read_shares([path])
    assert (share.rank, share.share) == ("t.json", pytest.approx(0.1))


def test_a_large_trace_needs_little_memory(tmp_path):
    path = tmp_path / "t.json.gz"
    padding = {"stack": "x" * 500}
    with gzip.open(path, "wt") as stream:
        stream.write('{"distributedInfo": {"rank": 0}, "traceEvents": [\n')
        for n in range(40_000):
            name = REDUCE if n % 4 == 0 else GEMM
            stream.write(json.dumps({**event(name, n * 10, 10), "args": padding}) + ",\n")
        stream.write(json.dumps(event(GEMM, 400_000, 10)) + "]}")
    tracemalloc.start()
    (share,) = read_shares([path])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert share.share == pytest.approx(0.25, abs=1e-3)
    assert peak < 12e6  # the text alone is 25 MB


def test_nsight_sqlite(tmp_path):
    kernels = [
        (17, 0, 7, GEMM, 0, 600),
        (17, 0, 9, REDUCE, 500, 900),
        (17, 1, 7, GEMM, 0, 1000),
        (18, 0, 7, GATHER, 0, 500),
        (18, 0, 7, GEMM, 500, 1000),
    ]
    path = write_sqlite(tmp_path / "run.sqlite", kernels, copies=[(17, 0, 900, 1000)])
    shares = {share.rank: share for share in read_shares([path])}
    assert shares.keys() == {"GPU 0 of process 17", "GPU 1 of process 17", "GPU 0 of process 18"}
    first = shares["GPU 0 of process 17"]
    assert (first.share, first.exposed) == (pytest.approx(0.4), pytest.approx(300e-9))
    assert shares["GPU 1 of process 17"].share == 0
    assert shares["GPU 0 of process 18"].families == pytest.approx({"all-gather": 500e-9})


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    """A function that puts a command ``nsys`` onto PATH, which runs these lines of sh."""

    def install(lines):
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "nsys").write_text(f"#!/bin/sh\n{lines}\n")
        (folder / "nsys").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        report = tmp_path / "reports" / "worker_process_7.1.nsys-rep"
        report.parent.mkdir()
        report.write_bytes(b"\x00\x01")
        return report

    return install


def test_a_report_of_nsight_is_exported_by_nsys(tmp_path, nsys):
    kernels = [(17, 0, 7, GEMM, 0, 600), (17, 0, 9, REDUCE, 600, 1000)]
    exported = write_sqlite(tmp_path / "exported", kernels)
    # nsys export --type sqlite --output OUT REPORT
    report = nsys(f'test "$1 $2 $3 $4" = "export --type sqlite --output" && cp {exported} "$5"')
    for source in (report, report.parent):
        (share,) = read_shares([source])
        assert (share.rank, share.share) == ("GPU 0 of process 17", pytest.approx(0.4))
    exported.rename(report.with_suffix(".sqlite"))
    assert len(read_shares([report.parent])) == 1  # its export is beside it, and nsys would fail


def test_a_report_that_nsys_cannot_read_is_said(nsys):
    report = nsys('echo "Importer error: file is too short" >&2; exit 1')
    with pytest.raises(MetricsError, match="file is too short"):
        read_shares([report])


def test_csv_of_nsys_stats(tmp_path):
    kernel = ["", "", "", "", "", "", "", "", "", "", "", "", "", ""]
    trace = [
        [0, 600, *kernel, "NVIDIA H200 (0)", 1, "", 7, GEMM],
        [500, 500, *kernel, "NVIDIA H200 (0)", 1, "", 9, REDUCE],
        [0, 100, *kernel, "NVIDIA H200 (1)", 1, "", 7, GEMM],
    ]
    path = tmp_path / "trace.csv"
    path.write_text(csv_text(GPU_TRACE, trace, "NOTICE: Existing SQLite export found\n"))
    shares = read_shares([path])
    assert [s.rank for s in shares] == ["NVIDIA H200 (0)", "NVIDIA H200 (1)"]
    assert shares[0].share == pytest.approx(0.5)
    assert shares[0].exposed == pytest.approx(400e-9)

    path = tmp_path / "sum.csv"
    sums = [(60, 600, 2, 1, 1, 1, 1, 1, GEMM), (40, 400, 2, 1, 1, 1, 1, 1, REDUCE)]
    path.write_text(csv_text(KERN_SUM, sums) + "\n\nOther report\n")
    (share,) = read_shares([path])
    assert (share.share, share.exposed) == (pytest.approx(0.4), None)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("cut.json", '{"traceEvents": [{"ph": "X"}, {"ph": "X", "na', "middle of an event"),
        ("other.json", '{"a": 1}', "no trace"),
        ("empty.json", '{"traceEvents": []}', "no kernel and no operation"),
        ("notes.csv", "hello,world\n", "no trace that is known"),
        ("bad.csv", csv_text(KERN_SUM, [(60, "x", 2, 1, 1, 1, 1, 1, GEMM)]), "cannot be read"),
        ("run.nsys-rep", "\x00\x01", "nsys export --type sqlite run.nsys-rep"),
    ],
)
def test_what_is_no_trace_is_said(tmp_path, name, content, says):
    (tmp_path / name).write_text(content)
    with pytest.raises(MetricsError, match=says):
        read_shares([tmp_path / name])


def test_broken_containers_are_said(tmp_path):
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(GLOO[0].read_bytes()[:3000])
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"SQLite format 3\x00" + b"x" * 100)
    for path in (cut, broken, tmp_path / "nothing.json", tmp_path):
        with pytest.raises(MetricsError, match=path.name):
            read_shares([path, tmp_path] if path is tmp_path else [path])


def test_an_export_without_gpu_kernels_is_said(tmp_path):
    import sqlite3

    path = tmp_path / "cpu.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    database.close()
    with pytest.raises(MetricsError, match="--trace=cuda"):
        read_shares([path])


def test_launches_without_kernels_are_said(tmp_path):
    events = [event("nccl:all_reduce", 0, 9, "user_annotation"), event("aten::mm", 0, 9, "cpu_op")]
    with pytest.raises(MetricsError, match="no GPU kernel"):
        read_shares([write_trace(tmp_path / "t.json", events)])


def test_a_directory_is_searched(tmp_path):
    for rank in (0, 1):
        (tmp_path / "steps").mkdir(exist_ok=True)
        write_trace(tmp_path / "steps" / f"{rank}.json", [event(REDUCE, 0, 9)], rank)
    assert [s.rank for s in read_shares([tmp_path])] == ["0", "1"]
