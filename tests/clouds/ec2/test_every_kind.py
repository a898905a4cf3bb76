"""The same job files as on the local cloud, one of each kind, on the stand-in for EC2, which takes a machine."""

from __future__ import annotations

import importlib.util
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.clouds.renters import EC2, Renter, renter

from ebbtide.controller.journal.journal import Journal
from ebbtide.jobs.job_files import read_sweep
from ebbtide.testing.stand_in.machines import StandInMachine, StandInMachines

# Smaller than the examples, so that each takes a quarter of a minute or so.
SHORTER = {
    "single": ("live/job.yaml", {"command": "python plain.py --epochs 30 --pause-s 0.2"}),
    "gang": ("gang/gang.yaml", {"command": "torchrun train.py --epochs 6 --step-s 0.05", "machines": 2}),
    "elastic": (
        "gang/elastic.yaml",
        {"command": "torchrun train.py --epochs 6 --step-s 0.05", "machines": {"min": 1, "max": 2}},
    ),
    "mpi": ("mpi/mpi.yaml", {"command": "mpirun python power.py --steps 200 --step-s 0.05", "machines": 2}),
    "array": ("array/array.yaml", {"tasks": 120, "machines": 3}),
    "spark": ("spark/spark.yaml", {"spark": "ranks.py --rounds 6 --task-s 0.3", "machines": 2}),
    "dask": ("matrix/powers.yaml", {"parameters": {"size": 8, "tile": 256, "exponent": 6}, "machines": 2}),
}


@pytest.fixture
def ec2(tmp_path: Path) -> Iterator[Renter]:
    with renter(EC2, tmp_path, sys.executable) as one:
        yield one


@pytest.mark.usefixtures("in_project")
def test_each_kind_is_here() -> None:
    """A kind that is added is added here, too: each kind of job that is run has its own class of file."""
    sweeps = {kind: read_sweep(Path("examples") / path, to_run=True) for kind, (path, _) in SHORTER.items()}
    assert {sweep.framework for sweep in sweeps.values() if sweep.kind == "cluster"} == {"spark", "dask"}
    assert sweeps["array"].kind == "array"
    assert {type(sweeps[kind].machines) for kind in ("gang", "elastic")} == {int, type(sweeps["elastic"].machines)}


@pytest.mark.usefixtures("processes", "in_project")
@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        pytest.param(kind, taken, marks=() if (kind, taken) == ("gang", "head") else pytest.mark.exhaustive)
        for kind in SHORTER
        for taken in ("head", "worker")
        if (kind, taken) != ("single", "worker")
    ],
)
def test_it_ends_well_though_a_machine_is_taken(kind: str, taken: str, ec2: Renter) -> None:
    if kind == "mpi" and (shutil.which("mpirun") is None or importlib.util.find_spec("mpi4py") is None):
        pytest.skip("needs Open MPI and mpi4py: run `make install`")
    if kind == "spark" and (shutil.which("java") is None or importlib.util.find_spec("pyspark") is None):
        pytest.skip("needs Java: on Debian, the package openjdk-17-jre-headless")
    machines = ec2.machines
    path, shorter = SHORTER[kind]
    shutil.copytree(Path("examples") / Path(path).parent, ec2.file.parent)
    content = yaml.safe_load((Path("examples") / path).read_text()) | shorter | {"budget_usd": 1.0}
    ec2.file.write_text(yaml.safe_dump(content))
    ec2.write_machines(ec2.settings)
    ec2.start(*ec2.words)
    ec2.wait(lambda: spot(machines) and journal(ec2).state("figures"))
    ec2.wait(lambda: has_begun(ec2) and one_to_take(ec2, is_head=taken == "head"))
    one = one_to_take(ec2, is_head=taken == "head")[0]
    if one.instance.lifecycle == "spot":
        machines.take(one, notice_s=20.0)
    else:
        # A cluster's driver is on demand, where nobody takes a machine, though it may break.
        (one.folder / "shut-down").touch()
    ec2.end()
    assert machines.running == []
    outcome = journal(ec2).state("outcome")
    assert outcome["finished"]
    assert outcome["failed"] == []
    assert outcome["revocations"] <= 1
    assert outcome["cost_usd"] == pytest.approx(ec2.billed_usd(), abs=1e-4)


def spot(machines: StandInMachines) -> list[StandInMachine]:
    """Machines that run and may be taken."""
    return [each for each in machines.running if each.instance.lifecycle == "spot" and math.isinf(each.taken_at_s)]


def one_to_take(ec2: Renter, *, is_head: bool) -> list[StandInMachine]:
    """The machine of rank 0, where a cluster's driver runs, or all others."""
    kept = journal(ec2).run()
    assert kept is not None
    (trial,) = kept["provider"]["trials"]
    # Tasks of an array are all alike: the first of its machines stands for the head.
    head = min((each["rank"], each["lease_id"]) for each in trial["members"])[1]
    return [each for each in ec2.machines.running if (lease_of(each) == head) is is_head]


def lease_of(machine: StandInMachine) -> int:
    """The number at the end of a machine's token, which is one of its tags."""
    tags = {tag["key"]: tag["value"] for tag in machine.instance.get_tags()}
    return int(tags["Name"].rpartition("-m")[2])


def journal(ec2: Renter) -> Journal:
    return Journal(ec2.run.journal, read_only=True)


def has_begun(ec2: Renter) -> bool:
    """Whether the program has reported a step, or a worker works for it."""
    kept = journal(ec2).run()
    if kept is None or kept["engine"]["started_s"] is None:
        return False
    (job,), (trial,) = kept["engine"]["jobs"], kept["provider"]["trials"]
    return bool(job["steps_done"] > 0 or trial["workers"])
