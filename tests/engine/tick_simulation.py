"""A second, independent simulation of policy `reactive` on one job: second by second, with no event queue.

Written from docs/design.md alone, to hold the engine to. Prices change and everything is due at whole seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.markets import START_S

from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries


@dataclass
class Machine:
    market: Market
    asked: int
    started: int | None = None
    noticed: int | None = None
    ended: int | None = None
    revoked: bool = False
    failed: bool = False


@dataclass
class Result:
    finished_at: int | None
    steps_lost: float
    checkpoints: int
    machines: list[Machine]


def simulate(
    prices: Mapping[Market, PriceSeries],
    steps_per_s: Mapping[Market, float],
    max_price: Mapping[Market, float],
    steps: int,
    *,
    save_s: int,
    restore_s: int,
    request_s: int,
    boot_s: int,
    notice_s: int,
    retry_s: int,
    end: int,
) -> Result:
    """Run second by second until the job is done, or `end`."""
    machines: list[Machine] = []
    saved = unsaved = lost = 0.0
    checkpoints = 0
    on: Machine | None = None
    phase, until = "idle", 0
    leave_after_save = False
    look_again: list[int] = []

    def price(market: Market, t: int) -> float:
        return prices[market].at(START_S + t)

    def steady() -> list[Machine]:
        return [m for m in machines if not m.failed and m.ended is None and m.noticed is None]

    def booted(m: Machine, t: int) -> bool:
        return m.started is not None and m.ended is None and t >= m.started + boot_s

    def decide(t: int) -> None:
        if steady():
            return
        affordable = [m for m in prices if price(m, t) <= max_price[m]]
        if affordable:
            best = min(affordable, key=lambda m: (price(m, t) / steps_per_s[m], m))
            machines.append(Machine(best, t))
        else:
            look_again.append(t + retry_s)

    decide(0)
    for t in range(1, end + 1):
        if phase == "training" and on is not None:
            unsaved += steps_per_s[on.market]
        # Training's own affairs first.
        if phase == "restoring" and until == t:
            phase = "training"
        if phase == "saving" and until == t:
            whole = int(unsaved + 1e-6)
            saved, unsaved, checkpoints = saved + whole, unsaved - whole, checkpoints + 1
            phase = "training"
            if saved >= steps:
                for m in machines:
                    if m.ended is None and not m.failed:
                        m.ended = t
                return Result(t, lost, checkpoints, machines)
        if phase == "training" and saved + unsaved >= steps - 1e-6:
            unsaved = steps - saved
            phase, until = "saving", t + save_s
        # Then the market's.
        asked = False
        for m in machines:
            if m.failed or m.ended is not None:
                continue
            if m.started is None and t == m.asked + request_s:
                if price(m.market, t) > max_price[m.market]:
                    m.failed, asked = True, True
                else:
                    m.started = t
            # A policy is asked at every turn of a lease, booting among them.
            asked |= m.started is not None and t == m.started + boot_s
            if m.noticed is not None and t == m.noticed + notice_s:
                m.ended, m.revoked, asked = t, True, True
                if on is m:
                    lost, unsaved, on, phase = lost + unsaved, 0.0, None, "idle"
            elif m.started is not None and m.noticed is None and price(m.market, t) > max_price[m.market]:
                m.noticed, asked = t, True
        if asked or t in look_again:
            decide(t)
        # Where should training be now?
        # At the very moment of its boot a machine is taken for good, even if notice comes then, too.
        ready = [
            m
            for m in machines
            if booted(m, t) and (m.noticed is None or (m.noticed == t and m.started == t - boot_s))
        ]
        leave_after_save = False
        if on is not None and on.noticed is not None:
            can_save = notice_s >= save_s
            leave_after_save = bool(ready) or (can_save and t >= on.noticed + notice_s - save_s)
        if phase == "training" and on is not None and leave_after_save and saved + unsaved < steps:
            if unsaved >= 1 - 1e-6:
                phase, until = "saving", t + save_s
            else:
                lost, unsaved, on, phase = lost + (unsaved if unsaved > 1e-6 else 0.0), 0.0, None, "idle"
        elif phase == "restoring" and leave_after_save:
            on, phase = None, "idle"
        if phase == "idle" and on is None and ready:
            on, phase, until = ready[0], "restoring", t + restore_s
    return Result(None, lost, checkpoints, machines)
