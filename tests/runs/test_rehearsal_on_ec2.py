"""An interruption rehearsed on EC2's stand-in: a real client of the Fault Injection Service, a machine that is taken."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import eventually

from ebbtide.clouds.ec2.interrupting import SpotInterruptions
from ebbtide.clouds.ec2.settings import Ec2Settings
from ebbtide.errors import CloudError, InputError
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.generator import generate_auction_prices
from ebbtide.runs.rehearsal import RehearsalSettings
from ebbtide.runs.rehearsal_on_ec2 import rehearsable_on_ec2, rehearse_on_ec2
from ebbtide.testing.ec2_stand_in.api import StandInApi
from ebbtide.testing.ec2_stand_in.running import stand_in
from ebbtide.testing.stand_in.machines import StandInMachines
from ebbtide.testing.stand_in.money import until_now

ROLE = "arn:aws:iam::123456789012:role/interrupts"
PROGRAM = Path(__file__).parents[1] / "training_program.py"
WORK = validated(
    Sweep,
    {
        "name": "rehearsed",
        "command": "python training_program.py --steps 2000 --step-s 0.1 --evaluate-every 10",
        "metric": "loss",
        "steps_per_hour": {"c3.xlarge": 36_000},
        "checkpoint": {"save_s": 1, "restore_s": 1},
    },
)


@contextmanager
def cloud(folder: Path, notice_s: float) -> Iterator[tuple[StandInApi, StandInMachines, Ec2Settings]]:
    """A stand-in whose notices are shorter than EC2's."""
    prices = until_now(generate_auction_prices(days=20.0, seed=0), time.time())
    with stand_in(folder / "stand-in", prices) as (api, machines, settings):

        def interrupt(instance_id: str) -> None:
            machines.take(machines.all[instance_id], notice_s)

        api.interrupted = interrupt
        yield api, machines, settings


@pytest.mark.usefixtures("processes")
@pytest.mark.long
def test_a_machine_of_ec2_is_taken_and_the_training_resumes(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / PROGRAM.name).write_text(PROGRAM.read_text())
    settings = RehearsalSettings(3.0, 15.0, 60.0, tmp_path / "runs")
    said: list[str] = []
    with cloud(tmp_path, 15.0) as (api, machines, ec2):
        sweep = rehearsable_on_ec2(WORK, 1.0)
        found = rehearse_on_ec2(sweep, tmp_path / "code", settings, ec2, SpotInterruptions(ROLE), said.append)
        assert machines.running == []
        assert [machine.taken for machine in machines.all.values()][:1] == [True] or len(machines.all) == 2
        (template,) = api.experiments.started
        # Nothing is left of it in the account.
        assert api.experiments.templates == {}
    assert template["roleArn"] == ROLE
    assert template["actions"]["interrupt"]["parameters"] == {"durationBeforeInterruption": "PT2M"}
    assert (found.problem, found.is_good, found.steps_lost) == ("", True, 0)
    assert found.steps_resumed is not None
    assert found.steps_resumed >= (found.steps_at_notice or 0) > 0
    assert found.stored_s is not None
    assert 0.0 < found.stored_s < 15.0
    assert "the program resumes on a new machine" in said
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.usefixtures("processes")
@pytest.mark.exhaustive
def test_what_the_service_refuses_ends_the_rehearsal_and_its_machines(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / PROGRAM.name).write_text(PROGRAM.read_text())
    settings = RehearsalSettings(1.0, 15.0, 60.0, tmp_path / "runs")
    with cloud(tmp_path, 15.0) as (api, machines, ec2):
        api.experiments.refuses = "the role may not be assumed"
        with pytest.raises(CloudError, match="the experiment is failed: the role may not be assumed"):
            rehearse_on_ec2(
                rehearsable_on_ec2(WORK, 1.0), tmp_path / "code", settings, ec2, SpotInterruptions(ROLE)
            )
        eventually(lambda: not machines.running)
        assert api.experiments.templates == {}


def test_a_machine_that_is_not_there_is_told(tmp_path: Path) -> None:
    with cloud(tmp_path, 15.0), pytest.raises(CloudError, match="there is no running spot machine none"):
        SpotInterruptions(ROLE).interrupt("us-east-1", "none")


def test_what_lacks_a_role_or_a_budget_is_refused() -> None:
    with pytest.raises(InputError, match="'admin' is no role"):
        SpotInterruptions("admin")
    with pytest.raises(InputError, match="--budget-usd"):
        rehearsable_on_ec2(WORK, None)
    assert rehearsable_on_ec2(WORK.model_copy(update={"budget_usd": 4.0}), None).budget_usd == 4.0
    settled = rehearsable_on_ec2(WORK.model_copy(update={"deadline_h": 3.0}), 2.0)
    assert (settled.budget_usd, settled.deadline_h, math.isclose(settled.theta, 1.0)) == (2.0, None, True)
    assert settled.steps_per_hour == WORK.steps_per_hour
