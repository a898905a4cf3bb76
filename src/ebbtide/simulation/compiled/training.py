"""One job's training in compiled code: what `SimulatedTraining` does for one machine at a time.

Here are also the records that a replay keeps: the rule it follows, its leases, its state.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ebbtide._compiling import inner

REQUESTED, STARTING, RUNNING, NOTICED, ENDED, REVOKED = range(6)
IDLE, RESTORING, TRAINING, SAVING = range(4)
LAUNCH, BOOT, NOTICE, REVOKE = range(4)

NONE = -1
MAX_LEASES = 8192
MAX_OPEN = 16
MAX_TIMERS = 256

# The policy, the job and the charges; see `DeepSpotCloud`, `Job` and `Billing`.
RULE = np.dtype(
    [
        ("when", "i8"),
        ("overlap", "?"),
        ("lead_s", "f8"),
        ("stay_s", "f8"),
        ("moves_per_day", "f8"),
        ("charged_boot_s", "f8"),
        ("retry_s", "f8"),
        ("look_s", "f8"),
        ("margin_s", "f8"),
        ("save_margin_s", "f8"),
        ("steps", "f8"),
        ("tolerance", "f8"),
        ("clock_s", "f8"),
        ("dataset_s", "f8"),
        ("dataset_cloud", "i8"),
        ("end_s", "f8"),
        ("period_us", "i8"),
        ("minimum_us", "i8"),
        ("at_lease_start", "?"),
        ("refund_first_hour", "?"),
        ("refund_partial", "?"),
        ("notice_s", "f8"),
        ("price_revokes", "?"),
        ("max_lifetime_s", "f8"),
    ],
    align=True,
)

LEASE = np.dtype(
    [
        ("market", "i8"),
        ("state", "i8"),
        ("due", "i8"),
        ("requested_s", "f8"),
        ("max_price", "f8"),
        ("started_s", "f8"),
        ("running_s", "f8"),
        ("revoke_at_s", "f8"),
        ("leave_at_s", "f8"),
        ("look_s", "f8"),
        ("due_s", "f8"),
        ("entered_s", "f8"),
        ("notice_at_s", "f8"),
        ("noticed_from_s", "f8"),
        ("assigned", "?"),
        ("for_job", "?"),
        ("draining", "?"),
        ("left", "?"),
        ("displaced", "?"),
    ],
    align=True,
)

STATE = np.dtype(
    [
        ("start_s", "f8"),
        ("now_s", "f8"),
        ("phase", "i8"),
        ("member", "i8"),
        ("until_s", "f8"),
        ("unsaved", "f8"),
        ("since_s", "f8"),
        ("steps_per_s", "f8"),
        ("saved", "f8"),
        ("saved_at", "i8"),
        ("tolerance", "f8"),
        ("lost", "f8"),
        ("finished_s", "f8"),
        ("leases", "i8"),
        ("open", "i8"),
        ("timers", "i8"),
        ("cost_usd", "f8"),
        ("egress_usd", "f8"),
        ("charged", "i8"),
        ("revoked", "i8"),
        ("clouds", "i8"),
        ("change", "i8"),
        ("retry_s", "f8"),
        ("ask", "?"),
        ("failed", "?"),
        ("overflow", "?"),
    ],
    align=True,
)


class World(NamedTuple):
    """All that a replay reads, and the room it works in.

    Attributes:
        points: `POINT` records.
        markets: `MARKET` records.
        cheapest: `CHEAPEST` records.
        pairs: Of a checkpoint, from place to place: seconds, and USD of egress; shape (2, places, places).
        delays: Request and boot time, by (second of the request + number of the lease); shape (n, 2).
        rule: A `RULE` record.
        leases: `LEASE` records, shape (MAX_LEASES,).
        opened: Numbers of the open ones, shape (MAX_OPEN,).
        timers: Shape (MAX_TIMERS,).
    """

    points: Any
    markets: Any
    cheapest: Any
    pairs: Any
    delays: Any
    rule: Any
    leases: Any
    opened: Any
    timers: Any


@inner
def _settle(run: Any) -> None:
    if run.phase == TRAINING:
        run.unsaved = run.unsaved + (run.now_s - run.since_s) * run.steps_per_s
    run.since_s = run.now_s


@inner
def _pass_to(run: Any, phase: int, until_s: float, steps_per_s: float) -> None:
    _settle(run)
    run.phase, run.until_s, run.steps_per_s = phase, until_s, steps_per_s


@inner
def _lose(run: Any) -> None:
    if run.unsaved > run.tolerance:
        run.lost += run.unsaved
    run.unsaved = 0.0


@inner
def _save(world: Any, run: Any) -> None:
    _pass_to(run, SAVING, run.now_s + world.markets[world.leases[run.member].market].save_s, 0.0)


@inner
def _target(leases: Any, opened: Any, run: Any) -> int:
    """The machine to be on: one without notice; else the one that it is on, while there is time."""
    staying = NONE
    for n in range(run.open):
        number = opened[n]
        lease = leases[number]
        if lease.assigned and not math.isnan(lease.running_s):
            if lease.state == RUNNING:
                return number
            if number == run.member and lease.leave_at_s > run.now_s:
                staying = number
    return staying


@inner
def _move_to(world: Any, run: Any, target: int) -> None:
    run.member = target
    if target == NONE:
        _pass_to(run, IDLE, math.inf, 0.0)
        return
    market = world.markets[world.leases[target].market]
    restore_s = market.restore_s
    if run.saved_at != NONE:
        restore_s += world.pairs[0, run.saved_at, market.place]
        run.egress_usd += world.pairs[1, run.saved_at, market.place]
    if world.rule.dataset_cloud != NONE and not run.clouds >> market.cloud & 1:
        run.clouds |= 1 << market.cloud
        run.egress_usd += market.dataset_usd
        restore_s += world.rule.dataset_s
    _pass_to(run, RESTORING, run.now_s + restore_s, 0.0)


@inner
def advance(world: Any, run: Any) -> bool:
    """Do everything in training that is due; whether the job has left a machine or come to one."""
    _settle(run)
    moved = False
    while math.isnan(run.finished_s):
        if run.until_s <= run.now_s:
            market = world.markets[world.leases[run.member].market]
            if run.phase == SAVING:
                whole = math.floor(run.unsaved + run.tolerance)
                run.unsaved = max(run.unsaved - whole, 0.0)
                run.saved = min(run.saved + whole, world.rule.steps)
                run.saved_at = market.place
            _pass_to(run, TRAINING, math.inf, market.steps_per_s)
            run.tolerance = max(run.tolerance, world.rule.clock_s * market.steps_per_s)
            continue
        if run.phase == SAVING:
            break
        done = run.saved + math.floor(run.unsaved + run.tolerance) >= world.rule.steps
        target = NONE if done else _target(world.leases, world.opened, run)
        if target == run.member and not done:
            break
        if run.phase == TRAINING:
            if run.unsaved >= 1 - run.tolerance:
                _save(world, run)
                continue
            _lose(run)
        _move_to(world, run, target)
        moved = True
        if done:
            run.finished_s = run.now_s
    return moved


@inner
def lose_machine(run: Any) -> None:
    """The machine is gone, and what was not saved on it."""
    _settle(run)
    _lose(run)
    run.member = NONE
    _pass_to(run, IDLE, math.inf, 0.0)


@inner
def training_due_s(rule: Any, leases: Any, run: Any) -> float:
    """When training next changes of itself."""
    due_s = run.until_s
    if run.phase == TRAINING:
        left = rule.steps - (run.saved + run.unsaved)
        if left > run.tolerance and run.steps_per_s > 0.0:
            due_s = run.since_s + left / run.steps_per_s
    if run.member != NONE and leases[run.member].leave_at_s > run.since_s:
        due_s = min(due_s, leases[run.member].leave_at_s)
    return max(due_s, run.now_s)
