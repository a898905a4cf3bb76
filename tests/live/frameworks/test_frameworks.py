"""Spark, MPI and a bag of tasks, for real and small: processes that a market takes, and the right answer all the same."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ebbtide as eb
from ebbtide._utc import DAY_S, HOUR_S, to_epoch_s
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.live.frameworks.bag import BagFramework, expected_result
from ebbtide.live.frameworks.framework import Framework
from ebbtide.live.frameworks.mpi import MpiFramework
from ebbtide.live.frameworks.mpi_program import matrix
from ebbtide.live.frameworks.provider import run_framework
from ebbtide.live.frameworks.spark import SparkFramework
from ebbtide.live.frameworks.spark_program import expected_result as spark_result
from ebbtide.market.billing import billing_preset
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.exosphere.allocation import Resources
from ebbtide.policies.exosphere.applications import Application, BagOfTasks, Mpi, Spark
from ebbtide.policies.exosphere.master import ExoSphere
from ebbtide.simulation.scenario import Scenario
from ebbtide.simulation.start_delay import StartDelay

START_S = to_epoch_s("2015-06-01T00:00:00Z")
A, B = (eb.Market("aws", "us-east-1", f"us-east-1{zone}", "c3.xlarge") for zone in "ab")
LOW, SPIKE = 0.05, 1.0
# One real second is two minutes of the market.
SPEED = 120.0

needs_mpi = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")
needs_spark = pytest.mark.skipif(
    importlib.util.find_spec("pyspark") is None or shutil.which("java") is None,
    reason="pyspark or Java is not installed",
)


def history(lost_s: float) -> eb.PriceHistory:
    """Two markets that cost the same; A is above the bid from so many real seconds after the start on."""
    begun_s = START_S - 10 * DAY_S
    series = {
        A: PriceSeries(np.array([begun_s, START_S + lost_s * SPEED]), np.array([LOW, SPIKE])),
        B: PriceSeries(np.array([begun_s]), np.array([LOW])),
    }
    return eb.PriceHistory(series, start_s=begun_s, end_s=START_S + 48 * HOUR_S)


def run(
    framework: object,
    application: Application,
    *,
    lost_s: float,
    coupling: str = "independent",
    notice_s: float = 0.0,
) -> tuple[eb.Outcome, float | None]:
    job = eb.Job.parse(
        {
            "name": "real",
            "steps": 100,
            "steps_per_hour": {"c3.xlarge": 100},
            "coupling": coupling,
            "checkpoint": {},
        }
    )
    billing = replace(billing_preset("ec2-hourly"), notice_s=notice_s * SPEED)
    return run_framework(
        framework,
        ExoSphere((application,)),
        Scenario((job,), history(lost_s), billing, delay=StartDelay(0.0, 0.0)),
        START_S,
        speed=SPEED,
    )


def watched(framework: type[Framework], **options: object) -> tuple[list[Framework], object]:
    """The framework made, so that a test can look at it."""
    made: list[Framework] = []

    def make(folder: Path) -> Framework:
        made.append(framework(folder, **options))  # type: ignore[call-arg]
        return made[-1]

    return made, make


@pytest.mark.parametrize("lazy", [True, False])
def test_a_bag_of_tasks_loses_the_tasks_that_ran_unless_it_was_warned(lazy: bool) -> None:
    # Four seconds each, one on each machine: at the third both run, however long a process takes to begin.
    made, make = watched(BagFramework, tasks=2, units=40, unit_s=0.1, lazy=lazy)
    bag = BagOfTasks(Resources(16, 0), alpha=1.0, lazy=lazy)
    outcome, result = run(make, bag, lost_s=3.0, notice_s=0.6 if lazy else 0.0)
    assert outcome.finished
    assert result == expected_result(2, 40)
    assert outcome.revocations == 2
    assert Counter(lease.market for lease in outcome.leases)[A] == 2
    steps_of_a_task = 100 / 2
    if lazy:
        # Saved when it was warned: what is lost is what was done from then on.
        assert outcome.steps_lost < 2 * 0.8 / 4.0 * steps_of_a_task
        assert outcome.checkpoints >= 2
    else:
        assert 0 < outcome.steps_lost <= 2 * steps_of_a_task
        assert outcome.checkpoints == 0
    assert made[0].standing.done == 1.0


def test_a_task_that_fails_of_itself_is_tried_again_and_then_told_of(tmp_path: Path) -> None:
    bag = BagFramework(tmp_path, tasks=1, units=3, unit_s=0.0)
    (tmp_path / "task-0.json").write_text("no JSON")
    bag.join("a")
    with pytest.raises(InputError, match="task 0 failed 3 times"):
        for _ in range(100):
            bag.hear(1.0)
    bag.close()


@needs_mpi
@pytest.mark.parametrize("saves", [False, True])
def test_mpi_begins_anew_when_a_machine_is_lost(saves: bool) -> None:
    largest = float(np.abs(np.linalg.eigvalsh(matrix())).max())
    _, make = watched(MpiFramework, ranks=2, iterations=40, iteration_s=0.1, checkpoints=saves)
    # Two machines, both in A; the notice is when it saves.
    outcome, result = run(make, Mpi(Resources(8, 0)), lost_s=2.5, coupling="gang", notice_s=1.0 if saves else 0.0)
    assert outcome.finished
    assert result == pytest.approx(largest)
    assert outcome.revocations == 2
    assert Counter(lease.market for lease in outcome.leases) == {A: 2, B: 2}
    if saves:
        assert outcome.checkpoints >= 1
        assert outcome.steps_lost < 60
    else:
        assert outcome.steps_lost > 5


@needs_mpi
def test_an_mpi_program_that_fails_of_itself_is_told_of(tmp_path: Path) -> None:
    mpi = MpiFramework(tmp_path, ranks=1, iterations=3, iteration_s=0.0)
    (tmp_path / "state.npy").write_bytes(b"damaged")
    mpi.join("a")
    began = time.monotonic()
    with pytest.raises(InputError, match="the MPI program failed 3 times"):
        while time.monotonic() < began + 60:
            mpi.hear(1.0)
    mpi.close()


@needs_spark
def test_spark_computes_again_what_a_lost_worker_had() -> None:
    _, make = watched(SparkFramework, iterations=20, partitions=4, task_s=0.2)
    # Some twenty seconds until Spark is up; then half a minute's work.
    spark = Spark(Resources(8, 0), alpha=1.0, save_s=0.05, replenish_until=1.0)
    outcome, result = run(make, spark, lost_s=28.0)
    assert outcome.finished
    assert result == pytest.approx(spark_result(20, 4))
    assert outcome.revocations == 1
    assert Counter(lease.market for lease in outcome.leases) == {A: 1, B: 2}
    assert outcome.checkpoints >= 1


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = tmp_path / "prices.parquet"
    history(1e6).write(prices)
    words = [
        "cluster",
        "bag",
        "--prices",
        str(prices),
        "--work-s",
        "2",
        "--start",
        "2015-06-01T00:00:00Z",
        "--instance-type",
    ]
    assert ended(*words, "c3.xlarge") == 0
    told = capsys.readouterr().out
    assert "exosphere: finished" in told
    assert f"result {expected_result(8, 40):g}" in told
    assert ended(*words, "m9.moon") == 2
    assert "no market has machines of type m9.moon; these prices have c3.xlarge" in capsys.readouterr().err


def ended(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


def test_what_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pip install 'ebbtide\[spark\]'"):
        SparkFramework(tmp_path, iterations=1, partitions=1, task_s=0.0)
    if importlib.util.find_spec("mpi4py") is None:
        monkeypatch.setitem(__import__("sys").modules, "mpi4py", None)
        with pytest.raises(InputError, match=r"pip install 'ebbtide\[mpi\]'"):
            partial(MpiFramework, ranks=1, iterations=1, iteration_s=0.0)(tmp_path)
