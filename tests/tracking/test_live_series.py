"""Costs, refunds and moves of a live run over time."""

from __future__ import annotations

import math
from typing import Any

from tests.runs.sweeps import START_S, A

from ebbtide.engine.snapshot import lease_values
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.tracking.live_series import Point, moves_table, run_points, times_of, trial_points


def lease(number: int, begins_h: float, ends_h: float) -> dict[str, Any]:
    state, started_s = LeaseState.REVOKED, START_S + begins_h * 3600
    ended_s = START_S + ends_h * 3600
    return lease_values(
        Lease(number, A, math.inf, False, started_s, state, started_s, started_s, math.inf, ended_s)
    )


def bill(number: int, begins_h: float, ends_h: float, usd: float, refund_usd: float = 0.0) -> list[Any]:
    half_h = (begins_h + ends_h) / 2
    charges = [{"end_s": START_S + hours * 3600, "usd": usd / 2} for hours in (half_h, ends_h)]
    return [number, {"charges": charges, "refund_usd": refund_usd}]


def on(lease_id: int) -> dict[str, Any]:
    return {"rank": 0, "lease_id": lease_id, "ended": "", "saved": [], "resume": None, "began_s": math.nan}


def stretch(lease_id: int, hours: float, begins: float, done: float, kept: float) -> dict[str, Any]:
    return {
        "lease_id": lease_id,
        "duration_s": hours * 3600,
        "step_from": begins,
        "step_done": done,
        "step_kept": kept,
        "attempt": lease_id + 1,
    }


KEPT: Any = {
    "engine": {
        "started_s": START_S,
        "leases": [lease(0, 0.0, 2.0), lease(1, 2.0, 4.0)],
        "bills": [bill(0, 0.0, 2.0, 1.0, refund_usd=0.4), bill(1, 2.0, 4.0, 2.0)],
    },
    "provider": {
        "trials": [
            {
                "share": 1.0,
                "stretches": [stretch(0, 1.5, 0.0, 20.0, 10.0), stretch(1, 1.0, 10.0, 40.0, 40.0)],
                "members": [],
                "workers": [],
            },
            {
                "share": 1.0,
                "stretches": [stretch(0, 0.5, 0.0, 5.0, 5.0)],
                "members": [on(2)],
                "workers": [],
                "attempt": 2,
                "began_s": START_S + 4 * 3600.0,
            },
        ]
    },
}


def of(points: list[Point], name: str) -> list[tuple[float, float]]:
    return [(point.step / 3600, round(point.value, 9)) for point in points if point.name == name]


def test_machines_that_work_alone_count_from_when_each_began() -> None:
    early, late = on(4) | {"began_s": START_S}, on(5) | {"began_s": START_S + 3600.0}
    array: Any = {"stretches": [], "members": [early, late], "workers": [], "began_s": START_S}
    assert times_of(array, START_S + 2 * 3600.0) == {4: 7200.0, 5: 3600.0}
    assert times_of(array) == {}


def test_the_run_s_cost_rises_with_charges_and_falls_with_refunds() -> None:
    points = run_points(KEPT, None)
    assert of(points, "cost_usd") == [(0, 0.0), (1, 0.5), (2, 0.6), (3, 1.6), (4, 2.6)]
    assert of(points, "refund_usd") == [(0, 0.0), (2, 0.4)]
    figures: Any = {"time_s": START_S + 5 * 3600, "spent_usd": 2.9, "open_usd": [[2, 0.3]]}
    assert of(run_points(KEPT, figures), "cost_usd")[-1][1] == 2.6  # a lease that the snapshot does not have yet
    assert run_points({**KEPT, "engine": {**KEPT["engine"], "started_s": None}}, None) == []


def test_a_trial_has_its_share_of_each_machine() -> None:
    figures: Any = {"time_s": START_S + 5 * 3600, "spent_usd": 2.9, "open_usd": [[2, 0.3]]}
    first, second = (trial_points(KEPT, figures, number) for number in (0, 1))
    assert of(first, "ebbtide.cost_usd") == [(0, 0.0), (1, 0.375), (2, 0.45), (3, 1.45), (4, 2.45), (5, 2.45)]
    assert of(first, "ebbtide.refund_usd") == [(0, 0.0), (2, 0.3)]
    # The second trains alone on a machine that is open still.
    assert of(second, "ebbtide.cost_usd") == [(0, 0.0), (1, 0.125), (2, 0.15), (5, 0.45)]
    assert of(second, "ebbtide.moves") == [(4, 1)]
    assert of(first, "ebbtide.moves") == []


def test_the_table_of_moves_says_where_it_trained_and_what_was_kept() -> None:
    header, first, second = moves_table(KEPT, 0).splitlines()
    assert header.split(",")[-3:] == ["from_step", "to_step", "kept_to_step"]
    assert first.startswith(f"0,{A},False,")
    assert "revoked" in first
    assert first.endswith("0.0,20.0,10.0")
    assert second.endswith("10.0,40.0,40.0")
    assert moves_table({**KEPT, "provider": {"trials": [{"stretches": []}]}}, 0) == ""
