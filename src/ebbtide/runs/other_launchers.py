"""Files for other launchers: a SkyPilot task, a Slurm script, a Kubernetes Job.

Such a file requests the machines that `ebbtide plan` names, the best first, runs each trial of a job or sweep
with its own checkpoint folder, and restarts trials that were revoked. A program that uses `ebbtide.trial` needs no
agent for that: it finds the folder in EBBTIDE_CHECKPOINT_DIR, and saves and exits at SIGTERM.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml

from ebbtide.errors import InputError
from ebbtide.jobs.job_list import OneJob
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.catalogue import InstanceType
from ebbtide.market.markets import Market
from ebbtide.trial import CHECKPOINT_DIR, MAX_STEPS, TRIAL_ID

# Mount point of the checkpoints on every machine: a bucket or a volume.
_CHECKPOINTS = "/checkpoints"
# Exit code at SIGTERM, which a launcher must not take for success.
_TAKEN = 143
# Seconds before the end of a job at which Slurm sends the signal.
_SLURM_NOTICE_S = 120


class Launcher(StrEnum):
    """Launcher that rents the machines."""

    SKYPILOT = "skypilot"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True)
class ChosenMarket:
    """A market in which to train.

    Attributes:
        market: The market.
        machine: The machine to rent there.
        is_spot: Whether to rent a spot machine, else an on-demand one.
    """

    market: Market
    machine: InstanceType
    is_spot: bool = True


@dataclass(frozen=True)
class _Spot:
    """Label of a cloud's spot nodes in Kubernetes, and the grace period of a pod after a notice."""

    label: str
    value: str
    grace_s: int
    is_tainted: bool = False


_SPOT_NODES = {
    # Nodes of Karpenter and of EKS Auto Mode; managed node groups have eks.amazonaws.com/capacityType: SPOT.
    "aws": _Spot("karpenter.sh/capacity-type", "spot", 120),
    # GKE leaves pods the first 15 s of a notice of 30 s.
    "gcp": _Spot("cloud.google.com/gke-spot", "true", 15, is_tainted=True),
    "azure": _Spot("kubernetes.azure.com/scalesetpriority", "spot", 30, is_tainted=True),
}


def launcher_file(launcher: Launcher, sweep: OneJob, choices: Sequence[ChosenMarket]) -> str:
    """The text of a launcher's file.

    Args:
        launcher: The launcher that is to rent the machines.
        sweep: The sweep, each of whose trials trains by itself.
        choices: Markets in which to train, the best first.

    Raises:
        InputError: The sweep has no command for each trial, or wants several machines for one, or the launcher
            cannot rent in any of the markets.
    """
    if sweep.kind != "sweep" or sweep.command is None:
        raise InputError(
            f"{sweep.name} has no command for each trial; other launchers run trainings and sweeps that have one",
            field="command",
        )
    if sweep.machines != 1:
        problem = f"{sweep.name} wants machines that train as one; files for other launchers ask for one a trial"
        raise InputError(problem, field="machines")
    return _WRITERS[launcher](sweep, choices)


def _name(sweep: OneJob) -> str:
    """A name that every launcher accepts: at most 40 lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", sweep.name.casefold()).strip("-")[:40].strip("-") or "training"


def _script(sweep: OneJob, number: str, at_end: str) -> str:
    """Lines of bash that run one trial.

    Args:
        sweep: The sweep to train.
        number: The trial's number, in bash.
        at_end: Command to run after a notice, once the program has saved and exited.
    """
    folder = f'"${CHECKPOINT_DIR}"'
    lines = ["trials=("]
    for trial in sweep.trials():
        # Close and reopen the single quotes around it, which its braces caused.
        command = shlex.join(sweep.arguments(trial)).replace("{checkpoint_dir}", f"'{folder}'")
        lines.append(f"  {shlex.quote(command)}")
    lines += [
        ")",
        f"number={number}",
        f"export {TRIAL_ID}=$number {CHECKPOINT_DIR}={_CHECKPOINTS}/{_name(sweep)}/$number",
        *([f"export {MAX_STEPS}={sweep.steps}"] if sweep.steps else []),
        f"mkdir -p {folder}",
        *([f"ln -sfn {folder} {shlex.quote(sweep.checkpoints)}"] if sweep.checkpoints else []),
        "# At SIGTERM the program saves and ends as if it were done; this tells one from the other.",
        "trap 'taken=yes; kill -TERM \"$program\"' TERM",
        'eval "exec ${trials[$number]}" &',
        "program=$!",
        'wait "$program"; code=$?',
        'while kill -0 "$program" 2>/dev/null; do wait "$program"; code=$?; done',
        f'if [ -n "$taken" ]; then {at_end}; fi',
        "exit $code",
    ]
    return "\n".join(lines) + "\n"


# SkyPilot


def _skypilot(sweep: OneJob, choices: Sequence[ChosenMarket]) -> str:
    ordered = [
        {"infra": _infra(one.market), "instance_type": one.market.instance_type, "use_spot": one.is_spot}
        for one in choices
    ]
    content = {
        "name": _name(sweep),
        "envs": {"TRIAL": "0"},
        "resources": {
            # Two entries may be the same without their zones.
            "ordered": [one for place, one in enumerate(ordered) if one not in ordered[:place]],
            # Retry only the exit code after a notice, not the program's own error codes.
            "job_recovery": {"max_restarts_on_errors": 0, "recover_on_exit_codes": [_TAKEN]},
        },
        "workdir": ".",
        "file_mounts": {_CHECKPOINTS: {"name": "your-bucket", "mode": "MOUNT"}},
        "setup": "pip install ebbtide  # and what the program needs\n",
        "run": _script(sweep, "$TRIAL", f"exit {_TAKEN}"),
    }
    each = _each(sweep, "sky jobs launch -y -d -n {name}-$trial --env TRIAL=$trial task.yaml")
    return f"# {each}\n# The bucket is made if there is none of the name.\n{_yaml(content)}"


def _infra(market: Market) -> str:
    """Cloud and region, with the zone if its name is one that SkyPilot knows, such as us-east-1a."""
    place = f"{market.cloud}/{market.region}"
    named = re.fullmatch(rf"{re.escape(market.region)}-?[a-z]\d?", market.zone)
    return f"{place}/{market.zone}" if named else place


# Slurm


def _slurm(sweep: OneJob, choices: Sequence[ChosenMarket]) -> str:
    best = choices[0]
    count = len(sweep.trials())
    options = [
        f"--job-name={_name(sweep)}",
        f"--partition={'spot' if best.is_spot else 'on-demand'}",
        f"--constraint={best.market.zone}&{best.market.instance_type}",
        *([f"--gres=gpu:{best.machine.accelerator_count}"] if best.machine.accelerator_count else []),
        "--nodes=1",
        f"--cpus-per-task={best.machine.vcpus}",
        *([f"--array=0-{count - 1}"] if count > 1 else []),
        "--requeue",
        "--open-mode=append",
        # B: sends the signal to the script's shell, which passes it on.
        f"--signal=B:TERM@{_SLURM_NOTICE_S}",
    ]
    number = "${SLURM_ARRAY_TASK_ID:-0}" if count > 1 else "0"
    job = '"${SLURM_ARRAY_JOB_ID}_$number"' if count > 1 else '"$SLURM_JOB_ID"'
    others = [f"{one.market.zone}&{one.market.instance_type}" for one in choices[1:] if one.is_spot]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {_quoted_option(option)}" for option in options),
        "# sbatch job.sh. Partition and features (zone&type) have the names that your slurm.conf gives them.",
        *([f"# The next best: {', '.join(others)}"] if others else []),
        f"# {_CHECKPOINTS} is a file system that all nodes share.",
    ]
    return "\n".join(lines) + "\n" + _script(sweep, number, f"scontrol requeue {job}; exit {_TAKEN}")


def _quoted_option(option: str) -> str:
    """An option, with its value in quotes if a shell would misread it."""
    name, mark, value = option.partition("=")
    return f'{name}{mark}"{value}"' if "&" in value else option


# Kubernetes


def _kubernetes(sweep: OneJob, choices: Sequence[ChosenMarket]) -> str:
    spot = [one for one in choices if one.is_spot and one.market.cloud in _SPOT_NODES]
    if not spot:
        clouds = sorted({one.market.cloud for one in choices})
        raise InputError(
            f"nodes of {', '.join(clouds)} have no known label of spot machines; known: aws, azure, gcp"
        )
    # A Kubernetes cluster belongs to one cloud.
    cloud = spot[0].market.cloud
    spot = [one for one in spot if one.market.cloud == cloud]
    marked, machine, count = _SPOT_NODES[cloud], spot[0].machine, len(sweep.trials())
    gpus = {"nvidia.com/gpu": machine.accelerator_count} if machine.accelerator_count else {}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": marked.grace_s,
        "nodeSelector": {marked.label: marked.value},
        "affinity": {"nodeAffinity": _affinity(spot)},
        "containers": [
            {
                "name": "train",
                "image": "your-image",
                "command": ["/bin/bash", "-c", _script(sweep, "${JOB_COMPLETION_INDEX:-0}", f"exit {_TAKEN}")],
                **({"resources": {"limits": gpus}} if gpus else {}),
                "volumeMounts": [{"name": "checkpoints", "mountPath": _CHECKPOINTS}],
            }
        ],
        "volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
    }
    if marked.is_tainted:
        taint = {"key": marked.label, "operator": "Equal", "value": marked.value, "effect": "NoSchedule"}
        pod["tolerations"] = [taint]
    content = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": _name(sweep)},
        "spec": {
            **({"completionMode": "Indexed", "completions": count, "parallelism": count} if count > 1 else {}),
            "backoffLimit": 0,
            # A pod whose node was revoked does not count as a failure, and is replaced.
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {
                        "action": "Ignore",
                        "onExitCodes": {"containerName": "train", "operator": "In", "values": [_TAKEN]},
                    },
                ]
            },
            "template": {"spec": pod},
        },
    }
    note = (
        "# kubectl apply -f job.yaml; nodes of all these zones must be able to mount the claim (ReadWriteMany)\n"
    )
    return note + _yaml(content)


def _affinity(choices: Sequence[ChosenMarket]) -> dict[str, Any]:
    """Node affinity for any of these markets, with a preference for the better ones."""
    terms = [
        {
            "matchExpressions": [
                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [one.market.zone]},
                {
                    "key": "node.kubernetes.io/instance-type",
                    "operator": "In",
                    "values": [one.market.instance_type],
                },
            ]
        }
        for one in choices
    ]
    weights = [max(100 - 10 * place, 1) for place in range(len(terms))]
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": weight, "preference": term} for weight, term in zip(weights, terms, strict=True)
        ],
    }


def _each(sweep: OneJob, command: str) -> str:
    """A bash command that runs a command for every trial."""
    last = len(sweep.trials()) - 1
    line = command.format(name=_name(sweep))
    return f"for trial in $(seq 0 {last}); do {line}; done" if last else line.replace("$trial", "0")


class _Dumper(yaml.SafeDumper):
    """Writes multi-line text as blocks, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (as PyYAML calls it)
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


_WRITERS: dict[Launcher, Callable[[Sweep, Sequence[ChosenMarket]], str]] = {
    Launcher.SKYPILOT: _skypilot,
    Launcher.SLURM: _slurm,
    Launcher.KUBERNETES: _kubernetes,
}
