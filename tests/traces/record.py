"""Records the torch profiler traces beside this file: two processes, collectives over gloo.

python tests/traces/record.py
"""

import gzip
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing import spawn
from torch.profiler import ProfilerActivity, profile

RANKS, STEPS = 2, 4


def work(rank, directory):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    weights = torch.randn(256, 256, requires_grad=True)
    parts = [torch.empty(64, 256) for _ in range(RANKS)]
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(STEPS):
            dist.all_gather(parts, torch.randn(64, 256))
            (torch.cat(parts) @ weights).square().mean().backward()
            dist.all_reduce(weights.grad)
            dist.broadcast(weights.detach(), src=0)
    os.chdir(directory)  # the trace holds the name that it is exported under
    path = Path(f"gloo-rank{rank}.json")
    profiler.export_chrome_trace(str(path))
    with gzip.GzipFile(f"{path}.gz", "wb", mtime=0) as stream:
        stream.write(path.read_bytes())
    path.unlink()
    dist.destroy_process_group()


if __name__ == "__main__":
    spawn(work, (sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent,), nprocs=RANKS)
