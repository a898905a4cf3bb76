"""A matrix program steered by a cookbook: `python -m tests.harness.cookbook_study`.

RSVD-1 runs on machines of the local cloud. A first run on a calm market measures how long its tasks take; the
cookbook of the second is solved with these times, and its prices rise above the skyline's bids again and again.
Its controller is killed once. The result must be numpy's, the deadline kept, the ledger that of the cloud; beside
what it cost and took stands what the same policy costs and takes in a replay (Cümülön-D, Table 1). Written to
reports/cookbook-live.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.harness.study import failed, run_study

from ebbtide.agent.tiled.tasks import assembled
from ebbtide.agent.tiled.tiles import TileStore
from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.settings import NewRun, RunFolder
from ebbtide.engine.outcome import Outcome
from ebbtide.jobs.cluster import Cluster
from ebbtide.jobs.matrix_program import MatrixProgram
from ebbtide.jobs.tiled.named import program_of
from ebbtide.market.billing import billing_preset
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.for_job import policy_for
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import StartDelay
from ebbtide.runs.fetching import fetch_trial
from ebbtide.runs.start_local import LocalMarket, begin_local, end_local, run_local
from ebbtide.storage.objects import object_store

_TYPE = "c3.xlarge"
_START_S = 1_434_326_400.0
_HISTORY_H, _RECORD_H = 240.0, 96.0
# Heights of spikes, in turn, in the past and the run: the skyline's bids are below the higher ones.
_CALM_USD, _SPIKES_USD = 0.03, (0.4, 0.8, 1.1, 1.4)
# Hours for which a price stays high.
_HIGH_H = 0.3
# Maximum market seconds of a task; on a slow machine the market's clock is slowed to keep it. With longer tasks
# the skyline would choose bids that no spike exceeds.
_MOST_TASK_S = 300.0
# The first run has three products, one of each kind.
_MEASURED_POWER = 1
_EXACT = 1e-8


@dataclass(frozen=True)
class Size:
    """Size of the study.

    Attributes:
        tile: Elements along the side of a tile.
        power: Number of power iterations.
        machines: Maximum number of workers.
        speed: Maximum number of market seconds in a real second.
        deadline_h: Hours of the market from the start to the deadline.
        every_h: Hours of the market between spikes.
        killed_after_s: Real seconds from the start until the controller is killed.
        least_revocations: Minimum number of machines that should be revoked.
    """

    tile: int = 768
    power: int = 18
    machines: int = 3
    speed: float = 240.0
    deadline_h: float = 48.0
    every_h: float = 0.6
    killed_after_s: float = 30.0
    least_revocations: int = 5


@dataclass(frozen=True)
class CookbookReport:
    """Result of a matrix program that followed a cookbook.

    Attributes:
        finished: Whether the program ran to its end.
        policy: Name of the policy.
        market: The market that the policy chose among several.
        tasks: Number of tasks of the program.
        task_s: Mean market seconds of a task by its job, as measured in the first run.
        revocations: Number of machines that were revoked.
        machines: Number of machines that were rented.
        killed: Number of times that the controller was killed.
        difference: Largest difference of the result from numpy's, over numpy's largest element.
        deadline_h: The deadline in hours from the start.
        hours: Hours of the market that the run took.
        cost_usd: Cost by the run's ledger, USD.
        ledger_difference_usd: Difference from the cloud's own record, USD.
        replayed_hours: Hours of a replay of the same prices with the same task times.
        replayed_cost_usd: Cost of that replay, USD.
        on_demand_usd: Cost of an on-demand replay with as many machines all the time, USD.
        machines_left_running: Number of machines still running after the run.
        seconds: Duration of both runs, real seconds.
        least_revocations: Minimum number of machines that should have been revoked.
    """

    finished: bool
    policy: str
    market: str
    tasks: int
    task_s: dict[str, float]
    revocations: int
    machines: int
    killed: int
    difference: float
    deadline_h: float
    hours: float
    cost_usd: float
    ledger_difference_usd: float
    replayed_hours: float
    replayed_cost_usd: float
    on_demand_usd: float
    machines_left_running: int
    seconds: float
    least_revocations: int

    @property
    def problems(self) -> list[str]:
        """Failed checks, in words; empty if all hold."""
        return failed(
            {
                "is not finished": self.finished,
                f"only {self.revocations} machines were taken": self.revocations >= self.least_revocations,
                f"its result differs by {self.difference:.1e}": self.difference <= _EXACT,
                f"it took {self.hours:.2f} h": self.hours <= self.deadline_h,
                "the ledger differs": self.ledger_difference_usd < 0.005,
                "machines were left": self.machines_left_running == 0,
            }
        )


def spiking(every_h: float) -> PriceHistory:
    """Make prices of two zones and a larger type, with repeated price spikes in the cheaper zone."""
    begins_s, ends_s = _START_S - _HISTORY_H * HOUR_S, _START_S + _RECORD_H * HOUR_S
    spiky = [(begins_s, _CALM_USD)]
    moments = np.arange(begins_s + 0.5 * every_h * HOUR_S, ends_s - HOUR_S, every_h * HOUR_S)
    for number, at_s in enumerate(moments.tolist()):
        spiky += [(at_s, _SPIKES_USD[number % len(_SPIKES_USD)]), (at_s + _HIGH_H * HOUR_S, _CALM_USD)]
    series = {
        Market("aws", "us-east-1", "us-east-1a", _TYPE): spiky,
        Market("aws", "us-east-1", "us-east-1b", _TYPE): [(begins_s, 0.45), (ends_s - HOUR_S, 0.451)],
        Market("aws", "us-east-1", "us-east-1a", "c3.2xlarge"): [(begins_s, 0.95), (ends_s - HOUR_S, 0.951)],
    }
    return PriceHistory(
        {
            market: PriceSeries(np.array([at for at, _ in points]), np.array([usd for _, usd in points]))
            for market, points in series.items()
        },
        start_s=begins_s,
        end_s=ends_s,
    )


def calm() -> PriceHistory:
    """Price history of one zone whose price stays the same until an hour before its end."""
    market = Market("aws", "us-east-1", "us-east-1a", _TYPE)
    # Prices in a file end with their last change.
    times_s = np.array([_START_S - HOUR_S, _START_S + (_RECORD_H - 1.0) * HOUR_S])
    series = PriceSeries(times_s, np.array([_CALM_USD, 1.1 * _CALM_USD]))
    return PriceHistory({market: series}, start_s=_START_S - HOUR_S, end_s=_START_S + _RECORD_H * HOUR_S)


def program(size: Size, **fields: Any) -> Cluster:
    """Make the program RSVD-1 with this size."""
    content = {"program": "rsvd", "parameters": _parameters(size), "machines": size.machines, "name": "rsvd"}
    return MatrixProgram.parse(content | {"billing": "ec2-hourly"} | fields).work()


def measured_s(place: Path, size: Size) -> dict[str, float]:
    """Measure the mean market seconds of a task by its job, in a run of fewer products on a calm market."""
    first = program(replace(size, power=_MEASURED_POWER))
    folder = begin_local(
        first,
        _code(place),
        NewRun(place / "first"),
        LocalMarket(calm(), _START_S, size.speed),
        policy="reactive",
    )
    try:
        run_local(folder, policy_for(first, "reactive"))
        found = fetch_trial(folder, f"{folder.path.name}-000", place / "fetched")
    finally:
        end_local(folder)
    times = json.loads((found.folder / "outputs" / "task-times.json").read_text(encoding="utf-8"))
    return {job: real_s * size.speed for job, real_s in times.items()}


def studied(place: Path, size: Size) -> CookbookReport:
    """Measure, solve, run while the market revokes machines, and compare.

    Args:
        place: Folder in which the runs are kept.
        size: Size of the study.
    """
    began_s = time.monotonic()
    task_s = measured_s(place, size)
    share = min(1.0, _MOST_TASK_S / float(np.mean(list(task_s.values()))))
    task_s = {job: seconds * share for job, seconds in task_s.items()}
    size = replace(size, speed=size.speed * share)
    sweep = program(
        size,
        task_s={_TYPE: float(np.mean(list(task_s.values())))},
        start_s=600,
        deadline_h=size.deadline_h,
        policy={"name": "skyline", "delay_s": 900.0},
    )
    market = LocalMarket(spiking(size.every_h), _START_S, size.speed)
    assert sweep.policy is not None
    folder = begin_local(
        sweep, _code(place), NewRun(place / "second"), market, policy="skyline", parameters=sweep.policy.parameters
    )
    try:
        killed = _run_and_kill(folder, size.killed_after_s)
        ended = run_local(folder, policy_for(sweep, "default"))
        difference = _difference(folder, size)
    finally:
        end_local(folder)
    outcome = ended.outcome
    replayed = _replayed(sweep, market.prices, "default")
    listed = _replayed(sweep, market.prices, "on-demand")
    workers = [lease for lease in outcome.leases if not lease.on_demand]
    return CookbookReport(
        outcome.finished and not outcome.jobs[0].stopped,
        "skyline",
        ", ".join(sorted({str(lease.market) for lease in workers})),
        sum(len(job.tasks) for job in program_of("rsvd", _parameters(size)).jobs),
        {job: round(seconds, 1) for job, seconds in task_s.items()},
        outcome.revocations,
        len(ended.bills),
        killed,
        difference,
        size.deadline_h,
        outcome.makespan_s / HOUR_S,
        outcome.cost_usd,
        abs(outcome.cost_usd - ended.billed_usd),
        replayed.makespan_s / HOUR_S,
        replayed.cost_usd,
        listed.cost_usd,
        ended.left_running,
        time.monotonic() - began_s,
        size.least_revocations,
    )


def _code(place: Path) -> Path:
    """Make a folder without code, since the program is part of Ebbtide."""
    folder = place / "code"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _parameters(size: Size) -> dict[str, Any]:
    return {"rows": 8, "columns": 8, "sketch_rows": 4, "tile": size.tile, "power": size.power}


def _run_and_kill(folder: RunFolder, after_s: float) -> int:
    """Run a controller as a process, and kill it after a time; returns the number of kills."""
    words = ["resume", folder.path.name, "--runs", str(folder.path.parent)]
    process = subprocess.Popen(
        [sys.executable, "-m", "ebbtide.cli.main", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return 1
    return 0


def _difference(folder: RunFolder, size: Size) -> float:
    """Return the largest difference from numpy's result on whole matrices, over numpy's largest element."""
    trial_id = f"{folder.path.name}-000"
    tiles = TileStore(object_store(f"{folder.settings.store}/tiles/{trial_id}"))
    of_size = _parameters(size)
    a = assembled(tiles, "A", of_size["rows"], of_size["columns"])
    expected = assembled(tiles, "G", of_size["sketch_rows"], of_size["rows"])
    for _ in range(size.power):
        expected = (expected @ a) @ a.T
    expected = expected @ a
    result = (
        fetch_trial(folder, trial_id, folder.path / "fetched").folder / "outputs" / f"P{2 * size.power + 1}.npy"
    )
    found = np.load(result, allow_pickle=False)
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _replayed(sweep: Cluster, prices: PriceHistory, policy: str) -> Outcome:
    """Replay the same program, with tasks that take as long as measured."""
    scenario = Scenario(sweep.jobs(), prices, billing_preset(sweep.billing), delay=StartDelay(0.0, 0.0))
    return scenario.run(policy_for(sweep, policy), _START_S)


if __name__ == "__main__":
    run_study(__doc__, "reports/cookbook-live.json", lambda runs: studied(runs, Size()))
