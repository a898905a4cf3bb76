"""Programs on real worker processes that a market gives and takes: exact results, and no more lost than what ran."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import boto3
import numpy as np
import pytest

import ebbtide as eb
from ebbtide._utc import HOUR_S, to_epoch_s
from ebbtide.forecasts.price_chain import PriceChain
from ebbtide.jobs.progress import JobProgress
from ebbtide.live.storage import FolderStore, object_store
from ebbtide.live.tiled.dask_workers import DaskWorkers, TaskDone
from ebbtide.live.tiled.gnmf import Gnmf
from ebbtide.live.tiled.program import assembled, run_here, run_task, workflow_of, write_inputs
from ebbtide.live.tiled.provider import TiledProvider, run_program
from ebbtide.live.tiled.rsvd import Rsvd
from ebbtide.live.tiled.tiles import TileStore
from ebbtide.market.billing import billing_preset
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.cookbook.bids import Bids
from ebbtide.policies.cookbook.cluster import RunCluster
from ebbtide.policies.cookbook.policy import FollowCookbook, elastic_job
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
from ebbtide.policies.cookbook.solving import solve
from ebbtide.simulation.replayed_market import ReplayedMarket
from ebbtide.simulation.scenario import Scenario
from ebbtide.simulation.start_delay import StartDelay

pytest.importorskip("distributed")

MONDAY_S = to_epoch_s("2014-01-06T00:00:00Z")
MARKET = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")
RSVD = Rsvd(rows=6, columns=6, tile=16, power=1)
TASKS = 18
# Ten real seconds an hour; a worker needs some two of them to come.
SPEED = 360.0
TASK_H = 0.05
CHAIN = PriceChain(np.array([0.02, 0.15]), np.tile([[0.95, 0.05], [0.2, 0.8]], (168, 1, 1)), 300.0)


def history(*prices: tuple[float, float]) -> eb.PriceHistory:
    """Prices from hours on."""
    times_h, usd = zip(*prices, strict=True)
    series = PriceSeries(MONDAY_S + np.array(times_h) * HOUR_S, np.array(usd))
    return eb.PriceHistory({MARKET: series}, start_s=MONDAY_S, end_s=MONDAY_S + 48 * HOUR_S)


def cookbook_for(program: Rsvd | Gnmf, hours: int, most: int) -> FollowCookbook:
    workflow = workflow_of(program, TASK_H, most, start_work_h=0.2)
    market = ChargeModel(CHAIN.prices, *CHAIN.steps(MONDAY_S, hours, HOUR_S))
    return FollowCookbook(solve(CookbookProblem(workflow, market, most=most, work_unit_h=0.05)), MARKET)


def run(
    policy: FollowCookbook | RunCluster, program: Rsvd | Gnmf, prices: eb.PriceHistory, url: str
) -> eb.Outcome:
    rule = (
        replace(billing_preset("ec2-hourly"), notice_s=0.0)
        if isinstance(policy, RunCluster)
        else billing_preset("per-second")
    )
    return run_program(
        program,
        policy,
        Scenario(
            (elastic_job(policy.book.problem.workflow, MARKET.instance_type),),
            prices,
            rule,
            delay=StartDelay(0.0, 0.0),
        ),
        MONDAY_S,
        url,
        speed=SPEED,
        task_h=TASK_H,
    )


def expected_product(url: str | Path) -> np.ndarray:
    tiles = TileStore(object_store(url))
    a, g = assembled(tiles, "A", 6, 6), assembled(tiles, "G", 1, 6)
    return g @ a @ a.T @ a


@pytest.fixture
def bucket(aws_server: str, aws_credentials: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:  # noqa: ARG001
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws_server)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    name = f"tiles{abs(hash(tmp_path)) % 10**9}"
    boto3.client("s3").create_bucket(Bucket=name)
    return f"s3://{name}/rsvd"


def test_the_cookbook_sets_the_number_of_workers(bucket: str) -> None:
    """Low, then high, then low: workers are given up and come again, and the product is that of whole matrices."""
    policy = cookbook_for(RSVD, 6, 3)
    outcome = run(policy, RSVD, history((0.0, 0.02), (0.45, 0.15), (0.8, 0.02)), bucket)
    assert outcome.finished
    assert outcome.makespan_s <= 6 * HOUR_S
    assert len(outcome.leases) > 1
    assert assembled(TileStore(object_store(bucket)), RSVD.result, 1, 6) == pytest.approx(expected_product(bucket))
    assert len(list(object_store(bucket).keys())) == 36 + 6 + TASKS
    by_hour = sum((lease.ended_s - lease.started_s) / HOUR_S * 0.02 for lease in outcome.leases)
    assert by_hour - 1e-6 <= outcome.cost_usd <= by_hour / 0.02 * 0.15


def test_a_machine_that_is_taken_loses_only_what_it_was_at(tmp_path: Path) -> None:
    policy = cookbook_for(RSVD, 8, 3)
    cluster = RunCluster(policy.book, MARKET, Bids.fixed(policy.book, 0.1), 0.0, fixed_size=3)
    provider = TiledProvider(
        ReplayedMarket(
            history((0.0, 0.02), (0.4, 0.5), (0.6, 0.02)),
            MONDAY_S,
            replace(billing_preset("ec2-hourly"), notice_s=0.0),
            delay=StartDelay(0.0, 0.0),
        ),
        RSVD,
        str(tmp_path / "tiles"),
        tmp_path,
        speed=SPEED,
        task_h=TASK_H,
    )
    from ebbtide.engine.engine import run_policy

    job = elastic_job(policy.book.problem.workflow, "c3.xlarge")
    outcome = run_policy(cluster, (job,), provider, replace(billing_preset("ec2-hourly"), notice_s=0.0))
    assert outcome.finished
    assert outcome.revocations == 3
    assert set(provider.times_sent) == {task.output.key for each in RSVD.jobs for task in each.tasks}
    again = sum(provider.times_sent.values()) - TASKS
    # None, if the workers took longer to come than the market let them stay; of each of the three at most the task
    # that it was at, and the one whose end was not heard of yet.
    assert again <= 2 * 3
    # A machine taken loses the task that it was at, which may have ended without anybody having heard of it yet.
    assert outcome.steps_lost <= outcome.revocations * job.steps / TASKS + 1e-6
    assert assembled(TileStore(FolderStore(tmp_path / "tiles")), RSVD.result, 1, 6) == pytest.approx(
        expected_product(tmp_path / "tiles")
    )


def test_what_was_done_is_not_done_again_and_what_is_damaged_is(tmp_path: Path) -> None:
    """Begun by another process, which left two damaged tiles; and a worker that dies of itself comes again."""
    program = Gnmf(rows=3, columns=3, tile=16, topics=3, iterations=1)
    whole = TileStore(FolderStore(tmp_path / "whole"))
    write_inputs(program, whole)
    run_here(program, whole)
    url = tmp_path / "tiles"
    tiles = TileStore(FolderStore(url))
    write_inputs(program, tiles)
    for task in program.jobs[0].tasks:
        run_task(task, tiles)
    for name in (program.jobs[0].tasks[0].output.key, "V/0-0.tile"):
        (url / name).write_bytes((url / name).read_bytes()[:-3])
    killed: list[int] = []
    killer = threading.Thread(target=kill_a_child_that_works_in, args=(tmp_path, killed), daemon=True)
    killer.start()
    outcome = run(cookbook_for(program, 8, 2), program, history((0.0, 0.02)), str(url))
    killer.join(timeout=30)
    assert outcome.finished
    assert killed
    assert assembled(tiles, "W1", 3, 1) == pytest.approx(assembled(whole, "W1", 3, 1))
    assert tiles.written() == whole.written()


def kill_a_child_that_works_in(folder: Path, killed: list[int]) -> None:  # noqa: ARG001
    """One of this process's own workers, once it is there."""
    mine = os.getpid()
    for _ in range(100):
        time.sleep(0.1)
        for path in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
                command = (path / "cmdline").read_text()
            except OSError:
                continue
            if parent == mine and "dask_worker" in command:
                time.sleep(1.0)
                os.kill(int(path.name), signal.SIGKILL)
                killed.append(int(path.name))
                return


def test_a_task_that_ended_with_its_worker_is_done(tmp_path: Path) -> None:
    """The tile is written; what the worker would have answered is not waited for, as no other may come."""
    tiles = TileStore(FolderStore(tmp_path / "tiles"))
    write_inputs(RSVD, tiles)
    task = RSVD.jobs[0].tasks[0]
    workers = DaskWorkers(tmp_path)
    try:
        workers.start("a")
        workers.submit(task, str(tmp_path / "tiles"), 1.0)
        while not workers.sent:
            assert workers.wait(0.05) is None
        while not tiles.has(task.output):
            time.sleep(0.05)
        time.sleep(0.5)
        workers.kill("a")
        time.sleep(0.5)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(workers.wait, 5.0)
            try:
                assert asked.result(timeout=20) == TaskDone(task)
            finally:
                workers.close()
    finally:
        workers.close()


def test_a_drained_worker_is_not_at_what_it_never_begins(tmp_path: Path) -> None:
    """A task that reached it just before the notice would hold its machine, and itself, for ever."""
    workers = DaskWorkers(tmp_path)
    try:
        workers.start("a")
        end_s = time.monotonic() + 60
        while not workers._all() and time.monotonic() < end_s:
            workers.wait(0.05)
        may_end = tmp_path / "may-end"

        def wait_for_file(_: int) -> None:
            while not may_end.exists():
                time.sleep(0.01)

        tasks = [workers._client.submit(wait_for_file, number) for number in range(2)]
        while sum(len(worker.processing) for worker in workers._all()) < 2:
            time.sleep(0.02)
        while not workers._executes(workers._worker("a").address):
            time.sleep(0.02)
        workers.drain("a")
        assert workers.is_busy("a")
        may_end.touch()
        while workers.is_busy("a") and time.monotonic() < end_s:
            workers.wait(0.05)
        assert not workers.is_busy("a")
        assert sorted(task.status for task in tasks) == ["finished", "pending"]
        workers.kill("a")
        workers.start("b")
        assert [task.result(timeout=60) for task in tasks] == [None, None]
    finally:
        workers.close()


def test_several_jobs_are_refused(tmp_path: Path) -> None:
    provider = TiledProvider(
        ReplayedMarket(history((0.0, 0.02)), MONDAY_S, billing_preset("per-second")),
        RSVD,
        str(tmp_path / "t"),
        tmp_path,
        speed=SPEED,
        task_h=TASK_H,
    )
    try:
        job = elastic_job(workflow_of(RSVD, TASK_H, 2), "c3.xlarge")
        with pytest.raises(eb.InputError, match="2 jobs; a tiled program is one"):
            provider.start([JobProgress(0, job), JobProgress(1, job)], watch_prices=False)
    finally:
        provider.close()
