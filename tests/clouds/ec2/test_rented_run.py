"""A run on a stand-in for EC2 that is ended, cannot be set up, or whose machines are not ended at once.

Its machines have a Python without any package: what they run comes with the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from tests.clouds.renters import EC2, Renter, renter
from tests.runs.sweeps import total
from tests.waiting import eventually

from ebbtide.clouds import start_script
from ebbtide.clouds.ec2.cloud import RUN_TAG
from ebbtide.controller.journal.journal import Journal
from ebbtide.runs.by_provider import end_machines

pytestmark = pytest.mark.usefixtures("processes")

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


@pytest.fixture
def ec2(tmp_path: Path, machine_python: str) -> Iterator[Renter]:
    with renter(EC2, tmp_path, machine_python) as one:
        yield one


@pytest.mark.long
def test_a_program_imports_ebbtide_s_trial_on_a_machine_that_has_nothing(ec2: Renter) -> None:
    machines, python = ec2.machines, ec2.settings.python
    # Nothing is installed: the set-up would see it.
    bare = {"setup": [f"! {python} -c 'import ebbtide'", f"! {python} -c 'import boto3'"]}
    ec2.write(settings=ec2.settings.model_copy(update=bare), program=TRIAL, trials=1, steps=1_000)
    ec2.start(*ec2.words)
    ec2.wait(ec2.has_saved)
    machines.take(machines.running[0], notice_s=30.0)
    ec2.end()
    (log,) = (ec2.run.path / "logs").iterdir()
    # Its own words, without what is said of it.
    said = " ".join(line for line in log.read_text().splitlines() if not line.startswith("ebbtide:")).split()
    assert said[-1] == str(total(0.1, 1_000))
    (origin,) = {said[place + 1] for place, word in enumerate(said) if word == "from"}
    assert Path(origin).is_relative_to(ec2.stand_in / "machines")
    assert len(machines.all) == 2
    assert Journal(ec2.run.journal).state("outcome")["steps_lost"] == 0


@pytest.mark.long
def test_down_beside_a_live_controller_ends_it_and_nothing_is_rented_again(ec2: Renter) -> None:
    machines = ec2.machines
    ec2.write(trials=2, steps=100_000)
    ec2.start(*ec2.words, "--policy", "reactive")
    ec2.wait(lambda: len(machines.running) == 2)
    assert ec2.do("down")[0] == 0
    ec2.end(130)
    eventually(lambda: not machines.running)
    # The controller has ended; what it had asked for would be listed, and no other was.
    client = boto3.client("ec2", region_name=next(iter(ec2.settings.regions)))
    of_run = {"Name": f"tag:{RUN_TAG}", "Values": [ec2.run.settings.unique_name]}
    found = client.describe_instances(Filters=[of_run])["Reservations"]
    listed = [one for each in found for one in each["Instances"]]
    assert {one["InstanceId"] for one in listed} == set(machines.all)
    assert len(listed) == 2
    code, out, _ = ec2.do("status", ec2.run.path.name)
    assert code == 0
    assert "rented 2 machines in all, none now" in out


@pytest.mark.long
def test_an_end_that_is_refused_is_told_and_does_not_hold_the_run_up(ec2: Renter) -> None:
    api, machines = ec2.api, ec2.machines
    ec2.write(trials=1, steps=100_000)
    ec2.start(*ec2.words)
    ec2.wait(lambda: len(machines.running) == 1)
    api.refusals.ends = "UnauthorizedOperation"
    machines.ignores_shutdown = True
    assert ec2.do("stop")[0] == 0
    errors = ec2.end(1)
    name = ec2.run.path.name
    assert f"machine {name}-m0000 still runs and costs: " in errors
    assert "UnauthorizedOperation" in errors
    code, out, _ = ec2.do("status", name)
    assert code == 0
    assert f"machine {name}-m0000 still runs and costs" in out
    ended = end_machines(ec2.run, within_s=2.0)
    assert ended.ended == 0
    assert "UnauthorizedOperation" in ended.refused[f"{name}-m0000"]
    # Once it is allowed, it is done.
    api.refusals.ends = ""
    code, out, _ = ec2.do("down")
    assert (code, out.partition(": ")[2]) == (0, "1 machine given back, none left\n")
    eventually(lambda: not machines.running)


@pytest.mark.long
def test_a_machine_whose_end_is_refused_is_told_to_end_itself(ec2: Renter) -> None:
    ec2.write(trials=1, steps=200)
    ec2.api.refusals.ends = "UnauthorizedOperation"
    assert ec2.do(*ec2.words)[0] == 0
    assert not ec2.machines.running


@pytest.mark.long
def test_a_machine_that_cannot_be_set_up_ends_and_is_not_rented_for_ever(ec2: Renter) -> None:
    machines = ec2.machines
    ec2.write(settings=ec2.settings.model_copy(update={"setup": ["true", "false"]}), trials=1, steps=10)
    code, _, errors = ec2.do(*ec2.words)
    assert code == 2
    assert "machines ended before their agent began" in errors
    assert 3 <= len(machines.all) <= 4
    assert machines.running == []
    assert "the set-up failed" in (next(iter(machines.all.values())).folder / "root" / "agent.log").read_text()


@pytest.mark.parametrize("ends_itself", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_machine_whose_set_up_hangs_ends_and_is_not_paid_without_limit(
    ends_itself: bool, ec2: Renter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself, or by its controller where it does not."""
    if not ends_itself:
        monkeypatch.setattr(
            start_script, "_SCRIPT", start_script._SCRIPT.replace("timeout -k 30 {limit_s:.0f} ", "")
        )
    own = {"setup": ["sleep 100000"], "setup_limit_s": 3.0}
    ec2.write(settings=ec2.settings.model_copy(update=own), trials=1, steps=10)
    code, _, errors = ec2.do(*ec2.words)
    assert code == 2
    assert "machines ended before their agent began" in errors
    eventually(lambda: not ec2.machines.running)


def test_what_a_policy_does_not_fit_is_refused_before_anything_is_made(ec2: Renter) -> None:
    ec2.write(machines=2)
    code, _, errors = ec2.do(*ec2.words, "--policy", "deepspotcloud-migrate")
    assert code == 2
    assert "policy deepspotcloud-migrate gives each job one machine" in errors
    assert not ec2.runs.exists()
    assert not ec2.machines.all
