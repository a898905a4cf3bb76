"""How a run stands: the best by its best value, what money compares with, and what is left."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.runs.sweeps import START_S, A

from ebbtide.cli.live_table import answer_lines, state_line, warning_lines
from ebbtide.clouds.settings import LiveSettings
from ebbtide.controller.kinds.state import Stretch, encode_stretches
from ebbtide.controller.run_state import RunPhase, State
from ebbtide.controller.snapshots import migrated
from ebbtide.engine.snapshot import lease_values
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.runs.cost_summary import Money, settled_usd
from ebbtide.runs.status import RunStanding, standing

HOUR_S = 3600.0
# Seconds since 1970 at which everything here is looked at.
NOW_S = 1_700_000_000.0


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("status", "cost_summary"):
        monkeypatch.setattr(f"ebbtide.runs.{module}.time", SimpleNamespace(time=lambda: NOW_S))


def trial(metrics: dict[int, float], **options: Any) -> dict[str, Any]:
    values = {
        "on": None,
        "leaving": False,
        "assigned": [],
        "problem": "",
        "tail": [],
        "warnings": [],
        "metrics": [list(pair) for pair in metrics.items()],
        "stretches": [],
    }
    return values | options


def job(**options: Any) -> dict[str, Any]:
    values = {"steps_done": 100.0, "steps_saved": 100.0, "checkpoints": 2, "finished_s": 9.0, "stopped": False}
    return values | options


def stands(
    jobs: list[dict[str, Any]],
    trials: list[dict[str, Any]],
    *,
    state: State = State.FINISHED,
    direction: str = "minimize",
    metric: str | None = "loss",
    leases: list[Lease] | None = None,
    bills: list[Any] | None = None,
    figures: dict[str, Any] | None = None,
    deadline_h: float | None = None,
) -> RunStanding:
    sweep = {
        "name": "s",
        "command": "python t.py {lr}",
        "grid": {"lr": [round(0.1 * n, 1) for n in range(len(jobs))]},
        "metric": metric,
        "direction": direction,
        "max_trial_steps": 100,
        "steps_per_hour": {"c3.xlarge": 100},
    }
    if deadline_h is not None:
        sweep["deadline_h"] = deadline_h
    settings = LiveSettings("run", "local", "spottune", sweep, ".", "/store", {"speed": 1.0})
    kept = {
        "engine": {
            "started_s": START_S,
            "jobs": jobs,
            "leases": [lease_values(lease) for lease in leases or []],
            "bills": bills or [],
        },
        "provider": migrated({"trials": trials, "leases": [], "posts": [], "launching": [], "out": []}),
    }
    now_s = NOW_S
    phase = RunPhase(
        State.RUNNING, 1, now_s - 60.0, now_s - 60.0, ended_epoch_s=None if state is State.RUNNING else now_s
    )
    return standing(
        settings, kept, figures, phase, state, 1 if state is State.RUNNING else None, {}, default_catalogue()
    )


def test_the_best_is_by_the_best_value_and_not_by_the_last() -> None:
    metrics = [{10: 0.5, 20: 0.4}, {10: 0.2, 20: 0.9}, {}]
    found = stands([job() for _ in metrics], [trial(one) for one in metrics])
    assert [one.number for one in found.trials] == [1, 0, 2]
    assert found.best is not None
    assert (found.best.best, found.best.best_step, found.best.last) == (0.2, 10, 0.9)
    lines = list(answer_lines(found))
    assert lines[0] == "best: trial 1 (lr=0.1), loss 0.2 at step 10 (last 0.9)"
    assert "/store/trials/run-001" in lines[1]
    assert "ebbtide fetch run" in lines[1]
    # The newest alone is kept, which is not the best.
    assert lines[1].startswith("its newest checkpoint (step 100; that of step 10 is not kept): ")
    kept = replace(found, trials=(replace(found.best, kept=0.25, kept_step=12), *found.trials[1:]))
    (_, line, *_) = answer_lines(kept)
    assert line.startswith("its best checkpoint (step 12, loss 0.25): ")
    assert line.endswith("`ebbtide fetch run` downloads it, and with --newest that of step 100")
    most = stands([job() for _ in metrics], [trial(one) for one in metrics], direction="maximize")
    assert [one.number for one in most.trials] == [1, 0, 2]
    assert most.best is not None
    assert most.best.best == 0.9


def test_a_failed_trial_is_never_the_best_and_comes_last_with_its_lines() -> None:
    failed = trial({10: 0.1}, problem="failed 5 times", tail=["one", "two"])
    found = stands([job(), job()], [failed, trial({10: 0.3})], state=State.FAILED)
    assert [one.number for one in found.trials] == [1, 0]
    assert found.best is not None
    assert found.best.number == 1
    lines = list(answer_lines(found))
    assert lines[-3:] == ["trial 0 (lr=0) failed: failed 5 times", "    one", "    two"]
    assert state_line(found) == "failed: 1 of 2 trials"


def test_what_was_never_saved_or_reported_is_not_counted() -> None:
    silent = job(steps_done=0.0, steps_saved=0.0, checkpoints=0)
    found = stands([silent], [trial({}, warnings=["it has saved nothing"])])
    assert (found.trials[0].steps_done, found.trials[0].steps_saved, found.trials[0].checkpoint) == (
        None,
        None,
        "",
    )
    assert list(warning_lines(found)) == ["warning: trial 0: it has saved nothing"]
    assert any(line.startswith("it has stored no checkpoint; `ebbtide fetch run`") for line in answer_lines(found))


def test_money_compares_with_work_that_was_kept_alone() -> None:
    ended = Lease(0, A, 0.1, False, START_S, LeaseState.REVOKED, START_S, START_S, START_S, START_S + HOUR_S)
    charge = {"start_s": START_S, "end_s": START_S + HOUR_S, "price_usd_per_hour": 0.05, "usd": 0.05}
    bills = [[0, {"charges": [charge], "refund_usd": 0.0}]]
    half = Stretch(0, HOUR_S, 0, 0.0, 100.0, 50.0, True)
    found = stands([job()], [trial({}, stretches=encode_stretches([half]))], leases=[ended], bills=bills)
    listed = default_catalogue().on_demand_usd_per_hour(A, START_S)
    assert listed is not None
    assert found.money.on_demand_usd == pytest.approx(listed / 2)
    assert (found.money.lost_s, found.money.lost_usd) == (pytest.approx(HOUR_S / 2), pytest.approx(0.025))
    assert found.money.saved_share == pytest.approx(1 - 0.05 / (listed / 2))
    # All thrown away: there is nothing that it could be less than.
    none = Stretch(0, HOUR_S, 0, 0.0, 0.0, 0.0, False)
    lost = stands([job()], [trial({}, stretches=encode_stretches([none]))], leases=[ended], bills=bills)
    assert lost.money.saved_share is None
    assert "no work was kept" in str(lost.money)
    assert "less" not in str(lost.money)


def test_open_leases_cost_on_since_they_were_last_told_of() -> None:
    rented = Lease(0, A, 0.1, False, START_S, LeaseState.RUNNING, START_S, START_S)
    figures = {
        "time_s": START_S,
        "at_epoch_s": NOW_S - 36.0,
        "spent_usd": 1.0,
        "usd_per_hour": 2.0,
        "speed": 100.0,
    }
    running = job(steps_done=50.0, finished_s=math.nan)
    found = stands(
        [running], [trial({}, on=0, assigned=[0])], state=State.RUNNING, leases=[rented], figures=figures
    )
    assert found.money.paid_usd == pytest.approx(3.0)
    assert (found.rented, found.trials[0].state) == (1, "training")
    # Half of the steps took a minute.
    assert found.rest_s == pytest.approx(60.0)
    json.dumps(found.as_plain(), allow_nan=False)
    # A controller that is gone may have left machines, one that ended has not.
    assert stands([running], [trial({}, on=0)], state=State.GONE, leases=[rented], figures=figures).rented == 1
    down = stands([running], [trial({}, on=0)], state=State.DOWN, leases=[rented], figures=figures)
    assert (down.rented, down.trials[0].state, down.money.paid_usd) == (0, "unfinished", 1.0)


def test_without_a_metric_one_training_is_its_own_answer() -> None:
    assert stands([job()], [trial({})], metric=None).best is not None


def test_what_machines_cost_is_the_cloud_s_bill_else_by_the_last_rate() -> None:
    rented = [
        Lease(0, A, 0.1, False, START_S, LeaseState.RELEASED, START_S, START_S, START_S, START_S + HOUR_S),
        Lease(1, A, 0.1, False, START_S, LeaseState.RUNNING, START_S, START_S),
    ]
    charge = {"start_s": START_S, "end_s": START_S + HOUR_S, "price_usd_per_hour": 0.05, "usd": 0.05}
    kept = {
        "engine": {
            "leases": [lease_values(lease) for lease in rented],
            "bills": [[0, {"charges": [charge], "refund_usd": 0.0}]],
        }
    }
    figures = {"spent_usd": 0.06, "usd_per_hour": 0.04}
    assert settled_usd("r", kept, figures, {"r-m0000": 0.05, "r-m0001": 0.03}, 900.0) == pytest.approx(0.08)
    # One that was asked for after the controller last wrote costs as well.
    assert settled_usd("r", kept, figures, {"r-m0001": 0.03, "r-m0002": 0.01}, 0.0) == pytest.approx(0.09)
    assert settled_usd("r", kept, figures, {}, 900.0) == pytest.approx(0.07)
    # Of one that went on from storage, bills of its lost journal's machines are not this one's.
    kept["provider"] = {"first_machine": 2}
    bills = {"r-m0000": 7.0, "r-m0001": 7.0, "r-m0002": 0.05, "r-m0003": 0.03}
    assert settled_usd("r", kept, figures, bills, 900.0) == pytest.approx(0.08)


def test_no_percentage_is_told_where_hardly_any_work_was_kept() -> None:
    assert "%" not in str(Money(0.028, 0.0, 0.0, 0.000015, 0.0, 0.0))
    assert "78% less" in str(Money(0.022, 0.0, 0.0, 0.1, 0.0, 0.0))


def test_boot_and_notice_are_as_much_thrown_away_as_the_work_of_their_machine() -> None:
    """Ten minutes until it trains, fifty in which it saved nothing, thirty from the notice to its end."""
    ended_s = START_S + 1.5 * HOUR_S
    taken = Lease(0, A, 0.1, False, START_S, LeaseState.REVOKED, START_S, START_S, START_S, ended_s)
    charge = {"start_s": START_S, "end_s": ended_s, "price_usd_per_hour": 0.1, "usd": 0.15}
    bills = [[0, {"charges": [charge], "refund_usd": 0.0}]]
    for kept_steps, share in ((0.0, 1.0), (50.0, 0.5), (100.0, 0.0)):
        stretch = Stretch(0, HOUR_S * 5 / 6, 0, 0.0, 100.0, kept_steps, kept_steps > 0)
        found = stands([job()], [trial({}, stretches=encode_stretches([stretch]))], leases=[taken], bills=bills)
        assert found.money.lost_s == pytest.approx(1.5 * HOUR_S * share)
        assert found.money.lost_usd == pytest.approx(0.15 * share)


def test_a_missed_deadline_is_told() -> None:
    late = stands([job(finished_s=START_S + 3 * HOUR_S)], [trial({})], deadline_h=1.0)
    assert late.late_s == pytest.approx(2 * HOUR_S)
    assert list(warning_lines(late)) == ["warning: its deadline of 1 h is missed by 2.0 h"]
    kept = stands([job(finished_s=START_S + 3 * HOUR_S)], [trial({})], deadline_h=3.0)
    assert list(warning_lines(kept)) == []
    # One that still runs past it says so too.
    figures = {"time_s": START_S + 2 * HOUR_S, "at_epoch_s": NOW_S, "spent_usd": 0.0, "usd_per_hour": 0.0}
    goes_on = stands([job(finished_s=math.nan)], [trial({})], deadline_h=1.0, figures=figures, state=State.RUNNING)
    assert goes_on.late_s == pytest.approx(HOUR_S)


def test_one_that_was_stopped_is_told_so_once() -> None:
    found = dataclasses.replace(stands([job()], [trial({})], state=State.STOPPED), why="stopped by its user")
    assert state_line(found) == "stopped; `ebbtide resume run` continues"
    gave_up = dataclasses.replace(found, state=State.GAVE_UP, why="budget of 0.0001 USD reached")
    assert state_line(gave_up).startswith("gave up: budget of 0.0001 USD reached; ")
    # Whether it can be resumed here, its own words say.
    elsewhere = dataclasses.replace(found, state=State.ELSEWHERE, why="another controller has taken this run over")
    assert state_line(elsewhere) == "taken over: another controller has taken this run over"


def test_machines_without_a_controller_cost_until_they_end_themselves() -> None:
    def limit_s(provider: str, **options: Any) -> float:
        return LiveSettings("run", provider, "reactive", {}, ".", "/store", options).controller_limit_s

    assert limit_s("local") == 60.0
    assert limit_s("ec2", ec2={"controller_limit_s": 120.0}) == 120.0
    assert limit_s("ec2") == 900.0
