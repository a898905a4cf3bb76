"""The decisions of `DeepSpotCloud` in compiled code: which market to move to, and whether a move saves money."""

from __future__ import annotations

import math
from typing import Any

from ebbtide.base.compiled_records import MAX_TIMERS, MOVE_WORTHWHILE, NO_MARKET, NONE, TRAINING
from ebbtide.base.compiling import inner
from ebbtide.base.utc import HOUR_S
from ebbtide_papers.deepspotcloud.compiled.market import first_after, price_at


@inner
def wake_at(timers: Any, run: Any, time_s: float) -> None:
    """Set a timer; a full table of timers ends the replay with an overflow."""
    if run.timers == MAX_TIMERS:
        run.overflow = True
        return
    timers[run.timers] = max(time_s, run.now_s)
    run.timers += 1


@inner
def recommended(cheapest: Any, time_s: float) -> int:
    """The market with the least cost of a step at a time, as `recommend` has it; `NO_MARKET`: there is none."""
    after = first_after(cheapest["time_s"], 0, len(cheapest), time_s)
    return cheapest[after - 1].market if after else NO_MARKET


@inner
def list_price(points: Any, market: Any, time_s: float) -> float:
    """The market's list price, USD per hour; where none is known, twice the price at that time."""
    return 2.0 * price_at(points, market, time_s) if math.isnan(market.listed) else market.listed


@inner
def set_look(rule: Any, market: Any, timers: Any, run: Any, lease: Any) -> None:
    """Set the next look for a better market: a lead before the next charge, or `look_s` from now."""
    period_s = rule.period_us / 1e6
    if period_s < rule.look_s:
        lease.look_s = run.now_s + rule.look_s
    else:
        lead_s = rule.lead_s + market.save_s + rule.margin_s
        begun = math.floor((run.now_s + lead_s - lease.started_s + 1e-6) / period_s)
        lease.look_s = lease.started_s + (begun + 1) * period_s - lead_s
    wake_at(timers, run, lease.look_s)


@inner
def pays(world: Any, run: Any, lease: Any, there: int) -> bool:
    """Return whether a move from a lease to market `there` lowers the cost, as `MovePlan` finds it."""
    old, new = world.markets[lease.market], world.markets[there]
    price_here, price_there = price_at(world.points, old, run.now_s), price_at(world.points, new, run.now_s)
    cost_here = price_here / HOUR_S / old.steps_per_s
    cost_there = price_there / HOUR_S / new.steps_per_s
    if world.rule.when != MOVE_WORTHWHILE:
        return cost_there < cost_here
    done = run.saved + run.unsaved
    if run.phase == TRAINING:
        done += (run.now_s - run.since_s) * run.steps_per_s
    rule, period_s = world.rule, world.rule.period_us / 1e6
    here, there_usd = price_here / HOUR_S, price_there / HOUR_S
    faster = new.steps_per_s / old.steps_per_s
    work_s = (rule.steps - min(done, rule.steps)) / old.steps_per_s
    paid_until_s = lease.started_s + _whole(run.now_s - lease.started_s, period_s)
    left_s = run.now_s + work_s + old.save_s - paid_until_s
    if left_s <= 0.0:
        return False
    restore_s = new.restore_s + world.pairs[0, old.place, new.place]
    setting_up_s = rule.charged_boot_s + restore_s + (old.save_s if rule.overlap else 0.0)
    if left_s <= rule.stay_s:
        stay_usd = here * _whole(left_s, period_s)
        working_s = max(work_s - rule.lead_s, 0.0) / faster + new.save_s
        move_usd = there_usd * _whole(setting_up_s + working_s, period_s)
    else:
        lost_s = setting_up_s + max(paid_until_s - run.now_s - rule.lead_s, 0.0)
        moving_s = max(rule.moves_per_day * left_s / 86400.0, 1.0) * lost_s
        room = min((_whole(left_s, period_s) - left_s) / moving_s, 1.0)
        stay_usd = here * rule.stay_s
        move_usd = there_usd * (rule.stay_s / faster + (1.0 - room) * lost_s)
    freed_s = run.now_s + rule.lead_s + old.save_s
    move_usd += here * max(lease.started_s + _whole(freed_s - lease.started_s, period_s) - paid_until_s, 0.0)
    move_usd += world.pairs[1, old.place, new.place]
    if rule.dataset_cloud != NONE and not run.clouds >> new.cloud & 1:
        move_usd += new.dataset_usd
    return move_usd < stay_usd


@inner
def _whole(seconds: float, period_s: float) -> float:
    """Seconds rounded up to whole charge periods."""
    return math.ceil(seconds / period_s - 1e-9) * period_s
