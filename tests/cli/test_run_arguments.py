"""`ebbtide run -- python train.py`: one's own training through revocations, without a file that describes it."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.cli.test_running import command
from tests.runs.sweeps import START_S, flapping

import ebbtide as eb
from ebbtide.base.cores import usable_cores
from ebbtide.base.utc import DAY_S, iso
from ebbtide.cli.run_arguments import TrainingOptions, is_told_where_to_save, wanted_from
from ebbtide.clouds.settings import find_run
from ebbtide.controller.journal.journal import Journal
from ebbtide.errors import InputError
from ebbtide.jobs.cluster import Cluster
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.catalogue import InstanceType, default_catalogue
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.policies.for_job import policy_for
from ebbtide.policies.registry import DEFAULT_NAME
from ebbtide.replay.generated_markets import MarketKind
from ebbtide.runs.start_local import generated_market

EXAMPLES = Path(__file__).parents[2] / "examples" / "live"
# Least seconds of an epoch.
_PAUSE_S = 2.1


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script and nothing else, in which the user is."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(EXAMPLES / "plain.py", folder)
    monkeypatch.chdir(folder)
    return folder


def weights(text: str) -> str:
    (found,) = set(re.findall(r"weights (\w{64})", text))
    return found


def undisturbed(folder: Path, epochs: int) -> str:
    words = [
        sys.executable,
        "plain.py",
        "--epochs",
        str(epochs),
        "--checkpoints",
        str(folder.parent / "undisturbed"),
    ]
    return weights(subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout)


def through_revocations(
    project: Path, capsys: pytest.CaptureFixture[str], revocations: int, *, epochs: int
) -> None:
    """Train the plain script on machines that are revoked, and compare it with one that was never disturbed.

    By today's rules no price takes a machine: capacity goes where prices rise, every 45 s of the machine's own
    clock. They rise twice more than is asked for: under load, a machine may not have been there yet. The market
    is calm after that: a machine under load, on which a program is slow to start, would else never come to the
    end.
    """
    every_h = 0.25
    flaps = flapping(every_h, (revocations + 2) * every_h)
    end_s = flaps.start_s + 5 * DAY_S
    series = {
        market: PriceSeries(np.append(prices.times_s, end_s), np.append(prices.prices, 0.031))
        for market, prices in flaps.items()
    }
    eb.PriceHistory(series, start_s=flaps.start_s, end_s=end_s + 60).write(project.parent / "prices.parquet")
    machines = {
        market: CapacitySeries(prices.times_s, np.where(prices.prices > 0.1, 0, 4), end_s)
        for market, prices in series.items()
    }
    Availability(machines).write(project.parent / "capacity.parquet")
    code, out, errors = command(
        capsys,
        "run",
        "--checkpoints",
        "ckpt",
        "--metric",
        "validation_loss",
        "--prices",
        project.parent / "prices.parquet",
        "--start",
        iso(START_S),
        "--speed",
        20,
        "--availability",
        project.parent / "capacity.parquet",
        "--",
        "python",
        "plain.py",
        "--epochs",
        epochs,
        "--pause-s",
        _PAUSE_S,
    )
    assert (code, errors) == (0, errors), errors
    assert f"plain: one training; policy {DEFAULT_NAME} decides" in out
    folder = find_run(Path(".ebbtide/runs"), None)
    (log,) = (folder.path / "logs").iterdir()
    assert weights(log.read_text()) == undisturbed(project, epochs)
    resumed = [int(epoch) for epoch in re.findall(r"resuming after epoch (\d+)", log.read_text())]
    # From later on each time: what was trained was stored. At a notice the policy moves first, so that a machine is
    # not always revoked in the end.
    assert len(resumed) >= revocations
    assert resumed == sorted(resumed)
    assert resumed[-1] >= 1
    # Nothing is written into the user's own folder.
    assert sorted(path.name for path in project.iterdir()) == [".ebbtide", "plain.py"]
    (job,) = Journal(folder.journal).run()["engine"]["jobs"]
    assert (job["steps_done"], job["steps_saved"]) == (epochs, epochs)
    (rate,) = re.findall(r"other_steps_per_hour_per_vcpu: (\S+)", out)
    # By this machine's clock.
    assert 100 < float(rate) * usable_cores() < 3600 / _PAUSE_S


@pytest.mark.usefixtures("processes")
@pytest.mark.long
def test_a_plain_script_ends_with_the_same_weights_through_five_revocations(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    through_revocations(project, capsys, 5, epochs=110)


def wanted(*words: object, **options: Any) -> Sweep:
    return wanted_from([str(word) for word in words], TrainingOptions(**options), default_catalogue()).sweep


@pytest.mark.usefixtures("processes")
def test_a_job_file_with_a_command_and_nothing_else_runs(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "job.yaml").write_text("command: python -c 'print(\"epoch 1\")'\n")
    code, out, _ = command(capsys, "run", "job.yaml")
    assert code == 0
    assert "20 days of a market are generated (--kind today" in out
    assert "its speed is not known: it is measured while it runs" in out


def test_the_example_is_a_job(project: Path) -> None:
    shutil.copy(EXAMPLES / "job.yaml", project)
    sweep = wanted("job.yaml")
    assert (sweep.checkpoints, len(sweep.trials())) == ("ckpt", 1)
    assert (EXAMPLES / sweep.arguments(sweep.trials()[0])[1]).exists()


def test_options_say_what_a_file_would(project: Path) -> None:
    sweep = wanted(
        "python",
        "my train.py",
        "a b",
        '{"x": 1}',
        name="mine",
        cpus=4,
        memory_gib=8.0,
        metric="loss",
        steps=5,
        budget=3.0,
        deadline=2.0,
        instance_type=["c3.xlarge"],
        checkpoints=Path("out/ckpt"),
    )
    assert sweep.arguments(sweep.trials()[0]) == ("python", "my train.py", "a b", '{"x": 1}')
    assert (sweep.name, sweep.max_trial_steps, sweep.budget_usd, sweep.deadline_h) == ("mine", 5, 3.0, 2.0)
    assert (sweep.cpus, sweep.markets.instance_types, sweep.checkpoints) == (4, ["c3.xlarge"], "out/ckpt")
    # Over what the file says.
    (project / "job.yaml").write_text("command: x\nsteps: 7\nbudget_usd: 1\n")
    over = wanted("job.yaml", steps=9)
    assert (over.max_trial_steps, over.budget_usd) == (9, 1.0)


def test_an_absolute_folder_is_told_to_the_program_by_what_it_is_elsewhere(project: Path) -> None:
    folder = project / "ckpt"
    sweep = wanted("python", "x.py", f"--out={folder}/best", checkpoints=folder)
    assert sweep.checkpoints == "ckpt"
    assert sweep.arguments(sweep.trials()[0])[2] == "--out={checkpoint_dir}/best"
    with pytest.raises(InputError, match="--checkpoints /tmp is no folder below"):
        wanted("x", checkpoints=Path("/tmp"))


def test_a_market_is_generated_of_machines_that_have_what_is_asked_for() -> None:
    catalogue = default_catalogue()

    def types(kind: MarketKind = MarketKind.TODAY, **asked: Any) -> set[str]:
        market = generated_market(wanted("x", **asked), 0, catalogue, kind=kind)
        # Where capacity decides, every market has its own.
        assert set(market.availability or ()) == (set(market.prices) if kind is MarketKind.TODAY else set())
        return {market.instance_type for market in market.prices}

    assert types(accelerators="H100:8") == {"a3-highgpu-8g", "p5.48xlarge"}
    assert "g6.2xlarge" in types(cpus=4)
    assert types(MarketKind.AUCTION, cpus=4) == {"c3.xlarge", "g2.2xlarge"}
    assert types(MarketKind.GPU, accelerators="V100:1") == {"p3.2xlarge"}
    # None of the usual types: others of AWS.
    assert types(accelerators="K80:1") == types(MarketKind.AUCTION, accelerators="K80:1") == {"p2.xlarge"}
    more = [InstanceType("aws", "x9.large", 4, 16.0, "NVIDIA X9", 1)]
    unpriced = catalogue + more
    asked = wanted_from(["x"], TrainingOptions(accelerators="X9:1"), unpriced).sweep
    with pytest.raises(InputError, match="asks for accelerators X9:1: no list price is known"):
        generated_market(asked, 0, unpriced)
    with pytest.raises(InputError, match="unknown instance type 'c3.xlarg' .did you mean 'c3.xlarge'"):
        wanted("x", instance_type=["c3.xlarg"])


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (("python", "x.py", "--output_dir", "out/a"), "out/a"),
        (("python", "x.py", "--ckpt-dir=ckpt"), "ckpt"),
        (("python", "x.py", "--checkpoints", "ckpt", "--save-dir", "other"), "ckpt"),
        # What may be read: a file, or a folder that holds something.
        (("python", "x.py", "--checkpoint", "best.pt"), None),
        (("python", "x.py", "--checkpoint-dir", "pretrained"), None),
        (("python", "x.py", "--data-dir", "data", "--output", "log"), None),
        (("python", "x.py", "--output-dir", "/tmp/out"), None),
        (("python", "x.py", "--output-dir", "../out"), None),
        (("python", "x.py", "--output-dir"), None),
        (("python", "x.py", "--output-dir", "{checkpoint_dir}"), None),
    ],
)
def test_the_folder_that_a_command_names_for_checkpoints_is_found(
    project: Path, words: tuple[str, ...], folder: str | None
) -> None:
    (project / "pretrained").mkdir()
    (project / "pretrained" / "model").touch()
    assert wanted(*words).checkpoints == folder
    assert wanted(*words, checkpoints=Path("mine")).checkpoints == "mine"


def test_an_option_for_another_kind_of_job_is_refused_with_its_name(project: Path) -> None:
    file = project / "array.yaml"
    file.write_text("command: x {task}\ntasks: 3\n")
    array = wanted_from([str(file)], TrainingOptions(budget=2.0), default_catalogue()).sweep
    assert (array.kind, array.budget_usd, array.steps) == ("array", 2.0, 3)
    for option, field in (({"metric": "loss"}, "metric"), ({"steps": 5}, "max_trial_steps")):
        with pytest.raises(InputError, match=f"array.yaml, field {field}: {field} is no field of an array"):
            wanted_from([str(file)], TrainingOptions(**option), default_catalogue())


def test_a_program_that_cannot_know_where_to_save_is_told_of(project: Path) -> None:
    (project / "knows.py").write_text("import os; folder = os.environ['EBBTIDE_CHECKPOINT_DIR']")
    catalogue = default_catalogue()

    def is_told(*words: str, **options: Any) -> bool:
        wanted = wanted_from(words, TrainingOptions(**options), catalogue)
        return is_told_where_to_save(wanted.sweep, wanted.folder)

    (project / "loop.py").write_text("while True: pass")
    assert not is_told("python", "loop.py")
    assert is_told("python", "loop.py", checkpoints=Path("ckpt"))
    assert is_told("python", "loop.py", "--out", "{checkpoint_dir}")
    assert is_told("python", "knows.py")
    assert is_told("./train")
    # No field of its file could name one.
    assert is_told_where_to_save(Cluster(name="s", command="loop.py", framework="spark"), project)


def test_the_default_policy_gets_what_is_said_of_the_work() -> None:
    one = Sweep(name="s", command="x")
    found = policy_for(one, "default")
    assert isinstance(found, Ebbtide)
    assert (found.name, found.selects, found.measured, found.deadline_s) == (DEFAULT_NAME, False, False, math.inf)
    known = {"deadline_h": 2.0, "max_trial_steps": 9, "other_steps_per_hour_per_vcpu": 3.0}
    due = policy_for(Sweep(name="s", command="x", **known), "default")  # type: ignore[arg-type]
    assert isinstance(due, Ebbtide)
    assert (due.deadline_s, due.measured) == (7200.0, True)
    several = Sweep(name="s", command="x {a}", grid={"a": [1, 2]}, metric="m", max_trial_steps=9, theta=0.4)
    chosen = policy_for(several, "default")
    assert isinstance(chosen, Ebbtide)
    assert (chosen.selects, chosen.theta) == (True, 0.4)
    assert getattr(policy_for(several, "spottune"), "theta") == 0.4  # noqa: B009
    assert policy_for(several, "spottune").name == "spottune"
    assert isinstance(policy_for(Sweep(name="s", command="x", budget_usd=2.0), "default"), WithinBudget)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--accelerators", "V1000", "--", "x"), "unknown accelerator 'V1000' (did you mean 'V100'?)"),
        (("--cpus", "0", "--", "x"), "field cpus"),
        (("--checkpoints", "..", "--", "x"), "no folder below"),
        (("--budget", "-1", "--", "x"), "field budget_usd"),
        (("--", ""), "command is empty"),
        (("missing.yaml",), "there is no such file"),
        (("steps.yaml",), "field command: missing"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_rented(
    project: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    (project / "steps.yaml").write_text(
        yaml.safe_dump({"name": "a", "steps": 5, "steps_per_hour": {"c3.xlarge": 1}})
    )
    code, _, errors = command(capsys, "run", *words)
    assert code == 2
    assert said in errors
    assert not (project / ".ebbtide").exists()
