"""`ebbtide cluster`: a small Spark, MPI or bag-of-tasks program on machines of a replayed market."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide._utc import HOUR_S, to_epoch_s
from ebbtide.cli.options import InstanceTypesOption, catalogue_with
from ebbtide.errors import InputError
from ebbtide.market.prices import PriceHistory

if TYPE_CHECKING:
    from ebbtide.live.frameworks.framework import Framework
    from ebbtide.policies.exosphere.allocation import Resources
    from ebbtide.policies.exosphere.applications import BagOfTasks, Mpi, Spark

# Shortest replayed notice, real seconds: programs save in real time.
_LEAST_NOTICE_S = 1.0
# Parts of the work, so that a lost machine costs only one of them.
_ITERATIONS, _TASKS_OF_A_MACHINE = 40, 4


class Kind(StrEnum):
    """The framework whose program runs."""

    BAG = "bag"
    MPI = "mpi"
    SPARK = "spark"


def cluster_command(
    kind: Annotated[Kind, typer.Argument(metavar="bag|mpi|spark", help="The framework.")],
    prices: Annotated[Path, typer.Option(help="A Parquet file of prices to replay.")],
    instance_type: Annotated[str, typer.Option("--instance-type", metavar="TYPE", help="Type of its machines.")],
    machines: Annotated[
        int, typer.Option(min=1, max=64, help="Number of machines, which are local processes.")
    ] = 2,
    work_s: Annotated[float, typer.Option("--work-s", min=1.0, help="Total work, real machine-seconds.")] = 20.0,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="Start in the prices; by default the middle.")
    ] = None,
    speed: Annotated[float, typer.Option(min=1.0, help="Market seconds per real second.")] = 120.0,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Run a small parallel program on processes here, on machines that ExoSphere rents while prices replay.

    Spark needs Ebbtide's extra `spark` and Java 17; MPI needs its extra `mpi`.

        ebbtide cluster bag --prices prices.parquet --instance-type c3.xlarge --machines 2
    """
    from ebbtide.jobs.job import Coupling, Job
    from ebbtide.live.frameworks.provider import run_framework
    from ebbtide.market.billing import billing_preset
    from ebbtide.policies.exosphere.allocation import Resources
    from ebbtide.policies.exosphere.master import ExoSphere
    from ebbtide.simulation.scenario import Scenario

    catalogue = catalogue_with(instance_types)
    history = PriceHistory.read(prices, catalogue)
    markets = [market for market in history if market.instance_type == instance_type]
    if not markets:
        have = ", ".join(sorted({market.instance_type for market in history})[:12])
        raise InputError(f"no market has machines of type {instance_type}; these prices have {have}", file=prices)
    vcpus = catalogue.machine_of(markets[0]).vcpus
    framework, application = _program(kind, machines, work_s, Resources(machines * vcpus, 0.0))
    job = Job(
        name=f"{kind} program",
        steps=100,
        steps_per_hour={instance_type: 100 / (work_s * speed * machines / HOUR_S)},
        coupling=Coupling.GANG if kind is Kind.MPI else Coupling.INDEPENDENT,
    )
    rule = billing_preset("ec2-hourly")
    rule = replace(rule, notice_s=max(rule.notice_s, _LEAST_NOTICE_S * speed))
    outcome, result = run_framework(
        framework,
        ExoSphere((application,)),
        Scenario((job,), history.select(markets), rule, catalogue=catalogue),
        to_epoch_s(start) if start is not None else (history.start_s + history.end_s) / 2,
        speed=speed,
    )
    typer.echo(str(outcome))
    if result is None:
        raise InputError("the record of prices was over before the program", file=prices)
    typer.echo(f"result {result:g}, the same whatever machines were lost")


def _program(
    kind: Kind, machines: int, work_s: float, resources: Resources
) -> tuple[Callable[[Path], Framework], BagOfTasks | Mpi | Spark]:
    """A function that creates the framework in its own folder, and the application for ExoSphere."""
    from ebbtide.live.frameworks.bag import BagFramework
    from ebbtide.live.frameworks.mpi import MpiFramework
    from ebbtide.live.frameworks.spark import SparkFramework
    from ebbtide.policies.exosphere.applications import BagOfTasks, Mpi, Spark

    parts = _TASKS_OF_A_MACHINE * machines
    part_s = work_s * machines / (parts * _ITERATIONS)
    if kind is Kind.BAG:
        return partial(BagFramework, tasks=parts, units=_ITERATIONS, unit_s=part_s), BagOfTasks(resources)
    if kind is Kind.MPI:
        mpi = partial(
            MpiFramework,
            ranks=machines,
            iterations=_ITERATIONS,
            iteration_s=work_s / _ITERATIONS,
            checkpoints=True,
        )
        return mpi, Mpi(resources)
    spark = partial(SparkFramework, iterations=_ITERATIONS, partitions=parts, task_s=part_s)
    return spark, Spark(resources)
