"""Deadlines where capacity decides: `deadline` against Uniform Progress, greedy and the optimum, as rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.records import UnusableData, ZoneRecord, ZoneRecords
from ebbtide_papers.deadlines.advised_zones_study import MOST_PAIRS, sets_together, study_advised_zones
from ebbtide_papers.deadlines.advisor_rows import (
    advised_zones_claims,
    advised_zones_rows,
    advisor_claims,
    advisor_rows,
    advisor_table,
)
from ebbtide_papers.deadlines.advisor_study import ADVISED, AdvisorCell, study_advisor
from ebbtide_papers.deadlines.forecast_rows import (
    forecast_claims,
    forecast_rows,
    forecast_table,
    score_forecasts,
)
from ebbtide_papers.deadlines.inputs import DeadlineInputs
from ebbtide_papers.deadlines.study import (
    DEADLINES_H,
    RESTARTS_H,
    ZoneResult,
    draw_ticks,
    left_out_model,
    own_past_model,
    study_zone,
)
from ebbtide_papers.deadlines.zone_rows import CHEAPER, CLAIMED, multi_claims, multi_rows, multi_table
from ebbtide_papers.deadlines.zones import ZonesStudy, study_zones
from ebbtide_papers.reproduction import (
    ClaimRow,
    PaperClaim,
    Reproduction,
    at_least,
    at_most,
    half_to_twice_the_effect,
    ratio,
)

OnProgress = Callable[[str, float, float], None]

_LATE_H = 1e-9

_CLOSES = at_least(0.3, "our target")

_NO_GAP = "Uniform Progress costs no more than the optimum on these records"

_TIMES = tuple(itertools.product(DEADLINES_H, RESTARTS_H))

_OWN_PAST, _LEFT_OUT = "deadline, own past", "deadline, other zones"

_PAST_MODELS = {"own_past": _OWN_PAST, "left_out_same_starts": _LEFT_OUT}

# Size of the checkpoint of a move, by accelerator, as in the published runs; the smaller for any other.
_CHECKPOINT_BYTES = {"v100": 50 * 10**9, "h100": 500 * 10**9}


def reproduce_deadlines(
    given: DeadlineInputs,
    *,
    starts: int = 300,
    seed: int = 0,
    inputs: dict[str, str] | None = None,
    on_progress: OnProgress | None = None,
) -> Reproduction:
    """Every policy in one zone, and in several at once, on all given records.

    A claim that cannot be worked out from the given files is a row without a figure, with the reason.

    Args:
        given: Records of zones and sets of zones.
        starts: Number of random starts in each record.
        seed: Seed of the starts.
        inputs: SHA-256 of the input files, by name.
        on_progress: Called with the current activity, the number of records done, and their total.

    Raises:
        InputError: No claim can be computed.
    """
    rows: list[ClaimRow] = []
    tables: dict[str, Any] = {}
    sets = [*given.probed, *(any_of for any_of, _ in given.rounds)]
    gangs = [all_of for _, all_of in given.rounds]
    # Each pair takes seconds to solve, however few its starts.
    together = sets_together(given.records, min(starts, MOST_PAIRS))
    done, total = 0, len(given.records) + len(together) + len(sets) + len(gangs)

    def report(name: str) -> None:
        nonlocal done
        if on_progress:
            on_progress(f"record of {name}", done, total)
        done += 1

    if given.records:
        cells, past, advised = study_records(given.records, starts, seed, report)
        rows += [*_rows(cells), *_past_rows(past), *advisor_rows(advised, cells)]
        tables["zones"] = [{"zone": cell.zone, **_summary([cell])} for cell in cells]
        tables["cells"] = [_summary(_cell(cells, *times)) for times in _TIMES]
        tables["overall"] = _summary(cells)
        several = []
        for chosen in together:
            report(", ".join(record.name for record in chosen))
            several.append(study_advised_zones(given.records, chosen, starts, seed))
        rows += advised_zones_rows(several) if several else []
        tables["advisor"] = advisor_table(advised, several)
    left_out: list[UnusableData] = []
    studies = _studied(sets, starts, seed, left_out, report)
    whole = _studied(gangs, starts, seed, left_out, report, gang=True)
    if studies:
        rows += multi_rows(studies, whole)
        tables["several_zones"] = multi_table([*studies, *whole])
    # Capacity is the same however prices are read.
    scores = [score_forecasts(records) for records in (*sets, *gangs) if not records.reading]
    if scores:
        rows += forecast_rows(scores)
        tables["forecasts"] = forecast_table(scores)
    if not rows:
        reasons = dict.fromkeys(one.why for one in (*given.left_out, *left_out))
        raise InputError("; ".join(reasons) or "no record is long enough")
    rows = _with_missing(rows, [*given.left_out, *left_out])
    if left_out:
        tables["left_out"] = [one.why for one in left_out]
    return Reproduction("deadlines", inputs or {}, seed, tuple(rows), tables)


def _studied(
    sets: Sequence[ZoneRecords],
    starts: int,
    seed: int,
    left_out: list[UnusableData],
    report: Callable[[str], None],
    *,
    gang: bool = False,
) -> list[ZonesStudy]:
    """Studies of the sets that are long enough, and the reasons for the others."""
    found = []
    for records in sets:
        report(records.name)
        size_bytes = _CHECKPOINT_BYTES.get(records.accelerator, min(_CHECKPOINT_BYTES.values()))
        try:
            found.append(study_zones(records, size_bytes, starts, seed, elastic=gang))
        except InputError as error:
            left_out.append(UnusableData(records.accelerator, str(error), gang))
    return found


def _with_missing(rows: Sequence[ClaimRow], left_out: Sequence[UnusableData]) -> list[ClaimRow]:
    """The rows, with one without a figure for each claim that no record answers, and the reason."""
    known = {row.id for row in rows}
    reasons: dict[str, str] = {}
    for one in left_out:
        if one.accelerator is None or one.accelerator in CLAIMED:
            claims = zone_claims() | advisor_claims()
            if one.accelerator is not None:
                claims = multi_claims(one.accelerator, gang=one.gang)
            reasons |= {row_id: one.why for row_id in claims if row_id not in reasons}
    found = list(rows)
    for claims, otherwise in _every_claim():
        for row_id, claim in claims.items():
            if row_id not in known:
                why = reasons.get(row_id, otherwise)
                found.append(claim.row(row_id, None, missing=why))
                known.add(row_id)
    return found


def _every_claim() -> list[tuple[dict[str, PaperClaim], str]]:
    """All claims, by id, and what is lacking where no given file answers them."""
    single = zone_claims() | advisor_claims()
    found = [(single, "no file given has records of single zones (zone, start, gap_seconds, data)")]
    found.append(
        (advised_zones_claims(), "no file given has two zones that were recorded together, and one to learn from")
    )
    found.append((forecast_claims(), "no file given has several zones that were probed together"))
    for accelerator in CLAIMED:
        what = f"no file given has several zones of {accelerator}, with capacity and prices"
        found.append((multi_claims(accelerator, gang=False), what))
    what = "no file given has rounds of capacity of several h100 (launched of requested), with prices"
    return [*found, *((multi_claims(kind, gang=True), what) for kind in CLAIMED if kind.startswith("h100"))]


def zone_claims() -> dict[str, PaperClaim]:
    """The claims about single zones, by id."""
    by_cell = {
        _cell_id(deadline_h, restart_h): PaperClaim(
            f"cost of deadline / Uniform Progress, {deadline_h:g} h, restart {restart_h:g} h",
            None,
            "ratio",
            CHEAPER,
        )
        for deadline_h, restart_h in _TIMES
    }
    return {
        "misses": PaperClaim("deadlines missed, all policies", 0.0, "runs", at_most(0.0)),
        **by_cell,
        "gap_closed_overall": PaperClaim(
            "what deadline closes of the gap from Uniform Progress to the optimum",
            0.05,
            "fraction",
            _CLOSES,
            "0.05: the best published rule that never misses",
        ),
        "greedy_gap_vs_uniform_progress": PaperClaim(
            "cost of greedy / Uniform Progress",
            119.03 / 101.68,
            "ratio",
            half_to_twice_the_effect(119.03 / 101.68, none=1.0),
            "the figure beside it is of other starts in six of the zones",
        ),
        "saving_vs_on_demand_overall": PaperClaim(
            "saved against on-demand", None, "fraction", at_least(0.25), "two thirds are saved if all is on spot"
        ),
        **{
            f"gap_closed_{name}": PaperClaim(
                f"the same on later halves, model {name.replace('_', ' ')}", None, "fraction", _CLOSES
            )
            for name in _PAST_MODELS
        },
    }


def _cell_id(deadline_h: float, restart_h: float) -> str:
    return f"cost_vs_uniform_progress_{deadline_h:g}h_{restart_h:g}"


def study_records(
    records: Sequence[ZoneRecord], starts: int, seed: int, report: Callable[[str], None] = lambda _name: None
) -> tuple[list[ZoneResult], list[ZoneResult], list[AdvisorCell]]:
    """Single zones with a model of the other zones, later halves also with a model of the zone's past, and the
    advisor from the first of the same starts."""
    cells: list[ZoneResult] = []
    past: list[ZoneResult] = []
    advised: list[AdvisorCell] = []
    for place, record in enumerate(records):
        report(record.name)
        others = left_out_model(records, place)
        ticks = draw_ticks(record, starts, seed)
        cells += study_zone(record, {"deadline": others}, ticks)
        advised += study_advisor(records, place, ticks[:ADVISED])
        half = len(record.available) // 2
        if record.hours / 2.0 > max(DEADLINES_H) + 1.0:
            models = {_OWN_PAST: own_past_model(records, place, half), _LEFT_OUT: others}
            past += study_zone(record, models, draw_ticks(record, starts, seed, after_tick=half))
    return cells, past, advised


def _rows(cells: Sequence[ZoneResult]) -> list[ClaimRow]:
    policies = [name for name in cells[0].usd if name != "optimum"]
    figures = {
        "misses": float(sum(int((cell.late_h[name] > _LATE_H).sum()) for cell in cells for name in policies))
    }
    for deadline_h, restart_h in _TIMES:
        here = _cell(cells, deadline_h, restart_h)
        figures[_cell_id(deadline_h, restart_h)] = ratio(_mean(here, "deadline"), _mean(here, "uniform-progress"))
    figures |= {
        "gap_closed_overall": _closed(cells, "deadline"),
        "greedy_gap_vs_uniform_progress": ratio(_mean(cells, "greedy"), _mean(cells, "uniform-progress")),
        "saving_vs_on_demand_overall": 1.0 - ratio(_mean(cells, "deadline"), _mean(cells, "on-demand")),
    }
    claims = zone_claims()
    return [claims[name].row(name, figure, missing=_NO_GAP) for name, figure in figures.items()]


def _past_rows(past: Sequence[ZoneResult]) -> list[ClaimRow]:
    """Rows that compare both models from the same starts, for records with a long enough past."""
    claims, least_h = zone_claims(), 2 * (max(DEADLINES_H) + 1.0)
    why = _NO_GAP if past else f"no record is longer than {least_h:g} h, half of which is the past"
    return [
        claims[f"gap_closed_{name}"].row(
            f"gap_closed_{name}", _closed(past, policy) if past else None, missing=why
        )
        for name, policy in _PAST_MODELS.items()
    ]


def _mean(cells: Sequence[ZoneResult], name: str) -> float:
    return float(np.mean([cell.usd[name].mean() for cell in cells]))


def _cell(cells: Sequence[ZoneResult], deadline_h: float, restart_h: float) -> list[ZoneResult]:
    """The cells of all zones with this deadline and restart time."""
    wanted = (deadline_h, restart_h)
    return [cell for cell in cells if (cell.problem.deadline_h, cell.problem.restart_h) == wanted]


def _closed(cells: Sequence[ZoneResult], policy: str) -> float:
    """Share of the gap from Uniform Progress to the optimum that a policy closes; NaN without a gap."""
    uniform, ours, best = (_mean(cells, name) for name in ("uniform-progress", policy, "optimum"))
    return ratio(uniform - ours, max(uniform - best, 0.0))


def _summary(cells: Sequence[ZoneResult]) -> dict[str, Any]:
    """Some cells together: mean, 95th percentile and misses of each policy; and the gap that deadline closes."""
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
