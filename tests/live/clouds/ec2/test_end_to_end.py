"""A sweep on a stand-in for EC2: moto's API over HTTP, real start scripts, agents, notices and refusals.

Its machines have a Python without any package: what they run comes with the run.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import yaml
from tests.live.agent.bare_python import bare_python
from tests.live.sweeps import PROGRAM, flapping, sweep, total
from tests.waiting import LIMIT_S, eventually

from ebbtide._utc import HOUR_S
from ebbtide.cli.main import main
from ebbtide.live.clouds.ec2.cloud import RUN_TAG
from ebbtide.live.clouds.ec2.settings import Ec2Settings
from ebbtide.live.journal import Journal
from ebbtide.live.runs import end_machines
from ebbtide.live.settings import find_run
from ebbtide.market.billing import billing_preset
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.events import Wake
from ebbtide.testing.ec2_stand_in.api import StandInApi
from ebbtide.testing.ec2_stand_in.running import stand_in, write_credentials
from ebbtide.testing.rented_demo import REFUSED
from ebbtide.testing.stand_in.machines import StandInMachines
from ebbtide.testing.stand_in.money import billed, until_now

EC2 = tuple[StandInApi, StandInMachines, Ec2Settings]
# Forty seconds of training in each trial, longer than a notice; and what a run takes on a busy machine at most.
STEPS, LONGEST_S = 2_000, 600.0


def quiet() -> PriceHistory:
    """Two markets that stay as they are, until now."""
    whole = flapping(hours=2.0)
    return until_now(whole.window(whole.start_s, whole.start_s + 12 * HOUR_S), time.time())


# Steps of `ebbtide.trial`, which comes with the run, by the standard library alone.
TRIAL = """
import json, sys, time
import ebbtide
from ebbtide.trial import Trial
class Sum:
    total, ends_at = 0.0, None
    def save(self, folder, *, within_step):
        (folder / "sum.json").write_text(json.dumps(self.total))
    def restore(self, folder):
        self.total = json.loads((folder / "sum.json").read_text())
kept, trial = Sum(), Trial.current()
trial.keep(kept)
for step in trial.steps():
    time.sleep(0.02)
    kept.total += float(sys.argv[3]) * (step - 1)
    trial.report(loss=1 / step)
print("from", ebbtide.__file__, "total", kept.total, flush=True)
"""


@pytest.fixture(scope="module")
def machine_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(bare_python(tmp_path_factory.mktemp("machine") / "python"))


@pytest.fixture
def ec2(tmp_path: Path, machine_python: str) -> Iterator[EC2]:
    with stand_in(tmp_path / "stand-in", quiet(), machine_python) as found:
        yield found


def files(tmp_path: Path, settings: Ec2Settings, program: str = PROGRAM, **options: object) -> tuple[Path, Path]:
    """A sweep, its program, and what machines are."""
    code = tmp_path / "code"
    code.mkdir()
    wanted = sweep(code, program=program, budget_usd=1.0, **options)  # type: ignore[arg-type]
    content = wanted.model_dump(mode="json", exclude_none=True)
    content["command"] = "python program.py {checkpoint_dir} {max_steps} {lr}"
    (code / "sweep.yaml").write_text(yaml.safe_dump(content))
    machines = tmp_path / "ec2.yaml"
    machines.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    return code / "sweep.yaml", machines


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.mark.long
def test_a_sweep_ends_through_refusals_throttling_and_expired_credentials(ec2: EC2, tmp_path: Path) -> None:
    api, machines, settings = ec2
    api.refusals.launches.extend(REFUSED)
    path, what = files(tmp_path, settings, trials=3, steps=STEPS)
    runs = tmp_path / "runs"
    # A policy that keeps a machine until it is taken.
    words = ("run", path, "--policy", "reactive", "--provider", "ec2", "--machines", what, "--runs", runs)
    controller = subprocess.Popen([sys.executable, "-m", "ebbtide.cli.main", *map(str, words)])
    try:
        eventually(lambda: len(machines.running) >= 2)
        machines.take(machines.running[0], notice_s=30.0)
        # The credentials end, and are renewed where they are kept.
        api.refusals.expired.add("FIRST")
        eventually(lambda: "RequestExpired" in api.refusals.sent)
        write_credentials(tmp_path / "stand-in" / "credentials", "RENEWED")
        assert controller.wait(LONGEST_S) == 0
    finally:
        controller.kill()
    assert set(api.refusals.sent) == {*REFUSED, "RequestExpired"} - {""}
    assert machines.running == []
    folder = find_run(runs, None)
    journal = Journal(folder.journal)
    outcome = journal.state("outcome")
    assert outcome["finished"]
    assert outcome["revocations"] == 1
    # Its metadata said so in time, and the policy heard of it.
    assert str(Wake.NOTICE) in {what for _, what, *_ in journal.moments()}
    # Of the one that was taken: what it trained after its last save.
    assert outcome["steps_lost"] < 100
    told = [path.read_text() for path in sorted((folder.path / "logs").iterdir())]
    assert [float(log.split()[-1]) for log in told] == [pytest.approx(total(0.1 * n, STEPS)) for n in (1, 2, 3)]
    # What failed is backed off from, the other is asked at once.
    moments = journal.moments()
    failed = [moment for moment in moments if moment[1] == str(Wake.LAUNCH_FAILED)]
    assert {detail.split("(")[1].split(")")[0] for *_, detail in failed} == {REFUSED[0], REFUSED[2]}
    spent = billed(machines.all.values(), quiet(), billing_preset("ec2-second"))
    assert outcome["cost_usd"] == pytest.approx(spent, abs=1e-4)
    # Nothing of the credentials is written anywhere.
    for written in folder.path.rglob("*"):
        assert not written.is_file() or b"RENEWED" not in written.read_bytes()
    for machine in machines.all.values():
        for path in (machine.folder / "start.sh", *(machine.folder / "root").glob("agent.*")):
            assert not any(key in path.read_bytes() for key in (b"FIRST", b"RENEWED", b"OF-THE-ROLE"))
    # One bundle for all machines.
    assert len(list(object_keys(api, f"ebbtide/runs/{folder.path.name}/agent-"))) == 1


@pytest.mark.long
def test_a_program_imports_ebbtide_s_trial_on_a_machine_that_has_nothing(ec2: EC2, tmp_path: Path) -> None:
    _, machines, settings = ec2
    # Nothing is installed: the set-up would see it.
    bare = settings.model_copy(
        update={"setup": [f"! {settings.python} -c 'import ebbtide'", f"! {settings.python} -c 'import boto3'"]}
    )
    path, what = files(tmp_path, bare, TRIAL, trials=1, steps=1_000)
    runs = tmp_path / "runs"
    words = ("run", path, "--provider", "ec2", "--machines", what, "--runs", runs)
    controller = subprocess.Popen([sys.executable, "-m", "ebbtide.cli.main", *map(str, words)])
    try:
        eventually(lambda: machines.running)
        eventually(lambda: any((machines.running[0].folder / "root" / "work").glob("*/checkpoints")))
        machines.take(machines.running[0], notice_s=30.0)
        assert controller.wait(LONGEST_S) == 0
    finally:
        controller.kill()
    (log,) = (find_run(runs, None).path / "logs").iterdir()
    # Its own words, without what is said of it.
    said = " ".join(line for line in log.read_text().splitlines() if not line.startswith("ebbtide:")).split()
    assert said[-1] == str(total(0.1, 1_000))
    (origin,) = {said[place + 1] for place, word in enumerate(said) if word == "from"}
    assert Path(origin).is_relative_to(tmp_path / "stand-in" / "machines")
    assert len(machines.all) == 2
    assert Journal(find_run(runs, None).journal).state("outcome")["steps_lost"] == 0


@pytest.mark.usefixtures("processes")
def test_down_ends_by_tag_what_a_killed_controller_left(
    ec2: EC2, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, machines, settings = ec2
    path, what = files(tmp_path, settings, trials=2, steps=100_000)
    runs = tmp_path / "runs"
    words = ("run", path, "--provider", "ec2", "--machines", what, "--runs", runs)
    controller = subprocess.Popen([sys.executable, "-m", "ebbtide.cli.main", *map(str, words)])
    try:
        eventually(lambda: len(machines.running) == 2)
    finally:
        controller.kill()
        controller.wait()
    assert command("down", "--runs", runs) == 0
    assert capsys.readouterr().out.endswith(": 2 machines given back, none left\n")
    eventually(lambda: not machines.running)


@pytest.mark.usefixtures("processes")
def test_down_beside_a_live_controller_ends_it_and_nothing_is_rented_again(
    ec2: EC2, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, machines, settings = ec2
    path, what = files(tmp_path, settings, trials=2, steps=100_000)
    runs = tmp_path / "runs"
    words = ("run", path, "--provider", "ec2", "--machines", what, "--runs", runs)
    controller = subprocess.Popen([sys.executable, "-m", "ebbtide.cli.main", *map(str, words)])
    try:
        eventually(lambda: len(machines.running) == 2)
        assert command("down", "--runs", runs) == 0
        assert controller.wait(LIMIT_S) == 130
    finally:
        controller.kill()
        controller.wait()
    capsys.readouterr()
    eventually(lambda: not machines.running)
    # The controller has ended; what it had asked for would be listed, and no other was.
    client = boto3.client("ec2", region_name=next(iter(settings.regions)))
    of_run = {"Name": f"tag:{RUN_TAG}", "Values": [find_run(runs, None).path.name]}
    found = client.describe_instances(Filters=[of_run])["Reservations"]
    listed = [one for each in found for one in each["Instances"]]
    assert {one["InstanceId"] for one in listed} == set(machines.all)
    assert len(listed) == 2
    assert command("status", find_run(runs, None).path.name, "--runs", runs) == 0
    assert "rented 2 machines in all, none now" in capsys.readouterr().out


@pytest.mark.long
def test_an_end_that_is_refused_is_told_and_does_not_hold_the_run_up(
    ec2: EC2, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api, machines, settings = ec2
    path, what = files(tmp_path, settings, trials=1, steps=100_000)
    runs = tmp_path / "runs"
    words = ("run", path, "--provider", "ec2", "--machines", what, "--runs", runs)
    controller = subprocess.Popen(
        [sys.executable, "-m", "ebbtide.cli.main", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: len(machines.running) == 1)
        api.refusals.ends = "UnauthorizedOperation"
        machines.ignores_shutdown = True
        assert command("stop", "--runs", runs) == 0
        _, errors = controller.communicate(timeout=LONGEST_S)
    finally:
        controller.kill()
        controller.wait()
    assert controller.returncode == 1
    name = find_run(runs, None).path.name
    assert f"machine {name}-m0000 still runs and costs: " in errors
    assert "UnauthorizedOperation" in errors
    capsys.readouterr()
    assert command("status", name, "--runs", runs) == 0
    assert f"machine {name}-m0000 still runs and costs" in capsys.readouterr().out
    ended = end_machines(find_run(runs, None), within_s=2.0)
    assert ended.ended == 0
    assert "UnauthorizedOperation" in ended.refused[f"{name}-m0000"]
    # Once it is allowed, it is done.
    api.refusals.ends = ""
    assert command("down", "--runs", runs) == 0
    assert capsys.readouterr().out.endswith(": 1 machine given back, none left\n")
    eventually(lambda: not machines.running)


@pytest.mark.long
def test_a_machine_whose_end_is_refused_is_told_to_end_itself(ec2: EC2, tmp_path: Path) -> None:
    api, machines, settings = ec2
    path, what = files(tmp_path, settings, trials=1, steps=200)
    api.refusals.ends = "UnauthorizedOperation"
    assert command("run", path, "--provider", "ec2", "--machines", what, "--runs", tmp_path / "runs") == 0
    assert not machines.running


@pytest.mark.usefixtures("processes")
def test_a_machine_that_cannot_be_set_up_ends_and_is_not_rented_for_ever(
    ec2: EC2, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, machines, settings = ec2
    broken = settings.model_copy(update={"setup": ["true", "false"]})
    path, what = files(tmp_path, broken, trials=1, steps=10)
    assert command("run", path, "--provider", "ec2", "--machines", what, "--runs", tmp_path / "runs") == 2
    assert "machines ended before their agent began" in capsys.readouterr().err
    assert 3 <= len(machines.all) <= 4
    assert machines.running == []
    assert "the set-up failed" in (next(iter(machines.all.values())).folder / "root" / "agent.log").read_text()


def test_without_a_budget_nothing_is_rented(ec2: EC2, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, machines, settings = ec2
    path, what = files(tmp_path, settings)
    content = yaml.safe_load(path.read_text())
    del content["budget_usd"]
    path.write_text(yaml.safe_dump(content))
    assert command("run", path, "--provider", "ec2", "--machines", what, "--runs", tmp_path / "runs") == 2
    assert "budget_usd" in capsys.readouterr().err
    assert command("run", path, "--provider", "ec2", "--runs", tmp_path / "runs") == 2
    assert "--machines EC2.yaml" in capsys.readouterr().err
    assert not machines.all


def test_what_a_policy_does_not_fit_is_refused_before_anything_is_made(
    ec2: EC2, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, machines, settings = ec2
    path, what = files(tmp_path, settings, machines=2)
    words = ("run", path, "--provider", "ec2", "--machines", what, "--runs", tmp_path / "runs")
    assert command(*words, "--policy", "deepspotcloud-migrate") == 2
    assert "policy deepspotcloud-migrate gives each job one machine" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert not machines.all


def object_keys(api: StandInApi, prefix: str) -> Iterator[str]:
    client = boto3.client("s3", endpoint_url=api.url, aws_access_key_id="x", aws_secret_access_key="x")
    for entry in client.list_objects_v2(Bucket="stand-in", Prefix=prefix)["Contents"]:
        yield entry["Key"]
