"""The same job files as on the local cloud, one of each kind, on the stand-in for EC2, which takes a machine."""

from __future__ import annotations

import importlib.util
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.live.sweeps import flapping
from tests.waiting import eventually

from ebbtide._utc import HOUR_S
from ebbtide.jobs.reading import read_sweep
from ebbtide.live.clouds.ec2.settings import Ec2Settings
from ebbtide.live.journal import Journal
from ebbtide.live.settings import find_run
from ebbtide.market.billing import billing_preset
from ebbtide.market.prices import PriceHistory
from ebbtide.testing.ec2_stand_in.api import StandInApi
from ebbtide.testing.ec2_stand_in.running import stand_in
from ebbtide.testing.stand_in.machines import Machine, StandInMachines
from ebbtide.testing.stand_in.money import billed, until_now

EC2 = tuple[StandInApi, StandInMachines, Ec2Settings]

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


def quiet() -> PriceHistory:
    """Two markets that stay as they are, until now."""
    whole = flapping(hours=2.0)
    return until_now(whole.window(whole.start_s, whole.start_s + 12 * HOUR_S), time.time())


@pytest.fixture
def ec2(tmp_path: Path) -> Iterator[EC2]:
    with stand_in(tmp_path / "stand-in", quiet()) as found:
        yield found


@pytest.mark.usefixtures("in_project")
def test_each_kind_is_here() -> None:
    """A kind that is added is added here, too: each kind of job that is run has its own class of file."""
    sweeps = {kind: read_sweep(Path("examples") / path, to_run=True) for kind, (path, _) in SHORTER.items()}
    assert {sweep.framework for sweep in sweeps.values()} == {None, "spark", "dask"}
    assert sweeps["array"].tasks is not None
    assert {type(sweeps[kind].machines) for kind in ("gang", "elastic")} == {int, type(sweeps["elastic"].machines)}


@pytest.mark.usefixtures("processes", "in_project")
@pytest.mark.long
@pytest.mark.parametrize("kind", SHORTER)
def test_it_ends_well_though_a_machine_is_taken(kind: str, ec2: EC2, tmp_path: Path) -> None:
    if kind == "mpi" and (shutil.which("mpirun") is None or importlib.util.find_spec("mpi4py") is None):
        pytest.skip("Open MPI or mpi4py is not installed")
    if kind == "spark" and (shutil.which("java") is None or importlib.util.find_spec("pyspark") is None):
        pytest.skip("Java or pyspark is not installed")
    _, machines, settings = ec2
    path, shorter = SHORTER[kind]
    code = tmp_path / "code"
    shutil.copytree(Path("examples") / Path(path).parent, code)
    content = yaml.safe_load((Path("examples") / path).read_text()) | shorter | {"budget_usd": 1.0}
    (code / "job.yaml").write_text(yaml.safe_dump(content))
    what, runs = tmp_path / "ec2.yaml", tmp_path / "runs"
    what.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    words = ("run", code / "job.yaml", "--provider", "ec2", "--machines", what, "--runs", runs)
    controller = subprocess.Popen([sys.executable, "-m", "ebbtide.cli.main", *map(str, words)])
    try:
        eventually(lambda: spot(machines) and journal_of(runs) and journal_of(runs).state("figures"), poll_s=0.1)
        eventually(lambda: has_begun(runs), poll_s=0.1)
        machines.take(spot(machines)[0], notice_s=20.0)
        assert controller.wait(600) == 0
    finally:
        controller.kill()
        controller.wait()
    assert machines.running == []
    outcome = journal_of(runs).state("outcome")
    assert outcome["finished"]
    assert outcome["failed"] == []
    assert outcome["revocations"] <= 1
    spent = billed(machines.all.values(), quiet(), billing_preset("ec2-second"))
    assert outcome["cost_usd"] == pytest.approx(spent, abs=1e-4)


def spot(machines: StandInMachines) -> list[Machine]:
    """Machines that run and may be taken."""
    return [each for each in machines.running if each.instance.lifecycle == "spot" and math.isinf(each.taken_at_s)]


def journal_of(runs: Path) -> Journal:
    return Journal(find_run(runs, None).journal, read_only=True)


def has_begun(runs: Path) -> bool:
    """Whether the program has reported a step, or a worker works for it."""
    kept = journal_of(runs).run()
    if kept is None or kept["engine"]["started_s"] is None:
        return False
    (job,), (trial,) = kept["engine"]["jobs"], kept["provider"]["trials"]
    return bool(job["steps_done"] > 0 or trial["workers"])
