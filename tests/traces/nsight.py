"""Makes exports of Nsight Systems by their documented schema."""

import csv
import io
import sqlite3

#: Tables and columns of the SQLite Schema Reference that a CUDA profile has.
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, gridX INTEGER NOT NULL,
    gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL,
    blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
"""


def write_sqlite(path, kernels, copies=()):
    """Write kernels (pid, device, stream, name, start, end) and copies (pid, device, start, end).

    Times are in nanoseconds.
    """
    database = sqlite3.connect(path)
    database.executescript(SCHEMA)
    ids = {}
    for pid, device, stream, name, start, end in kernels:
        for text in (name, f"{name}(Args)"):
            if text not in ids:
                ids[text] = len(ids) + 1
                database.execute("INSERT INTO StringIds VALUES (?, ?)", (ids[text], text))
        row = (start, end, device, 1, None, stream, 0, pid << 24)
        names = (ids[f"{name}(Args)"], ids[name], None)
        values = (*row, *names, 0, 1, 1, 1, 128, 1, 1)
        marks = ",".join("?" * len(values))
        database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", values)  # noqa: S608
    for pid, device, start, end in copies:
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,1,1,0,?,4096,1)",
            (start, end, device, pid << 24),
        )
    database.commit()
    database.close()
    return path


def csv_text(names, rows, notice=""):
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(names)
    writer.writerows(rows)
    return notice + stream.getvalue()


KERN_SUM = (
    "Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)",
    "StdDev (ns)", "Name",
)  # fmt: skip
GPU_TRACE = (
    "Start (ns)", "Duration (ns)", "CorrId", "GrdX", "GrdY", "GrdZ", "BlkX", "BlkY", "BlkZ",
    "Reg/Trd", "StcSMem (MB)", "DymSMem (MB)", "Bytes (MB)", "Throughput (MB/s)", "SrcMemKd",
    "DstMemKd", "Device", "Ctx", "GreenCtx", "Strm", "Name",
)  # fmt: skip
