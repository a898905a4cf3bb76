"""A live run of many trials as its journal has it, half done: engine, prices and revocations are those of a replay."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from tests.runs.sweeps import BEGAN_S, START_S, A, B, sweep

import ebbtide as eb
from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.controller.journal.changes import split
from ebbtide.controller.journal.journal import Journal
from ebbtide.controller.journal.price_log import PriceLog
from ebbtide.controller.run_state import RunPhase
from ebbtide.controller.snapshots import PROVIDER_VERSION
from ebbtide.engine.engine import Engine
from ebbtide.engine.snapshot import snapshot
from ebbtide.market.billing import billing_preset
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.replay.replay import ReplayProvider
from ebbtide.replay.replayed_market import ReplayedMarket

STEPS = 3_000

# Engines of runs that were made, by jobs and time.
_MADE: dict[tuple[str, float], dict[str, Any]] = {}


def made_run(
    runs: Path, trials: int = 200, *, name: str = "made", setting: str = "", stops_after_h: float = 1.2
) -> RunFolder:
    """Write a run into a folder of runs, as its controller would have left it in its middle.

    Args:
        runs: Folder of the runs.
        trials: Number of its trials.
        name: Id of the run.
        setting: Text in each setting of a trial, to see that it stays text.
        stops_after_h: Hours of the market after which it is written down.
    """
    runs.mkdir(parents=True, exist_ok=True)
    grid = {"lr": [round(0.01 * (number + 1), 4) for number in range(trials)]}
    options: dict[str, Any] = {}
    if setting:
        grid["note"] = [setting]  # type: ignore[list-item]
        options["command"] = "python program.py {lr} {note}"
    wanted = sweep(
        runs, trials=1, steps=STEPS, grid=grid, budget_usd=40.0, billing="ec2-second", deadline_h=12.0, **options
    )
    jobs = wanted.live_jobs(eb.default_catalogue())
    # Many tests begin with the same run, and making it takes most of their time.
    key = repr(jobs), stops_after_h
    if key not in _MADE:
        _MADE[key] = _half_done(jobs, stops_after_h)
    kept = copy.deepcopy(_MADE[key])
    kept["figures"]["at_epoch_s"] = time.time()
    run = {"engine": kept["engine"], "provider": _provider(kept["engine"])}
    folder = RunFolder(runs / name)
    folder.begin(
        LiveSettings(
            name, "local", "ebbtide", wanted.model_dump(mode="json"), str(runs), str(runs / name / "objects"), {}
        )
    )
    phase = RunPhase.begin(None, os.getpid(), 0.0)
    Journal(folder.journal).keep(
        {"figures": kept["figures"], "phase": phase.encode()},
        (),
        split(run),
        kept["prices"],  # type: ignore[arg-type]
    )
    return folder


class _IsKeptError(Exception):
    """The time is reached at which the run is written down."""


def _half_done(jobs: Sequence[eb.Job], stops_after_h: float) -> dict[str, Any]:
    """Run jobs for some hours; returns snapshot, prices and figures of the engine."""
    rule = billing_preset("ec2-second")
    provider = ReplayProvider(ReplayedMarket(_prices(), START_S, rule))
    kept: dict[str, Any] = {}

    def keep(engine: Engine) -> None:
        if engine.now_s < START_S + stops_after_h * HOUR_S:
            return
        engine._provider.refresh()
        log = PriceLog(engine)
        kept.update(
            engine=copy.deepcopy(snapshot(engine)),
            prices=log.changes(),
            figures={
                "time_s": engine.now_s,
                "spent_usd": engine.spent_usd,
                "usd_per_hour": sum(engine.price(lease.market) for lease in engine.leases),
                "speed": 1.0,
                "open_usd": list(engine.open_usd.items()),
            },
        )
        raise _IsKeptError

    engine = Engine(Ebbtide(deadline_s=12 * HOUR_S), jobs, provider, rule, record=True, keep=keep)
    with suppress(_IsKeptError):
        engine.run()
    return kept


def _prices() -> eb.PriceHistory:
    """Two markets whose prices wander, and now and then go above the list price."""
    random = np.random.default_rng(3)
    series = {}
    for place, market in enumerate((A, B)):
        times_s = BEGAN_S + np.arange(0, 60 * HOUR_S, 300.0)
        usd = 0.03 * np.exp(0.15 * np.cumsum(random.normal(0, 0.3, len(times_s))) % 0.7)
        usd[place * 7 + 3 :: 15] = 0.9
        series[market] = PriceSeries(times_s, usd)
    return eb.PriceHistory(series, start_s=BEGAN_S, end_s=BEGAN_S + 60 * HOUR_S)


def _provider(engine: dict[str, Any]) -> dict[str, Any]:
    """What the provider of that engine's run would have written."""
    trials = []
    for number, job in enumerate(engine["jobs"]):
        done = int(job["steps_done"])
        random = np.random.default_rng(number)
        every = max(STEPS // 150, 1)
        metrics = [
            (step, 0.2 + 0.002 * number + 2.0 / (1 + step / 50) + 0.01 * float(random.normal()))
            for step in range(every, done + 1, every)
        ]
        trials.append(_TRIAL | {"metrics": metrics, "attempt": 1, "best": done})
        trials[-1]["members"] = [_MEMBER | {"lease_id": lease_id} for lease_id in job["leases"]]
    return {
        "version": PROVIDER_VERSION,
        "trials": trials,
        "leases": list(range(len(engine["leases"]))),
        "mailboxes": [],
        "launching": [],
        "speeds": {},
        "out": [],
        "unended": [],
        "unfit": [],
        "seen": [],
        "numbers": {"next": 0, "epochs": []},
        "reports_every_s": [],
        "first_machine": 0,
        "quarantined": 0,
        "quarantine": [],
    }


_MEMBER: dict[str, Any] = {
    "rank": 0, "ended": "", "saved": [], "resume": None, "attempt": 1, "tasks": [], "done": 0, "leaving": False,
    "began_s": math.nan,
}  # fmt: skip
_TRIAL: dict[str, Any] = {
    "assigned": [], "leaving": False, "alone": False, "failure": None, "savers": [], "stopping": False, "ended": False,
    "failures": 0, "from_one": {}, "aside": [], "milestones": [], "problem": "", "tail": [], "fields": ["loss"],
    "warnings": [], "stretches": [], "began_s": math.nan, "began_epoch_s": math.nan, "began_number": 0, "began_step": 0,
    "has_saved": True, "lost_above": 0.0, "stored_number": 1, "resumed": 1, "tasks": None, "workers": [],
    "worker_attempt": 0, "worker_failures": 0, "share": 1.0, "best_stored": math.nan, "best_stored_step": 0,
    "divergence": {"finite_at": -1, "not_finite_at": -1, "gap": 0},
}  # fmt: skip
