"""Two people's runs of one name in one account and one bucket, at once: nothing is shared, neither ends the other's.

Nightly services of one repository name their runs by the job and the time that it is due, so they are called alike.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.clouds.renters import EC2, GCP, SKYPILOT, Renter, renter
from tests.runs.sweeps import held_program, total

from ebbtide.controller.journal.journal import journal_of
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.billing import billing_preset
from ebbtide.runs.run import RunOptions, begin
from ebbtide.storage.objects import object_store
from ebbtide.testing.stand_in.machines import StandInMachine
from ebbtide.testing.stand_in.money import billed

pytestmark = pytest.mark.usefixtures("processes")

STEPS, NAME = 60, "train-20261127-020000"


@pytest.fixture(
    params=[
        EC2,
        pytest.param(GCP, marks=pytest.mark.exhaustive),
        pytest.param(SKYPILOT, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def rented(request: pytest.FixtureRequest, tmp_path: Path, machine_python: str) -> Iterator[Renter]:
    with renter(request.param, tmp_path, machine_python) as one:
        yield one


def has_trained(one: Renter) -> bool:
    return one.trains() and one.steps() >= STEPS - 5


@pytest.mark.long
def test_runs_of_one_name_share_no_machine_no_checkpoint_and_no_end(rented: Renter, tmp_path: Path) -> None:
    machines = rented.machines
    # Tests before this one may have left objects there.
    before = bucket_keys(rented)
    ann, bob = rented, replace(rented, folder=tmp_path / "bob", started=rented.started)
    for place, one in enumerate((ann, bob)):
        one.folder.mkdir(exist_ok=True)
        one.write(steps=STEPS, program=held_program(tmp_path / "go"), grid={"lr": [0.1 + place]})
    for one in (ann, bob):
        options = RunOptions(runs=one.runs, name=NAME, machines=one.folder / "machines.yaml")
        begin(Sweep.read(one.file), one.file.parent, "reactive", one.cloud.provider, options)
        one.start("resume", NAME)
    of_ann, of_bob = rented.started
    for one in (ann, bob):
        one.wait(partial(has_trained, one))
    assert len(machines.running) == 2
    code, out, errors = bob.do("down", NAME)
    assert (code, "none left" in out) == (0, True), errors
    assert of_bob.wait() != 0
    # The other's goes on where it was, and ends as it would have.
    assert len(machines.running) == 1
    (tmp_path / "go").touch()
    _, errors = of_ann.communicate()
    assert of_ann.returncode == 0, errors
    assert len(machines.all) == 2
    # And so does this one, from its own checkpoint.
    bob.start("resume", NAME)
    bob.end()
    assert machines.running == []
    assert len(machines.all) == 3
    for place, one in enumerate((ann, bob)):
        log = next((one.run.path / "logs").iterdir()).read_text().splitlines()
        (said,) = (line.removeprefix("total ") for line in log if line.startswith("total "))
        assert float(said) == pytest.approx(total(0.1 + place, STEPS))
    rows = [Row.of(name, one) for name, one in (("ann", ann), ("bob", bob))]
    table = "\n".join(["who  machines  paid USD  billed USD  checkpoints  store", *map(str, rows)])
    (tmp_path / "table.txt").write_text(table + "\n")
    print(f"\n{table}")
    of_ann, of_bob = rows
    assert (len(of_ann.machines), len(of_bob.machines)) == (1, 2)
    for shared in ("machines", "checkpoints"):
        assert not set(getattr(of_ann, shared)) & set(getattr(of_bob, shared))
    assert all(row.checkpoints for row in rows)
    # A machine ends a moment after that is requested, and the cloud may tell whole seconds.
    second_usd = max(series.prices.max() for series in rented.prices.values()) / 3600.0
    for row in rows:
        assert row.paid_usd == pytest.approx(row.billed_usd, abs=2.0 * second_usd * len(row.machines))
    # In the bucket there is nothing of anybody else, or of both.
    kept = bucket_keys(rented) - before
    assert kept
    assert all(sum(key.startswith(f"{row.store}/") for row in rows) == 1 for key in kept)


def bucket_keys(rented: Renter) -> set[str]:
    """Addresses of all objects in the bucket that runs share."""
    bucket, _, _ = rented.settings.store.partition("?")
    return {f"{bucket.rstrip('/')}/{key}" for key in object_store(bucket).keys("")}


@dataclass(frozen=True)
class Row:
    """What one of them has, by the records of cloud and storage."""

    who: str
    store: str
    machines: tuple[str, ...]
    paid_usd: float
    billed_usd: float
    checkpoints: tuple[str, ...]

    @classmethod
    def of(cls, who: str, one: Renter) -> Row:
        store = one.run.settings.store
        own = [machine for machine in one.machines.all.values() if agent_of(machine)["store"] == store]
        usd = billed(own, one.prices, billing_preset(one.cloud.charged))
        keys = tuple(f"{store}/{key}" for key in object_store(store).keys("trials/") if "/manifests/" in key)
        paid_usd = journal_of(one.run).state("outcome")["cost_usd"]
        return cls(who, store, tuple(machine.rented.id for machine in own), paid_usd, usd, keys)

    def __str__(self) -> str:
        return (
            f"{self.who}  {len(self.machines)}  {self.paid_usd:.6f}  {self.billed_usd:.6f}  "
            f"{len(self.checkpoints)}  {self.store}"
        )


def agent_of(machine: StandInMachine) -> dict[str, Any]:
    """The configuration that a machine's agent was begun with."""
    given = re.search(r"printf %s (\S+)", machine.rented.script)
    assert given is not None
    found: dict[str, Any] = json.loads(base64.b64decode(given.group(1)))
    return found
