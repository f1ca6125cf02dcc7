"""Stands in for ``verl.trainer.main_ppo`` at the process boundary. Standard library only.

It takes verl's overrides, prints a configuration, writes step lines and verl's JSONL metrics, and
moves the coefficient by verl's own controller. Its "training" is a smooth function of coefficient,
step and seed: reference KL climbs from 0 towards a level that falls with the coefficient, and the
score rises with sqrt(KL), then falls (the shape of Gao et al. 2022, arXiv 2210.10760).

``STAND_IN`` holds words, each a way to misbehave: ``nan-at=3``, ``ignores-sigterm``, ... A word
that ends in ``@text`` holds only for experiments whose name contains the text.
``STAND_IN_STEP_S`` is the length of a step in seconds, ``STAND_IN_SPEED`` the part of its way that
the KL goes in one. Asked for the answers of a validation, it solves ``STAND_IN_PROBLEMS`` sums, as
many of them as its score says. A custom reward function is called as verl does; answers grow with
the KL, and those of a validation are empty. A profiled step has a trace for every rank, with the
share of communication that ``communicates=0.4`` says.
"""

import gzip
import importlib.util
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from pprint import pformat

CEILING, HALF = 0.07, 0.005
SPEED = float(os.environ.get("STAND_IN_SPEED", "0.5"))
RAY = "\x1b[36m(TaskRunnerV1 pid=4711)\x1b[0m "
VALIDATION = "val-core/openai/gsm8k/acc/mean@1"


def say(text, prefix=RAY):
    sys.stdout.write("".join(f"{prefix}{line}\n" for line in text.splitlines()))
    sys.stdout.flush()


def parse(text):
    """Return the value of an override's right-hand side (the part of Hydra's grammar we meet)."""
    value, rest = parse_value(text)
    assert not rest, f"cannot read {text!r}"
    return value


def parse_value(text, ends=""):
    if text[:1] == "'":
        out, i = "", 1
        while text[i] != "'":
            i += text[i] == "\\" and text[i + 1] in "\\'"
            out, i = out + text[i], i + 1
        return out, text[i + 1 :]
    if text[:1] in "[{" and text:
        items, rest, closing = [], text[1:], "]" if text[0] == "[" else "}"
        while not rest.startswith(closing):
            item, rest = parse_value(rest.lstrip(", "), ",:" + closing)
            items.append(item)
            if rest.startswith(":"):
                item, rest = parse_value(rest[1:], "," + closing)
                items.append(item)
        if closing == "}":
            return dict(zip(items[::2], items[1::2], strict=True)), rest[1:]
        return items, rest[1:]
    end = next((i for i, c in enumerate(text) if c in ends), len(text))
    word = text[:end]
    for kind in ({"null": None, "true": True, "false": False}.__getitem__, int, float, str):
        try:
            return kind(word), text[end:]
        except (KeyError, ValueError):
            continue
    raise AssertionError(word)


def nested(words):
    config = {}
    for word in words:
        key, _, value = word.partition("=")
        if key.startswith(("~", "hydra.")):
            continue
        *parents, name = key.lstrip("+").split(".")
        node = config
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = parse(value)
    return config


def at(config, key, default=None):
    for part in key.split("."):
        if not isinstance(config, dict) or part not in config:
            return default
        config = config[part]
    return default if config is None else config


def scenario(experiment):
    found = {}
    for word in os.environ.get("STAND_IN", "").split():
        word, _, only = word.partition("@")
        name, _, value = word.partition("=")
        if only in experiment:
            found[name] = value
    return found


def main(words):
    config = nested(words)
    experiment = at(config, "trainer.experiment_name", "")
    wrong = scenario(experiment)
    if "ignores-sigterm" in wrong:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say("ray init kwargs: {'num_cpus': 8}", prefix="")
    if "leaves-grandchildren" in wrong:
        # As Ray's daemons do: out of the process group, and they outlive the driver.
        subprocess.Popen(["sleep", "300"], start_new_session=True)
    if "needs" in wrong and not Path(wrong["needs"]).exists():
        crash(f"ModuleNotFoundError: No module named {Path(wrong['needs']).name!r}")
    if "file" not in at(config, "trainer.logger", []):
        wrong["console-only"] = ""
    if "hangs-before-step-1" in wrong:
        time.sleep(300)
    printed = json.loads(json.dumps(config))
    if "other-value" in wrong:
        key, _, value = wrong["other-value"].partition(":")
        *parents, name = key.split(".")
        node = printed
        for parent in parents:
            node = node[parent]
        node[name] = parse(value)
    say(pformat(printed))
    if "crash-before-step-1" in wrong:
        crash("RuntimeError: the reward model said no")
    train(config, wrong)
    if "dataloader-line" in wrong:
        say("RuntimeError: DataLoader worker (pid 5) is killed by signal: Terminated.")


def train(config, wrong):
    seed, steps = at(config, "data.seed", 1), at(config, "trainer.total_training_steps")
    rows = at(config, "data.train_batch_size", 1024) * at(config, "actor_rollout_ref.rollout.n", 1)
    control = at(config, "algorithm.kl_ctrl", {})
    beta, adaptive = control["kl_coef"], control.get("type") == "adaptive"
    freq = at(config, "trainer.test_freq", -1)
    # As where one of several ranks has other weights than the reference.
    apart = "nodes-differ" in wrong and at(config, "trainer.nnodes", 1) > 1
    kl, first = 0.002 if apart else 0.0, 1
    resume = at(config, "trainer.resume_from_path", "")
    if at(config, "trainer.resume_mode") == "resume_path":
        kl = float(Path(resume, "kl").read_text())
        first = int(resume.rpartition("global_step_")[2]) + 1
    if at(config, "trainer.val_before_train", True):
        write(0, {VALIDATION: held_out(0.0, wrong)}, wrong)
        dump(config, 0, kl, wrong)
    for step in range(first, steps + 1):
        started = time.monotonic()
        time.sleep(float(os.environ.get("STAND_IN_STEP_S", "0.01")))
        misbehave(step, wrong)
        noise = 1 + 0.02 * (random.Random(f"{seed} {step}").random() - 0.5)
        used = beta
        kl_now = kl * noise
        grade(config, step - 1, [answer(kl_now, seed, step, n, wrong) for n in range(rows)])
        if "explodes" in wrong:
            kl_now = 0.1 * step
        if adaptive:
            error = min(max(kl_now / control["target_kl"] - 1, -0.2), 0.2)
            beta *= 1 + error * rows / control["horizon"]
        data = {
            "actor/reward_kl_penalty": kl_now,
            "actor/reward_kl_penalty_coeff": used,
            "actor/ppo_kl": 0.0005,
            "actor/pg_loss": 0.01,
            "actor/entropy": 0.5,
            "actor/grad_norm": 1.0 + 0.1 * noise,
            "critic/score/mean": score(kl_now),
            "critic/score/min": 0.0,
            "critic/score/max": 1.0,
            "critic/rewards/mean": score(kl_now) - used * kl_now,
            "critic/vf_loss": 0.1 / step,
            "response_length/mean": 12.0 + noise,
            "response_length/clip_ratio": 0.0,
            "timing_s/step": time.monotonic() - started,
            "perf/throughput": 500.0,
        }
        if step == int(wrong.get("nan-at", 0)):
            data["actor/grad_norm"] = data["actor/pg_loss"] = math.nan
        if step == int(wrong.get("nan-kl-at", 0)):
            data["actor/reward_kl_penalty"] = math.nan
        kl += SPEED * (CEILING / (1 + beta / HALF) - kl)
        if step == steps or (freq > 0 and step % freq == 0):
            data[VALIDATION] = held_out(kl, wrong)
            dump(config, step, kl, wrong)
        profile(config, step, wrong)
        write(step, data, wrong)
        save_freq = at(config, "trainer.save_freq", -1)
        if save_freq > 0 and step % save_freq == 0:
            save(config, step, kl)


def score(kl):
    return 0.4 + 1.5 * math.sqrt(max(kl, 0.0)) - 4.3 * max(kl, 0.0)


def held_out(kl, wrong):
    """Return the score on problems that were not trained on; a hacked reward loses it."""
    if "hacked" not in wrong:
        return score(kl)
    return max(0.05, 0.4 + 20 * min(kl, 0.02) - 20 * max(0.0, kl - 0.02))


def dump(config, step, kl, wrong):
    grade(config, step, ["", ""])
    directory = at(config, "trainer.validation_data_dir")
    if directory is None:
        return
    seed = at(config, "data.seed", 1) if step else 0
    samples = at(config, "actor_rollout_ref.rollout.val_kwargs.n", 1)
    Path(directory).mkdir(parents=True, exist_ok=True)
    with Path(directory, f"{step}.jsonl").open("w", encoding="utf-8") as stream:
        for n in range(int(os.environ.get("STAND_IN_PROBLEMS", "0"))):
            for sample in range(samples):
                luck = random.Random(f"{seed} {step} {n} {sample}").random()
                answer = {
                    "input": f"user\nHow much is {n} plus one?\nassistant\n",
                    "output": "...",
                    "gts": str(n + 1),
                    "score": float(luck < held_out(kl, wrong)),
                }
                stream.write(json.dumps(answer) + "\n")


def profile(config, step, wrong):
    """Write the torch profiler's trace of every profiled rank, as verl 0.9.1 does."""
    asked = at(config, "global_profiler", {})
    role = at(config, "actor_rollout_ref.actor.profiler", {})
    if step not in (asked.get("steps") or []) or not role.get("enable") or "no-traces" in wrong:
        return
    folder = Path(asked["save_path"])
    folder.mkdir(parents=True, exist_ok=True)
    size = at(config, "trainer.nnodes", 1) * at(config, "trainer.n_gpus_per_node", 1)
    gather = float(wrong.get("communicates", 0.1)) * 1e6
    for rank in role["ranks"]:
        spans = [("aten::mm", "cpu_op", 0, 1e6), ("gloo:all_gather", "user_annotation", 5, gather)]
        events = [
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}
            for name, cat, ts, dur in spans
        ]
        info = {"backend": "gloo", "rank": rank, "world_size": size}
        trace = json.dumps({"distributedInfo": info, "traceEvents": events})
        name = f"actor-rollout-ref_train_step{step}_rank{rank}-of-{size}_pid{os.getpid()}.json.gz"
        with gzip.open(folder / name, "wt", encoding="utf-8") as stream:
            stream.write(trace)


def answer(kl, seed, step, n, wrong):
    luck = random.Random(f"{seed} {step} {n}").random()
    return "x" * int(1000 * kl) + (" #### 1" if luck < held_out(kl, wrong) else "")


def grade(config, version, answers):
    reward = at(config, "reward.custom_reward_function")
    if reward is None:
        return
    spec = importlib.util.spec_from_file_location("custom", reward["path"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    given = dict(reward["reward_kwargs"])
    for text in answers:
        # verl hands one dictionary on, and the rollout engine tells the policy's version in it.
        getattr(module, reward["name"])("sums", text, "1", {"max_global_steps": version}, **given)


def save(config, step, kl):
    home = Path(at(config, "trainer.default_local_dir"))
    (home / f"global_step_{step}" / "actor").mkdir(parents=True)
    (home / f"global_step_{step}" / "kl").write_text(repr(kl))
    (home / "latest_checkpointed_iteration.txt").write_text(str(step))


def write(step, data, wrong):
    fields = " - ".join(f"{name}:np.float64({value!r})" for name, value in data.items())
    say(f"step:{step} - {fields}")
    if "console-only" in wrong:
        return
    finite = {name: value if math.isfinite(value) else None for name, value in data.items()}
    line = json.dumps({"step": step, "data": finite}) + "\n"
    with Path(os.environ["VERL_FILE_LOGGER_PATH"]).open("a", encoding="utf-8") as stream:
        if "half-lines" in wrong:
            stream.write(line[:40])
            stream.flush()
            time.sleep(0.02)
            line = line[40:]
        stream.write(line)


def misbehave(step, wrong):
    def now(name):
        return step == int(wrong.get(name) or 0)

    if now("crash-at"):
        crash("RuntimeError: shape mismatch in the actor")
    if now("oom-at"):
        crash("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    if now("exits-early-at"):
        sys.exit(0)
    if now("killed-at"):
        os.kill(os.getpid(), signal.SIGKILL)
    if now("hangs-at"):
        time.sleep(300)
    while now("waits-at") and not Path("gate").exists():
        time.sleep(0.01)


def crash(last_line):
    say(
        "Traceback (most recent call last):\n"
        '  File "verl/trainer/main_ppo.py", line 1, in run\n'
        "    self.fit()\n"
        f"{last_line}"
    )
    say("Error executing job with overrides: ['data.seed=1']", prefix="")
    sys.exit(1)


main(sys.argv[1:])
