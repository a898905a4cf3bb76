"""Deadlines where capacity decides: `deadline` against Uniform Progress, greedy and the optimum, as rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ebbtide.errors import InputError
from ebbtide.experiments.deadline_inputs import DeadlineInputs
from ebbtide.experiments.deadline_study import (
    DEADLINES_H,
    RESTARTS_H,
    Cell,
    ZoneRecord,
    draw_ticks,
    left_out_model,
    own_past_model,
    study_zone,
)
from ebbtide.experiments.reproduction import Reproduction, Row
from ebbtide.experiments.zone_records import ZoneRecords
from ebbtide.experiments.zone_rows import multi_rows, multi_table
from ebbtide.experiments.zones_study import ZonesStudy, study_zones

_LATE_H = 1e-9

_TIMES = tuple(itertools.product(DEADLINES_H, RESTARTS_H))

_OWN_PAST, _LEFT_OUT = "deadline, own past", "deadline, other zones"

# What a move takes along, by accelerator, as in the published runs; of any other as of the smaller.
_CHECKPOINT_BYTES = {"v100": 50 * 10**9, "h100": 500 * 10**9}


def reproduce_deadlines(
    given: DeadlineInputs, *, starts: int = 300, seed: int = 0, inputs: dict[str, str] | None = None
) -> Reproduction:
    """Every policy in one zone, and in several at once, of whatever is recorded.

    Args:
        given: Records.
        starts: In each record, drawn at random.
        seed: Of them.
        inputs: Digests of the files.
    """
    rows: list[Row] = []
    tables: dict[str, Any] = {}
    if given.records:
        cells, past = study_records(given.records, starts, seed)
        rows += [*_rows(cells), *_past_rows(past)]
        tables["zones"] = [{"zone": cell.zone, **_told([cell])} for cell in cells]
        tables["cells"] = [_told(_cell(cells, *times)) for times in _TIMES]
        tables["overall"] = _told(cells)
    sets = [*given.probed, *(any_of for any_of, _ in given.rounds)]
    gangs = [all_of for _, all_of in given.rounds]
    left_out: list[str] = []
    studies, whole = (_studied(one, starts, seed, left_out) for one in (sets, gangs))
    if studies:
        rows += multi_rows(studies, whole)
        tables["several_zones"] = multi_table([*studies, *whole])
    if not rows:
        raise InputError("; ".join(left_out) or "no record is long enough")
    if left_out:
        tables["left_out"] = left_out
    return Reproduction("deadlines", inputs or {}, seed, tuple(rows), tables)


def _studied(sets: Sequence[ZoneRecords], starts: int, seed: int, left_out: list[str]) -> list[ZonesStudy]:
    """Those sets that are long enough; of the others the reason."""
    found = []
    for records in sets:
        size_bytes = _CHECKPOINT_BYTES.get(records.accelerator, min(_CHECKPOINT_BYTES.values()))
        try:
            found.append(study_zones(records, size_bytes, starts, seed))
        except InputError as error:
            left_out.append(str(error))
    return found


def study_records(records: Sequence[ZoneRecord], starts: int, seed: int) -> tuple[list[Cell], list[Cell]]:
    """Single zones: with a model of the other zones; and on later halves also with one of the own past."""
    cells: list[Cell] = []
    past: list[Cell] = []
    for place, record in enumerate(records):
        others = left_out_model(records, place)
        cells += study_zone(record, {"deadline": others}, draw_ticks(record, starts, seed))
        half = len(record.available) // 2
        if record.hours / 2.0 > max(DEADLINES_H) + 1.0:
            models = {_OWN_PAST: own_past_model(records, place, half), _LEFT_OUT: others}
            past += study_zone(record, models, draw_ticks(record, starts, seed, after_tick=half))
    return cells, past


def _rows(cells: Sequence[Cell]) -> list[Row]:
    policies = [name for name in cells[0].usd if name != "optimum"]
    late = sum(int((cell.late_h[name] > _LATE_H).sum()) for cell in cells for name in policies)
    rows = [Row("misses", "deadlines missed, all policies", 0.0, float(late), "runs", late == 0, "none")]
    for deadline_h, restart_h in _TIMES:
        here = _cell(cells, deadline_h, restart_h)
        ratio = _mean(here, "deadline") / _mean(here, "uniform-progress")
        rows.append(
            Row(f"cost_vs_uniform_progress_{deadline_h:g}h_{restart_h:g}",
                f"cost of deadline / Uniform Progress, {deadline_h:g} h, restart {restart_h:g} h", None, ratio,
                "ratio", ratio < 1.0, "below 1")
        )  # fmt: skip
    uniform, ours = _mean(cells, "uniform-progress"), _mean(cells, "deadline")
    greedy, dear = _mean(cells, "greedy"), _mean(cells, "on-demand")
    closed, advantage = _closed(cells, "deadline"), greedy / uniform
    rows += [
        Row("gap_closed_overall", "what deadline closes of the gap from Uniform Progress to the optimum", 0.05,
            closed, "fraction", closed >= 0.3, "at least 0.3; 0.05: the best published rule that never misses"),
        Row("greedy_gap_vs_uniform_progress", "cost of greedy / Uniform Progress", 119.03 / 101.68, advantage,
            "ratio", advantage > 1.0, "above 1; the figure beside it is of other starts in six of the zones"),
        Row("saving_vs_on_demand_overall", "saved against on-demand", None, 1.0 - ours / dear, "fraction",
            ours < dear, "above 0"),
    ]  # fmt: skip
    return rows


def _past_rows(past: Sequence[Cell]) -> list[Row]:
    """The same starts with both models: those of records long enough to have a past."""
    if not past:
        return []
    found = []
    for name, policy in (("own_past", _OWN_PAST), ("left_out_same_starts", _LEFT_OUT)):
        closed = _closed(past, policy)
        found.append(
            Row(f"gap_closed_{name}", f"the same on later halves, model {name.replace('_', ' ')}", None, closed,
                "fraction", closed >= 0.3, "at least 0.3")
        )  # fmt: skip
    return found


def _mean(cells: Sequence[Cell], name: str) -> float:
    return float(np.mean([cell.usd[name].mean() for cell in cells]))


def _cell(cells: Sequence[Cell], deadline_h: float, restart_h: float) -> list[Cell]:
    """Of all zones."""
    wanted = (deadline_h, restart_h)
    return [cell for cell in cells if (cell.problem.deadline_h, cell.problem.restart_h) == wanted]


def _closed(cells: Sequence[Cell], policy: str) -> float:
    """What a policy closes of the gap from Uniform Progress to the optimum; 0 where there is none."""
    uniform, ours, best = (_mean(cells, name) for name in ("uniform-progress", policy, "optimum"))
    return (uniform - ours) / (uniform - best) if uniform > best else 0.0


def _told(cells: Sequence[Cell]) -> dict[str, Any]:
    """Some cells together: of each policy mean, 95th percentile and misses; and what deadline closes."""
    deadlines, restarts = ({getattr(cell.problem, name) for cell in cells} for name in ("deadline_h", "restart_h"))
    return {
        "deadlines_h": sorted(deadlines),
        "restarts_h": sorted(restarts),
        "gap_closed": _closed(cells, "deadline"),
        "policies": {
            name: {
                "mean_usd": _mean(cells, name),
                "p95_usd": float(np.quantile(np.concatenate([cell.usd[name] for cell in cells]), 0.95)),
                "misses": sum(int((cell.late_h[name] > _LATE_H).sum()) for cell in cells),
            }
            for name in cells[0].usd
        },
    }
