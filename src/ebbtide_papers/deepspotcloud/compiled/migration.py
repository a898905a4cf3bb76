"""`DeepSpotCloud` on the engine with one job, one machine at a time, in compiled code.

For tables of thousands of replays. It goes through the same moments as the engine with `ReplayedMarket` and
`SimulatedTraining`, in the same order; `migration_replays` checks that a scenario is one that it covers, and tests
hold every figure against the engine's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ebbtide.base.compiled_records import (
    BOOT,
    ENDED,
    IDLE,
    LAUNCH,
    MAX_LEASES,
    MAX_OPEN,
    MOVE_CHEAPER,
    MOVE_NEVER,
    MOVE_PERIOD_END,
    MOVE_WORTHWHILE,
    NO_MARKET,
    NONE,
    NOTICE,
    NOTICED,
    REQUESTED,
    REVOKE,
    REVOKED,
    RUNNING,
    STARTING,
)
from ebbtide.base.compiling import compiled, inner
from ebbtide_papers.deepspotcloud.compiled.choice import list_price, pays, recommended, set_look, wake_at
from ebbtide_papers.deepspotcloud.compiled.market import bill_usd, first_above, first_after, price_at
from ebbtide_papers.deepspotcloud.compiled.training import advance, lose_machine, training_due_s

# The market.


@inner
def _enter(lease: Any, due: int, time_s: float, now_s: float) -> None:
    lease.due, lease.due_s, lease.entered_s = due, max(time_s, now_s), now_s


@inner
def _request(world: Any, run: Any, market: int, max_price: float) -> None:
    if run.leases == MAX_LEASES or run.open == MAX_OPEN:
        run.overflow = True
        return
    number = run.leases
    lease = world.leases[number]
    lease.market, lease.state, lease.max_price, lease.requested_s = market, REQUESTED, max_price, run.now_s
    lease.started_s, lease.running_s, lease.revoke_at_s = math.nan, math.nan, math.inf
    lease.leave_at_s, lease.look_s, lease.notice_at_s = math.inf, math.inf, math.inf
    lease.assigned, lease.for_job, lease.draining, lease.left = False, True, False, False
    given_s = run.now_s + _delay_s(world.delays, run.now_s, number, 0)
    if world.rule.round_s > 0.0:
        given_s = math.ceil(given_s / world.rule.round_s) * world.rule.round_s
    _enter(lease, LAUNCH, given_s, run.now_s)
    world.opened[run.open] = number
    run.leases, run.open = number + 1, run.open + 1


@inner
def _close(opened: Any, run: Any, number: int) -> None:
    kept = 0
    for n in range(run.open):
        if opened[n] != number:
            opened[kept] = opened[n]
            kept += 1
    run.open = kept


@inner
def _launch(world: Any, run: Any, number: int) -> bool:
    """Launch a requested machine; returns whether the request succeeded."""
    lease = world.leases[number]
    price = price_at(world.points, world.markets[lease.market], run.now_s)
    if math.isnan(price) or price > lease.max_price:
        lease.state = ENDED
        _close(world.opened, run, number)
        return False
    lease.state, lease.started_s = STARTING, run.now_s
    run.charged += 1
    notice_s = run.now_s + world.rule.max_lifetime_s - world.rule.notice_s
    if world.rule.price_revokes:
        notice_s = min(
            notice_s, first_above(world.points, world.markets[lease.market], run.now_s, lease.max_price)
        )
    lease.notice_at_s, lease.noticed_from_s = max(notice_s, run.now_s), run.now_s
    delay_s = _delay_s(world.delays, lease.requested_s, number, 1)
    boot_s = run.now_s + delay_s
    if lease.notice_at_s < boot_s:
        # The notice comes first; the boot is entered again after it.
        lease.due, lease.due_s, lease.entered_s = NOTICE, lease.notice_at_s, run.now_s
    else:
        _enter(lease, BOOT, boot_s, run.now_s)
    return True


@inner
def _delay_s(delays: Any, requested_s: float, number: int, part: int) -> float:
    return delays[(np.int64(requested_s) + number) % len(delays), part]


# The engine's books.


@inner
def _end_left(world: Any, run: Any) -> bool:
    """Charge for machines that were taken, or given back and are not in use any more; whether there were any."""
    ended = False
    n = 0
    while n < run.open:
        number = world.opened[n]
        lease = world.leases[number]
        revoked = lease.state == REVOKED
        if not revoked and not (lease.draining and run.member != number):
            n += 1
            continue
        ended, lease.state, lease.assigned, lease.for_job = True, ENDED, False, False
        _close(world.opened, run, number)
        if run.member == number:
            lose_machine(run)
        if not math.isnan(lease.started_s):
            market = world.markets[lease.market]
            run.cost_usd += bill_usd(world.points, market, world.rule, lease.started_s, run.now_s, revoked)
            run.revoked += revoked
    return ended


# The policy.


@inner
def _take_over(world: Any, run: Any, number: int) -> None:
    """The job goes over to a machine that has booted; the one that it was on is given back."""
    new = world.leases[number]
    new.assigned = new.for_job
    if not math.isinf(new.revoke_at_s):
        return
    for n in range(run.open):
        other = world.leases[world.opened[n]]
        if other.assigned and world.opened[n] != number:
            other.assigned, other.draining = False, True
        other.for_job = False
    if world.rule.when == MOVE_PERIOD_END or world.rule.when == MOVE_WORTHWHILE:
        set_look(world.rule, world.markets[new.market], world.timers, run, new)


@inner
def _decide(world: Any, run: Any) -> None:
    """`DeepSpotCloud.decide`, but for what a machine's arrival asks for."""
    machines, machine = 0, NONE
    for n in range(run.open):
        lease = world.leases[world.opened[n]]
        if (lease.assigned or lease.for_job) and math.isinf(lease.revoke_at_s) and not lease.left:
            machines, machine = machines + 1, world.opened[n]
    there = recommended(world.cheapest, run.now_s)
    if machines == 0:
        if there == NO_MARKET or run.failed:
            if run.retry_s <= run.now_s:
                run.retry_s = run.now_s + world.rule.retry_s
                wake_at(world.timers, run, run.retry_s)
            return
    else:
        lease = world.leases[machine]
        if machines > 1 or math.isnan(lease.running_s) or world.rule.when == MOVE_NEVER:
            return
        price = price_at(world.points, world.markets[lease.market], run.now_s)
        if world.rule.price_revokes and price > lease.max_price:
            return
        if world.rule.when != MOVE_CHEAPER:
            if not run.now_s >= lease.look_s - 1e-6:
                return
            set_look(world.rule, world.markets[lease.market], world.timers, run, lease)
        if there == NO_MARKET or there == lease.market or not pays(world, run, lease, there):
            return
        if not world.rule.overlap:
            lease.assigned, lease.left, lease.draining = False, True, True
    _request(world, run, there, list_price(world.points, world.markets[there], run.now_s))


# The clock.


@inner
def _next_lease(leases: Any, opened: Any, run: Any) -> int:
    """The lease to which something happens next."""
    found = NONE
    for n in range(run.open):
        lease = leases[opened[n]]
        if lease.due_s < math.inf and (
            found == NONE
            or lease.due_s < leases[found].due_s
            or (lease.due_s == leases[found].due_s and lease.entered_s < leases[found].entered_s)
        ):
            found = opened[n]
    return found


@inner
def _happen(world: Any, run: Any, number: int) -> None:
    """Process the event that is due for a lease."""
    lease = world.leases[number]
    due = lease.due
    run.ask = True
    if due == LAUNCH:
        run.failed = not _launch(world, run, number)
        run.ask = run.failed
    elif due == BOOT:
        lease.running_s = run.now_s
        if lease.state == STARTING:
            lease.state = RUNNING
            _enter(lease, NOTICE, lease.notice_at_s, lease.noticed_from_s)
        else:
            _enter(lease, REVOKE, lease.revoke_at_s, lease.notice_at_s)
        _take_over(world, run, number)
    elif due == NOTICE:
        lease.state = NOTICED
        oldest_s = lease.started_s + world.rule.max_lifetime_s
        lease.revoke_at_s = max(min(run.now_s + world.rule.notice_s, oldest_s), run.now_s)
        save_s = world.markets[lease.market].save_s
        if lease.assigned or run.member == number:
            save_by_s = lease.revoke_at_s - world.rule.save_margin_s - save_s
            can_save = lease.revoke_at_s - save_s >= run.now_s
            lease.leave_at_s = max(save_by_s, run.now_s) if can_save else lease.revoke_at_s
        boot_s = lease.started_s + _delay_s(world.delays, lease.requested_s, number, 1)
        if math.isnan(lease.running_s) and boot_s <= lease.revoke_at_s:
            lease.due, lease.due_s, lease.entered_s = BOOT, boot_s, lease.started_s
        else:
            _enter(lease, REVOKE, lease.revoke_at_s, run.now_s)
    else:
        lease.state = REVOKED


@inner
def _ring(timers: Any, run: Any) -> None:
    """All timers that are due ring together."""
    kept = 0
    for n in range(run.timers):
        if timers[n] > run.now_s:
            timers[kept] = timers[n]
            kept += 1
    run.timers, run.ask = kept, True


@inner
def _begin(world: Any, run: Any, start_s: float) -> None:
    run.now_s, run.phase, run.member, run.until_s = start_s, IDLE, NONE, math.inf
    run.unsaved, run.since_s, run.steps_per_s, run.saved = 0.0, start_s, 0.0, 0.0
    run.saved_at, run.tolerance, run.lost, run.finished_s = NONE, world.rule.tolerance, 0.0, math.nan
    run.leases, run.open, run.timers, run.cost_usd, run.egress_usd = 0, 0, 0, 0.0, 0.0
    run.charged, run.revoked, run.retry_s, run.overflow = 0, 0, -math.inf, False
    run.clouds = 0 if world.rule.dataset_cloud == NONE else 1 << world.rule.dataset_cloud
    run.change = len(world.points)
    if world.rule.when == MOVE_CHEAPER:
        run.change = first_after(world.points["by_time_s"], 0, len(world.points), start_s)
    run.ask, run.failed = True, False


@inner
def _go_on(world: Any, run: Any) -> bool:
    """Go to what happens next, and let it happen; False: the record has ended."""
    timer_s = math.inf
    for n in range(run.timers):
        timer_s = min(timer_s, world.timers[n])
    if timer_s <= run.now_s:
        _ring(world.timers, run)
        return True
    training_s = training_due_s(world.rule, world.leases, run)
    number = _next_lease(world.leases, world.opened, run)
    lease_s = math.inf if number == NONE else world.leases[number].due_s
    change_s = world.points[run.change].by_time_s if run.change < len(world.points) else math.inf
    # Prices of one moment are told before what comes of them.
    is_change = change_s <= lease_s
    market_s = min(change_s, lease_s, world.rule.end_s)
    if min(training_s, market_s) > timer_s:
        run.now_s = max(run.now_s, timer_s)
    elif training_s <= market_s:
        run.now_s = training_s
    elif market_s >= world.rule.end_s:
        return False
    else:
        run.now_s = market_s
        if is_change:
            run.change, run.ask = run.change + 1, True
        else:
            _happen(world, run, number)
    return True


@compiled
def replay(world: Any, run: Any, start_s: float) -> None:
    """Replay one job from one start; the result is left in `run`, whose cost lacks egress."""
    run.start_s = start_s
    _begin(world, run, start_s)
    going = True
    while going and not run.overflow:
        # What has ended may let training go on, and what it leaves may end.
        while _end_left(world, run) or advance(world, run):
            pass
        if not math.isnan(run.finished_s):
            going = run.open > 0
            for n in range(run.open):
                world.leases[world.opened[n]].draining = True
        elif run.ask:
            run.ask = False
            _decide(world, run)
            run.failed = False
        else:
            going = _go_on(world, run)
