"""Behaves like sbatch, squeue, sacct, scancel, sinfo, scontrol and srun of one machine.

The first word says which of them it is. Jobs are JSON files in the directory ``$FAKE_SLURM``. A
file ``full`` keeps jobs pending, ``no-accounting`` makes sacct fail, ``forgets`` makes squeue drop
jobs that have ended, ``down`` makes every program fail as it does without a controller.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

HOME = Path(os.environ.get("FAKE_SLURM", "."))
KILL_WAIT_S = 1.0


def say(text):
    sys.stdout.write(f"{text}\n")


def flag(name):
    return (HOME / name).exists()


def jobs(name):
    found = [json.loads(p.read_text()) for p in sorted(HOME.glob("job-*.json"))]
    return [job for job in found if job["name"] == name]


def save(job):
    path = HOME / f"job-{job['id']:04d}.json"
    path.with_suffix(".part").write_text(json.dumps(job))
    path.with_suffix(".part").replace(path)


def load(number):
    return json.loads((HOME / f"job-{number:04d}.json").read_text())


def option(words, name):
    return next((w.partition("=")[2] for w in words if w.startswith(f"--{name}=")), None)


def sbatch(words):
    script = Path(words[-1])
    asked = [
        option
        for line in script.read_text().splitlines()
        if line.startswith("#SBATCH ")
        for option in shlex.split(line.removeprefix("#SBATCH"))
    ]
    if option(asked, "partition") == "nowhere":
        sys.exit("sbatch: error: invalid partition specified: nowhere")
    number = len(list(HOME.glob("job-*.json"))) + 1
    job = {
        "id": number,
        "name": option(asked, "job-name"),
        "state": "PENDING",
        "code": 0,
        "pid": 0,
    }
    save({**job, "nodes": int(option(asked, "nodes"))})
    with Path(option(asked, "output")).open("a") as output:
        subprocess.Popen(
            [sys.executable, "-S", __file__, "supervise", str(number), str(script)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    say(number)


def supervise(words):
    number = int(words[0])
    while flag("full") and load(number)["state"] == "PENDING":
        time.sleep(0.02)
    job = load(number)
    if job["state"] != "PENDING":
        return
    nodes = ",".join(f"node{n}" for n in range(1, job["nodes"] + 1))
    env = {**os.environ, "SLURM_JOB_ID": str(number), "SLURM_JOB_NODELIST": nodes}
    env["SLURM_CPUS_ON_NODE"] = "8"
    process = subprocess.Popen(["bash", words[1]], env=env, start_new_session=True)
    save({**job, "state": "RUNNING", "pid": process.pid})
    process.wait()
    job = load(number)
    if job["state"] == "RUNNING":
        code = process.returncode
        save({**job, "state": "FAILED" if code else "COMPLETED", "code": code})


def squeue(words):
    for job in jobs(option(words, "name")):
        if job["state"] in ("PENDING", "RUNNING") or not flag("forgets"):
            reason = "Resources" if job["state"] == "PENDING" else "None"
            alive = job["pid"] and job["state"] == "CANCELLED" and is_alive(job["pid"])
            say(f"{'COMPLETING' if alive else job['state']}|{reason}")


def sacct(words):
    if flag("no-accounting"):
        sys.exit("Slurm accounting storage is disabled")
    for job in jobs(option(words, "name")):
        by = " by 1000" if job["state"] == "CANCELLED" else ""
        say(f"{job['state']}{by}|{job['code']}:0")


def scancel(words):
    for job in jobs(option(words, "name")):
        if job["state"] not in ("COMPLETED", "FAILED", "CANCELLED"):
            save({**job, "state": "CANCELLED"})
            if job["pid"]:
                end(job["pid"])


def end(pid):
    os.killpg(pid, signal.SIGTERM)
    if os.fork():
        return
    os.setsid()
    time.sleep(KILL_WAIT_S)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def is_alive(pid):
    """Whether anything of a process group is there that is no zombie."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == pid and state != "Z":
            return True
    return False


def sinfo(words):
    say("main* 2 nodes idle gpu:8")


def scontrol(words):
    say("\n".join(words[-1].split(",")))


def srun(words):
    start = next(n for n, w in enumerate(words) if not w.startswith("-") and words[n - 1] != "-w")
    os.execvp(words[start], words[start:])  # noqa: S606


if __name__ == "__main__":
    program, *rest = sys.argv[1:]
    if flag("down") and program != "supervise":
        sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    globals()[program](rest)
