"""The same training as overrides, a bash script, a Ray job and an sbatch script.

Every word is quoted for the shell that reads it. No secret is written: what carries one by its
name is asked of the environment.
"""

from __future__ import annotations

import pprint
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kltune.verl.overrides import render
from kltune.verl.secrets import is_secret_name, redact, variable_of, without_secrets


@dataclass(frozen=True, slots=True)
class Training:
    """A training to write down.

    Attributes:
        command: interpreter, module and Hydra's own options.
        overrides: value by override key.
        env: variables that verl is started with.
        nodes, gpus_per_node: size of the job.
        name: name of the job.
    """

    command: Sequence[str]
    overrides: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1
    gpus_per_node: int = 8
    name: str = "kltune"

    def words(self) -> list[str]:
        """Return the overrides as words for verl, without secrets."""
        return render({k: without_secrets(k, v) for k, v in self.overrides.items()})

    def public_env(self) -> dict[str, str]:
        """Return the variables that are no secrets."""
        return {k: redact(v) for k, v in self.env.items() if not is_secret_name(k)}

    def secret_names(self) -> list[str]:
        """Return the variables that the caller has to set, since their values are secrets."""
        said = {k for k in self.env if is_secret_name(k)}
        for key, value in self.overrides.items():
            said |= {variable_of(name) for name in _secrets_in(key, value)}
        return sorted(said)


def _secrets_in(name: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [found for k, v in value.items() for found in _secrets_in(str(k), v)]
    if isinstance(value, (list, tuple)):
        return [found for item in value for found in _secrets_in(name, item)]
    return [name] if without_secrets(name, value) != value and is_secret_name(name) else []


def overrides_text(training: Training, header: Sequence[str] = ()) -> str:
    """Return the overrides one below the other, quoted so as to be pasted into a command line."""
    words = [shlex.quote(word) for word in training.words()]
    return _comment(header) + " \\\n".join(words) + "\n"


def bash_script(training: Training, header: Sequence[str] = ()) -> str:
    """Return a bash script that trains; its own arguments are passed on to verl."""
    return "#!/usr/bin/env bash\n" + "\n".join(
        [
            _comment(header).rstrip("\n"),
            "set -euo pipefail",
            *_environment(training),
            "",
            f"exec {_command(training)} \\\n    \"$@\"",
        ]
    ) + "\n"  # fmt: skip


def ray_job(training: Training, header: Sequence[str] = ()) -> str:
    """Return a Python script that submits the training to a Ray cluster.

    A script rather than a line of ``ray job submit``, which joins its words without the quotes
    that the shell on the cluster needs.
    """
    words = [*training.command, *training.words()]
    return f"""#!/usr/bin/env python3
{_comment(header)}import os
import shlex

from ray.job_submission import JobSubmissionClient

COMMAND = {_python(words)}
ENV = {_python(training.public_env())}
SECRETS = {_python(training.secret_names())}

client = JobSubmissionClient(os.environ.get("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:8265"))
job = client.submit_job(
    entrypoint=shlex.join(COMMAND),
    runtime_env={{"env_vars": {{**ENV, **{{name: os.environ[name] for name in SECRETS}}}}}},
)
print(job)
"""


def sbatch_script(training: Training, header: Sequence[str] = ()) -> str:
    """Return an sbatch script: one Ray cluster over the job's nodes, and verl on its head."""
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={_safe(training.name)}",
        f"#SBATCH --nodes={training.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={training.gpus_per_node}",
        "#SBATCH --output=%x-%j.log",
        _comment(header).rstrip("\n"),
        "set -euo pipefail",
        *_environment(training),
        "",
    ]
    if training.nodes > 1:
        lines += [ray_over_nodes(training.nodes, training.gpus_per_node), ""]
        lines.append(f'RAY_ADDRESS="$address" "${{on_head[@]}}" {_command(training)}')
    else:
        lines.append(f"srun --nodes=1 --ntasks=1 {_command(training)}")
    return "\n".join(lines) + "\n"


def ray_over_nodes(nodes: int, gpus: int) -> str:
    """Return the lines of an sbatch script that start Ray on its nodes and wait for all of them.

    They set ``address``, and ``on_head``, which runs a command on the first node.
    """
    return _CLUSTER.format(nodes=nodes, gpus=gpus).strip()


# Slurm binds a step to its CPUs, and Ray counts those of the machine: it must be told.
_CLUSTER = """
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
on_head=(srun --overlap --nodes=1 --ntasks=1 -w "${{nodes[0]}}")
cpus=${{SLURM_CPUS_PER_TASK:-${{SLURM_CPUS_ON_NODE%%(*}}}}
ip=$("${{on_head[@]}}" hostname --ip-address)
address=${{ip%% *}}:6379
"${{on_head[@]}}" ray start --head --node-ip-address="${{ip%% *}}" --port=6379 \\
    --num-cpus="$cpus" --num-gpus={gpus} --block &
for node in "${{nodes[@]:1}}"; do
    srun --overlap --nodes=1 --ntasks=1 -w "$node" ray start --address="$address" \\
        --num-cpus="$cpus" --num-gpus={gpus} --block &
done
"${{on_head[@]}}" python3 -c '
import sys, time, ray
for _ in range(60):
    try:
        ray.init(address=sys.argv[1])
        if sum(node["Alive"] for node in ray.nodes()) == {nodes}:
            sys.exit()
    except ConnectionError:
        pass
    ray.shutdown()
    time.sleep(5)
sys.exit("the Ray cluster did not come up with {nodes} nodes")
' "$address"
"""


def _environment(training: Training) -> list[str]:
    lines = [
        f"export {name}={shlex.quote(value)}" for name, value in training.public_env().items()
    ]
    lines += [f': "${{{name}:?set it before you start}}"' for name in training.secret_names()]
    return lines


def _command(training: Training) -> str:
    start = shlex.join(training.command)
    return " \\\n    ".join([start, *(shlex.quote(word) for word in training.words())])


def _comment(header: Sequence[str]) -> str:
    lines = [redact(line) for text in header for line in text.splitlines() or [""]]
    printable = ["".join(c if c.isprintable() else " " for c in line) for line in lines]
    return "".join(f"# {line}".rstrip() + "\n" for line in printable)


def _python(value: Any) -> str:
    return pprint.pformat(value, width=98, sort_dicts=False)


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name) or "kltune"
