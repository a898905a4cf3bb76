"""Simulated training of one job in compiled code, as `SimulatedTraining`, for one machine at a time."""

from __future__ import annotations

import math
from typing import Any

from ebbtide.base.compiled_records import IDLE, NONE, RESTORING, RUNNING, SAVING, TRAINING
from ebbtide.base.compiling import inner


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
    """Time of the next event in training itself, seconds since 1970."""
    due_s = run.until_s
    if run.phase == TRAINING:
        left = rule.steps - (run.saved + run.unsaved)
        if left > run.tolerance and run.steps_per_s > 0.0:
            due_s = run.since_s + left / run.steps_per_s
    if run.member != NONE and leases[run.member].leave_at_s > run.since_s:
        due_s = min(due_s, leases[run.member].leave_at_s)
    return max(due_s, run.now_s)
