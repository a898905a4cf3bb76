"""Files for SkyPilot, Slurm and Kubernetes: valid by their recorded fields, and scripts that resume a training."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.recorded import recording
from tests.waiting import LIMIT_S

from ebbtide.errors import InputError
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.markets import Market
from ebbtide.runs.other_launchers import ChosenMarket, Launcher, launcher_file

PROGRAM = """
import sys, time
from ebbtide.trial import Trial

class Sum:
    ends_at = None
    value = 0
    def save(self, folder, *, within_step): (folder / "sum").write_text(str(self.value))
    def restore(self, folder): self.value = int((folder / "sum").read_text())

kept, trial = Sum(), Trial.current()
resumed = trial.keep(kept)
print("resumed at", resumed, flush=True)
for step in trial.steps():
    time.sleep(0.0 if resumed else 0.1)
    kept.value += step
    trial.report(sum=kept.value)
print(sys.argv[1], "sum", kept.value, flush=True)
"""


def choice(cloud: str, region: str, zone: str, name: str, is_spot: bool = True) -> ChosenMarket:
    market = Market(cloud, region, zone, name)
    return ChosenMarket(market, default_catalogue().machine_of(market), is_spot)


AWS = choice("aws", "us-east-1", "us-east-1a", "g6.2xlarge")
AWS_ID = choice("aws", "us-east-1", "use1-az2", "g6.2xlarge")
GCP = choice("gcp", "us-central1", "us-central1-a", "g2-standard-8")
ON_DEMAND = choice("aws", "us-east-1", "us-east-1b", "g6.2xlarge", False)
CHOICES = [AWS, AWS_ID, GCP, ON_DEMAND]


def sweep(**more: Any) -> Sweep:
    content = {
        "name": "My Digits!",
        "command": f"{sys.executable} train.py it's-{{lr}}".replace("'", "\\'"),
        "grid": {"lr": [0.1, 0.2]},
        "metric": "sum",
        "max_trial_steps": 500,
    }
    return validated(Sweep, content | more)


def task(work: Sweep, choices: list[ChosenMarket] = CHOICES) -> Any:
    found = yaml.safe_load(launcher_file(Launcher.SKYPILOT, work, choices))
    jsonschema.validate(found, json.loads(recording("skypilot_task.json")))
    return found


def job(work: Sweep, choices: list[ChosenMarket] = CHOICES) -> Any:
    found = yaml.safe_load(launcher_file(Launcher.KUBERNETES, work, choices))
    jsonschema.validate(found, json.loads(recording("kubernetes_job.json")))
    return found


def test_skypilot_is_asked_for_each_market_the_best_first_and_on_demand_last() -> None:
    found = task(sweep())
    assert found["name"] == "my-digits"
    assert [(one["infra"], one["use_spot"]) for one in found["resources"]["ordered"]] == [
        ("aws/us-east-1/us-east-1a", True),
        ("aws/us-east-1", True),
        ("gcp/us-central1/us-central1-a", True),
        ("aws/us-east-1/us-east-1b", False),
    ]


def test_the_recorded_fields_refuse_what_skypilot_would() -> None:
    found = task(sweep())
    found["resources"]["ordered"][0]["spot"] = True
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, json.loads(recording("skypilot_task.json")))


def test_slurm_has_options_that_sbatch_knows() -> None:
    text = launcher_file(Launcher.SLURM, sweep(), CHOICES)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, re.MULTILINE))
    assert set(options) <= set(recording("sbatch_options.txt").split())
    assert options["constraint"] == '"us-east-1a&g6.2xlarge"'
    assert (options["array"], options["gres"], options["signal"]) == ("0-1", "gpu:1", "B:TERM@120")
    assert "requeue" in options
    # Options are read up to the first other line.
    assert text.startswith("#!/bin/bash\n#SBATCH ")
    assert "#SBATCH" not in text[text.index("\ntrials=") :]


@pytest.mark.parametrize(
    ("first", "label", "grace_s", "tainted"),
    [
        (AWS, {"karpenter.sh/capacity-type": "spot"}, 120, False),
        (GCP, {"cloud.google.com/gke-spot": "true"}, 15, True),
    ],
)
def test_kubernetes_selects_spot_nodes_of_the_best_cloud(
    first: ChosenMarket, label: dict[str, str], grace_s: int, tainted: bool
) -> None:
    found = job(sweep(), [first, AWS, GCP, ON_DEMAND])
    pod = found["spec"]["template"]["spec"]
    assert (pod["nodeSelector"], pod["terminationGracePeriodSeconds"]) == (label, grace_s)
    assert ("tolerations" in pod) is tainted
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms[0]["matchExpressions"][0]["values"] == [first.market.zone]
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert (found["spec"]["completionMode"], found["spec"]["completions"]) == ("Indexed", 2)


def test_one_training_is_no_array() -> None:
    work = sweep(command="python train.py", grid=None)
    assert "completionMode" not in job(work)["spec"]
    assert "--array" not in launcher_file(Launcher.SLURM, work, CHOICES)
    assert "for trial" not in launcher_file(Launcher.SKYPILOT, work, CHOICES)


@pytest.mark.parametrize(
    ("more", "choices", "told"),
    [
        ({"machines": 4}, CHOICES, "ask for one a trial"),
        ({"command": None, "entry_point": "a:b", "grid": {"lr": [1]}}, CHOICES, "no command for each trial"),
        ({}, [ON_DEMAND], "no known label of spot machines"),
    ],
)
def test_what_other_launchers_cannot_run_is_told(
    more: dict[str, Any], choices: list[ChosenMarket], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        launcher_file(Launcher.KUBERNETES, sweep(**more), choices)


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    # `scontrol` says what it was asked for.
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "scontrol $@"\n')
    (tmp_path / "scontrol").chmod(0o755)
    return tmp_path


def script(launcher: Launcher, work: Sweep, folder: Path) -> str:
    """What the launcher runs, with a place of its own for checkpoints."""
    if launcher is Launcher.SLURM:
        text = launcher_file(launcher, work, CHOICES)
    elif launcher is Launcher.SKYPILOT:
        text = task(work)["run"]
    else:
        text = job(work)["spec"]["template"]["spec"]["containers"][0]["command"][2]
    return text.replace("=/checkpoints/", f"={folder}/kept/")


@pytest.mark.long
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("launcher", list(Launcher))
def test_a_training_that_was_told_to_end_resumes_without_an_agent(launcher: Launcher, begun: Path) -> None:
    text = script(launcher, sweep(), begun)
    numbers = {"TRIAL": "1", "SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "7", "JOB_COMPLETION_INDEX": "1"}
    environment = {**os.environ, **numbers, "PATH": f"{begun}:{os.environ['PATH']}"}
    first = subprocess.Popen(["bash", "-c", text], cwd=begun, env=environment, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    for _ in range(3):
        while '"sum"' not in first.stdout.readline():
            assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    out, _ = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 143
    assert ("scontrol requeue 7_1" in out) is (launcher is Launcher.SLURM)
    again = subprocess.run(
        ["bash", "-c", text], cwd=begun, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert again.returncode == 0
    resumed = re.search(r"resumed at (\d+)", again.stdout)
    assert resumed is not None
    assert int(resumed[1]) > 0
    assert f"it's-0.2 sum {sum(range(1, 501))}" in again.stdout
    assert sorted(path.name for path in (begun / "kept" / "my-digits").iterdir()) == ["1"]


@pytest.mark.usefixtures("processes")
def test_a_program_that_fails_fails(begun: Path) -> None:
    (begun / "train.py").write_text("raise SystemExit(3)")
    ended = subprocess.run(
        ["bash", "-c", script(Launcher.SKYPILOT, sweep(), begun)], cwd=begun, env={**os.environ, "TRIAL": "0"}
    )
    assert ended.returncode == 3


@pytest.mark.usefixtures("processes")
def test_a_program_with_a_folder_of_its_own_finds_it_again(begun: Path) -> None:
    (begun / "train.py").write_text("open('ckpt/a', 'a').write('x'); print(open('ckpt/a').read())")
    text = script(Launcher.KUBERNETES, sweep(checkpoints="ckpt"), begun)
    for _ in range(2):
        ended = subprocess.run(["bash", "-c", text], cwd=begun, capture_output=True, text=True, check=True)
    assert ended.stdout == "xx\n"
