"""Sweeps by real processes on a local cloud: interrupted, failing, stopped, killed, and right at the end."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tests.runs.sweeps import START_S, A, flapping, sweep, total
from tests.waiting import LIMIT_S, eventually

import ebbtide as eb
from ebbtide.clouds.local.client import LocalCloud, LocalCloudSettings, start_local_cloud
from ebbtide.clouds.local.server import ADDRESS, ANOTHER, CLOCK
from ebbtide.clouds.settings import NewRun, RunFolder, find_run
from ebbtide.controller.agent_provider import PollIntervals
from ebbtide.controller.controller import Controller
from ebbtide.controller.journal.journal import Journal
from ebbtide.controller.progress_news import ProgressNews
from ebbtide.controller.run_state import LOCK, StopRequest, controller_pid, controlling, request_stop
from ebbtide.engine.outcome import Outcome
from ebbtide.engine.timeline import Timeline
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.leases import LeaseState
from ebbtide.policies.api.actions import Action, Assign, Release, Request
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.view import View
from ebbtide.policies.exosphere.master import ExoSphere
from ebbtide.runs.cost_summary import money_of
from ebbtide.runs.start_local import LocalMarket, begin_local, end_local, run_local
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import object_store

pytestmark = pytest.mark.usefixtures("processes")

CONTROLLER = """
import logging, sys
from pathlib import Path
from ebbtide.runs.start_local import run_local
from ebbtide.clouds.settings import NewRun, RunFolder
from ebbtide.policies.exosphere.master import ExoSphere
logging.basicConfig(level=logging.WARNING)
run_local(RunFolder(Path(sys.argv[1])), ExoSphere())
"""


@pytest.fixture
def begun() -> Iterator[list[RunFolder]]:
    """Runs that a test began: whatever becomes of it, no machine of theirs is left."""
    folders: list[RunFolder] = []
    yield folders
    for folder in folders:
        end_local(folder)


def begin(begun: list[RunFolder], tmp_path: Path, *, speed: float = 120.0, **options: object) -> RunFolder:
    wanted = sweep(tmp_path, **options)  # type: ignore[arg-type]
    folder = begin_local(
        wanted,
        tmp_path,
        NewRun(tmp_path / "runs"),
        LocalMarket(flapping(0.25), START_S, speed),
        policy="exosphere",
    )
    begun.append(folder)
    return folder


def steps_done(folder: RunFolder) -> float:
    """Steps of all trials together, as the run's journal has them."""
    kept = Journal(folder.journal).run() if folder.journal.exists() else None
    return sum(job["steps_done"] for job in kept["engine"]["jobs"]) if kept is not None else 0.0


def totals(folder: RunFolder) -> dict[int, float]:
    """What each trial's program printed at last."""
    found = {}
    for path in sorted((folder.path / "logs").iterdir()):
        lines = [line for line in path.read_text().splitlines() if line.startswith("total")]
        found[int(path.stem[-3:])] = float(lines[-1].split()[1])
    return found


def test_a_sweep_is_trained_through_revocations_and_its_ledger_is_the_cloud_s(
    begun: list[RunFolder], tmp_path: Path
) -> None:
    folder = begin(begun, tmp_path, steps=400)
    # Without aversion to risk all are in one market, and lost at once.
    ended = run_local(folder, ExoSphere(alpha=0.0))
    outcome = ended.outcome
    assert outcome.finished
    assert outcome.revocations >= 3
    assert ended.left_running == 0
    assert outcome.cost_usd == pytest.approx(ended.billed_usd, abs=1e-12)
    assert outcome.cost_usd > 0
    # The notice is used, and what it was too short for was saved every twenty steps.
    assert outcome.steps_lost <= 25 * outcome.revocations
    assert totals(folder) == {n: pytest.approx(total(round(0.1 * (n + 1), 1), 400)) for n in range(3)}
    for number in range(3):
        store = CheckpointStore(object_store(folder.settings.store), f"{folder.settings.run}-{number:03d}")
        assert next(store.manifests()).step == 400
    what = [moment[1] for moment in Journal(folder.journal).moments()]
    assert what.count("finished") == 3
    assert "notice" in what


@pytest.mark.long
def test_training_that_fails_is_tried_a_few_times_and_its_sweep_goes_on(
    begun: list[RunFolder], tmp_path: Path
) -> None:
    program = """
import sys, time
if float(sys.argv[3]) < 0.15:
    raise SystemExit("bad setting")
time.sleep(0.1); print("total 1.0", flush=True)
"""
    folder = begin(begun, tmp_path, trials=2, program=program)
    outcome = run_local(folder, ExoSphere()).outcome
    assert outcome.finished
    failed = next(moment[4] for moment in Journal(folder.journal).moments() if moment[4].startswith("failed"))
    assert failed.startswith("failed 5 times, last with exit code 1: bad setting")
    assert outcome.jobs[0].stopped
    assert not outcome.jobs[1].stopped
    # That training failed is no revocation.
    assert outcome.revocations == sum(lease.state == "revoked" for lease in outcome.leases)


@pytest.mark.long
def test_a_checkpoint_that_training_fails_from_is_set_aside(begun: list[RunFolder], tmp_path: Path) -> None:
    program = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1]); state = folder / "state.json"
step = json.loads(state.read_text()) if state.exists() else 0
if step == 20: raise SystemExit("this checkpoint is poison")
step += 10 if step != 10 or (folder / "again").exists() else 10
tried = pathlib.Path("TRIED")
if tried.exists() and step == 20: step = 30
state.write_text(json.dumps(step)); print(json.dumps({"saved": step}), flush=True)
if step == 20: tried.touch()
if step < 30: raise SystemExit("not at the end yet")
print("total 30", flush=True)
"""
    folder = begin(begun, tmp_path, trials=1, steps=30, program=program.replace("TRIED", str(tmp_path / "tried")))
    outcome = run_local(folder, ExoSphere()).outcome
    assert outcome.finished
    assert not outcome.jobs[0].stopped
    assert totals(folder) == {0: 30.0}


@pytest.mark.long
def test_a_controller_that_is_killed_goes_on_and_pays_nothing_twice(
    begun: list[RunFolder], tmp_path: Path
) -> None:
    folder = begin(begun, tmp_path, steps=800)
    prices = eb.PriceHistory.read(folder.path / "prices.parquet")
    trained_on = 0

    def trains() -> bool:
        place = folder.path / "cloud"
        return (place / ADDRESS).exists() and bool(LocalCloud(place, prices).processes())

    # Once it knows of steps, once it knows of more, and once as soon as anything trains.
    for more_steps in (1.0, 1.0, 0.0):
        before = steps_done(folder)
        controller = subprocess.Popen([sys.executable, "-c", CONTROLLER, str(folder.path)])
        eventually(lambda least=before + more_steps: trains() and steps_done(folder) >= least, poll_s=0.1)
        controller.send_signal(signal.SIGKILL)
        controller.wait()
        # Machines train on meanwhile, but for those that the market took at this very moment.
        trained_on += trains()
    assert trained_on >= 1
    ended = run_local(folder, ExoSphere())
    assert ended.outcome.finished
    assert ended.left_running == 0
    assert ended.outcome.cost_usd == pytest.approx(ended.billed_usd, abs=1e-12)
    assert len(ended.bills) == sum(lease.is_charged for lease in ended.outcome.leases)
    assert totals(folder) == {n: pytest.approx(total(round(0.1 * (n + 1), 1), 800)) for n in range(3)}


@pytest.mark.long
def test_one_that_is_stopped_saves_all_gives_all_back_and_can_go_on(
    begun: list[RunFolder], tmp_path: Path
) -> None:
    folder = begin(begun, tmp_path, trials=2, steps=600)
    controller = subprocess.Popen([sys.executable, "-c", CONTROLLER, str(folder.path)])
    journal = Journal(folder.journal)
    eventually(lambda: steps_done(folder) >= 40, poll_s=0.1)
    request_stop(folder.path, StopRequest.STOP)
    assert controller.wait(LIMIT_S) == 0
    summary = journal.state("outcome")
    assert (summary["finished"], summary["gave_up"]) == (False, "stopped by its user")
    assert summary["steps_lost"] <= 25 * summary["revocations"]
    assert not (folder.path / "cloud" / "cloud.json").exists()
    ended = run_local(find_run(tmp_path / "runs", None), ExoSphere())
    assert ended.outcome.finished
    assert totals(folder) == {n: pytest.approx(total(round(0.1 * (n + 1), 1), 600)) for n in range(2)}


def test_two_controllers_do_not_share_a_run(begun: list[RunFolder], tmp_path: Path) -> None:
    folder = begin(begun, tmp_path, trials=1, steps=300)
    controller = subprocess.Popen([sys.executable, "-c", CONTROLLER, str(folder.path)])
    try:
        eventually(lambda: controller_pid(folder.path) == controller.pid)
        with pytest.raises(eb.InputError, match="another controller is under way"):
            run_local(folder, ExoSphere())
    finally:
        controller.kill()
        controller.wait()
    assert os.path.exists(folder.journal)


@pytest.mark.long
def test_a_local_cloud_that_nobody_uses_ends_itself_and_one_whose_controller_is_paused_does_not(
    tmp_path: Path,
) -> None:
    flapping().write(tmp_path / "prices.parquet")
    settings = LocalCloudSettings(
        str(tmp_path / "cloud"),
        str(tmp_path / "prices.parquet"),
        START_S,
        120.0,
        lock=str(tmp_path / LOCK),
        unused_s=0.5,
    )
    with controlling(tmp_path):
        cloud = start_local_cloud(settings)
        try:
            # It writes its clock down at each look, and has looked more than once since nobody used it.
            clock, seen = tmp_path / "cloud" / CLOCK, set[str]()
            eventually(lambda: clock.exists() and (seen.add(clock.read_text()) or len(seen) >= 5))
            assert (tmp_path / "cloud" / ADDRESS).exists()
            assert psutil.pid_exists(cloud.pid)
        except BaseException:
            cloud.end()
            raise
    try:
        eventually(lambda: not (tmp_path / "cloud" / ADDRESS).exists())
    finally:
        cloud.end()


def test_a_cloud_that_a_killed_controller_had_begun_to_start_is_the_only_one(tmp_path: Path) -> None:
    """Two would each replace the other's clock and bills."""
    flapping().write(tmp_path / "prices.parquet")
    settings = LocalCloudSettings(
        str(tmp_path / "cloud"), str(tmp_path / "prices.parquet"), START_S, 120.0, unused_s=60.0
    )
    (tmp_path / "cloud").mkdir()
    written = tmp_path / "cloud" / "settings.json"
    written.write_text(json.dumps(asdict(settings)))
    first = subprocess.Popen([sys.executable, "-m", "ebbtide.clouds.local.server", str(written)])
    cloud = None
    try:
        cloud = start_local_cloud(settings)
        assert cloud.pid == first.pid or first.wait(LIMIT_S) == ANOTHER
    finally:
        if cloud is not None:
            cloud.end()
        first.kill()
        first.wait()


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.log_of("run-000").mkdir(parents=True)
    controller: Any = SimpleNamespace(_folder=folder, _progress_news=ProgressNews())
    Controller._log(controller, "run-000", "a line")
    assert "what trial run-000 prints cannot be kept" in caplog.text


def test_a_run_is_charged_in_the_end_by_the_prices_known_then() -> None:
    charged: list[str] = []
    asked: list[tuple[float, float]] = []
    engine = SimpleNamespace(settle_all_again=lambda: charged.append("all"))
    provider = SimpleNamespace(end_remaining=lambda *limits_s: asked.append(limits_s) or [])
    controller: Any = SimpleNamespace(
        _engine=engine, _provider=provider, _pace=PollIntervals(), _waits_no_more=lambda: False
    )
    ledger: Any = SimpleNamespace(total_usd=2.0, refund_usd=1.0)
    outcome = Outcome("p", 0.0, 1.0, True, 0.0, 0.0, 0, 0, 0.0, (), (), ledger, Timeline(), 0)
    found = Controller._end_remaining(controller, outcome)
    assert (charged, found.cost_usd) == (["all"], 2.0)
    # Whoever has asked for the end waits less for a cloud that does not answer.
    controller._waits_no_more = lambda: True
    Controller._end_remaining(controller, outcome)
    assert asked == [(40.0, 40.0), (40.0, 3.0)]


@dataclass(frozen=True)
class InPairs:
    """Trials 0 and 1 share a machine, as do 2 and 3; when that is taken they go to another, in the other market."""

    name: str = "in pairs"
    wakes_on: frozenset[Wake] = frozenset()

    def decide(self, view: View) -> Iterable[Action]:
        for first in (0, 2):
            pair = [job for job in view.jobs[first : first + 2] if not job.is_finished]
            steady = [
                lease
                for job in pair
                for lease in view.leases_of(job.job_id)
                if math.isinf(lease.revoke_at_s) and lease.is_open
            ]
            if pair and not steady:
                cheapest = min(view.markets, key=view.price)
                yield Request(cheapest, 0.2, job=pair[0].job_id, keep=True)
            for job in pair:
                if steady and steady[0].is_booted and steady[0] not in view.leases_of(job.job_id):
                    yield Assign(job.job_id, [steady[0].lease_id])
        used = {lease.lease_id for job in view.jobs for lease in view.leases_of(job.job_id)}
        for lease in view.leases:
            if lease.lease_id not in used and lease.is_booted:
                yield Release(lease.lease_id)


def test_trials_that_share_machines_resume_together_elsewhere(begun: list[RunFolder], tmp_path: Path) -> None:
    folder = begin(begun, tmp_path, trials=4, steps=400, share=0.5)
    ended = run_local(folder, InPairs())
    outcome = ended.outcome
    assert outcome.finished
    assert ended.left_running == 0
    assert outcome.cost_usd == pytest.approx(ended.billed_usd, abs=1e-12)
    assert totals(folder) == {n: pytest.approx(total(round(0.1 * (n + 1), 1), 400)) for n in range(4)}
    kept = Journal(folder.journal).run()
    assert kept is not None
    trials = kept["provider"]["trials"]
    on = [[stretch["lease_id"] for stretch in trial["stretches"]] for trial in trials]
    taken = [lease.lease_id for lease in outcome.leases if lease.state is LeaseState.REVOKED]
    assert taken
    # Both trainings of a machine that was taken have resumed on the same next one.
    shared = set(on[0]) & set(on[1]), set(on[2]) & set(on[3])
    assert any(lease_id in pair and len(pair) > 1 for lease_id in taken for pair in shared)
    # No second of a shared machine counts twice.
    money = money_of(kept, default_catalogue())
    lived_s = math.fsum(lease.ended_s - lease.started_s for lease in outcome.leases)
    listed = default_catalogue().on_demand_usd_per_hour(A, START_S)
    assert listed is not None
    assert 0.0 < money.on_demand_usd <= lived_s / 3600.0 * listed


def test_a_store_is_the_same_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a run that was resumed from another folder looked for its checkpoints there."""
    monkeypatch.chdir(tmp_path)
    market = LocalMarket(flapping(), START_S)
    folder = begin_local(
        sweep(tmp_path), tmp_path, NewRun(tmp_path / "runs"), market, policy="reactive", store="checkpoints"
    )
    assert Path(folder.settings.store).is_relative_to(tmp_path / "checkpoints")
