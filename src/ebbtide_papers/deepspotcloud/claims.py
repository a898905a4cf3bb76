"""DeepSpotCloud's claims (II-B, V-B), each with the paper's figure and ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ebbtide.policies.deepspotcloud.policy import MoveWhen
from ebbtide_papers.deepspotcloud.price_analysis import Standing, by_type
from ebbtide_papers.deepspotcloud.regions import RegionFound
from ebbtide_papers.deepspotcloud.study import LENGTHS_H, MigrationStudy, Replayed
from ebbtide_papers.reproduction import (
    ClaimRow,
    PaperClaim,
    Reproduction,
    at_least,
    at_most,
    half_the_effect,
    ratio,
)

_BASE = str(MoveWhen.NEVER)

_TOO_SHORT = "the prices cover less than twice this length"
_HALF_TOO_SHORT = "half of the prices covers less than twice this length, or no job of it ended"
_NONE_ENDED = "from no start did the job end under every rule"


# Fig. 6(a) and V-B: cost of a week's job over interrupt's, and running time over interrupt's.
_HOURLY_COST, _HOURLY_TIME, _BEST_PRICE_COST = 0.87, 1.01, 5.0

# For lengths of which the paper gives no figure: hourly saves so much, best-price costs so much more.
_SAVES, _COSTS_MORE = at_most(0.99, "at least 1 % saved"), at_least(1.1, "at least 10 % more")

# Our rule may cost so much more than the best of the paper's three.
_NEAR_BEST = 1.005

_CALM_ZONES = "zones here stay below the list price for longer than the paper's"


def reproduce_deepspotcloud(
    found: MigrationStudy | None,
    wider: MigrationStudy | None,
    analysis: Sequence[Standing],
    regions: Mapping[str, Mapping[str, RegionFound]],
    *,
    inputs: dict[str, str],
    seed: int,
    unseen: float = math.nan,
    why_none: str = "",
) -> Reproduction:
    """The claims of Fig. 6 and II-A.

    Args:
        found: Study on the given prices; None: there is nowhere to move.
        wider: Study with additional generated regions.
        analysis: Prices against list price, for every given market with one.
        regions: Results by the region's file and kind of job.
        inputs: SHA-256 of the input files, by name.
        seed: Seed of the studies.
        unseen: Cost of `migrate` over interrupt's, a week's job, its numbers chosen on the other half of it.
        why_none: Why there is no study, if there is none.
    """
    rows = []
    for name in LENGTHS_H:
        for when in (MoveWhen.PERIOD_END, MoveWhen.CHEAPER, MoveWhen.WORTHWHILE):
            rows += _rows(name, when, found.replays.get(name) if found else None, why_none or _TOO_SHORT)
    what = "cost of migrate / interrupt, jobs of 1w, its two numbers chosen on the other half of the record"
    chosen = PaperClaim(what, None, "ratio", _SAVES, "the default's numbers were chosen on halves of this record")
    rows.append(chosen.row("migrate_cost_vs_interrupt_1w_unseen", unseen, missing=why_none or _HALF_TOO_SHORT))
    gpus = [standing.available for standing in analysis if standing.gpu]
    others = [standing.available for standing in analysis if not standing.gpu]
    share = float(np.mean(gpus)) if gpus else math.nan
    beside = f"; of other types {float(np.mean(others)):.3f}" if others else ""
    note = f"other months and zones than the paper's{beside}"
    what = "share of time that GPU machines cost less than the list price"
    why = "no GPU market of these prices has a list price"
    scarce = PaperClaim(what, 0.65, "fraction", half_the_effect(0.65, none=1.0))
    rows.append(scarce.row("gpu_availability_below_on_demand", share, note=note, missing=why))
    tables = {
        "replays": _table(found or MigrationStudy(0, {})),
        "replays_with_generated_regions": None if wider is None else _table(wider),
        "by_type": by_type(analysis),
        "regions": {
            name: {kind: _table(one.study) | {"choice": asdict(one.choice)} for kind, one in kinds.items()}
            for name, kinds in regions.items()
        },
    }
    return Reproduction("deepspotcloud", inputs, seed, tuple(rows), tables)


def _rows(name: str, when: MoveWhen, replays: Mapping[str, Replayed] | None, why: str) -> list[ClaimRow]:
    """Rows of cost and running time of a rule over interrupt's, for jobs of one length.

    Best-price has no row of its time: it moves most, and the paper gives no figure.
    """
    key = str(when).replace("-", "_")
    cost, slower, note, best = math.nan, math.nan, "", math.inf
    if replays is not None:
        ours, base = replays[str(when)], replays[_BASE]
        cost, slower = ratio(ours.cost_usd, base.cost_usd), ratio(ours.makespan_h, base.makespan_h)
        others = [row.cost_usd for rule, row in replays.items() if rule != str(MoveWhen.WORTHWHILE)]
        best = ratio(min(others), base.cost_usd)
        why = _NONE_ENDED
        if math.isfinite(cost):
            note = f"{ours.moves:.1f} moves a job, {base.moves:.1f} of interrupt"
    claim = _cost_claim(name, when, best)
    rows = [claim.row(f"{key}_cost_vs_interrupt_{name}", cost, note=note, missing=why)]
    if when is not MoveWhen.CHEAPER:
        paper = _HOURLY_TIME if when is MoveWhen.PERIOD_END else None
        what = f"running time of {when} / interrupt, jobs of {name}"
        time = PaperClaim(what, paper, "ratio", at_most(_HOURLY_TIME, "the paper's of hourly"))
        rows.append(time.row(f"{key}_time_vs_interrupt_{name}", slower, missing=why))
    return rows


def _cost_claim(name: str, when: MoveWhen, best: float) -> PaperClaim:
    """The claim about a rule's cost; `best` is that of the best of the paper's rules, both over interrupt's."""
    what = f"cost of {when} / interrupt, jobs of {name}"
    week = name == "1w"
    if when is MoveWhen.WORTHWHILE:
        most = min(0.99, _NEAR_BEST * best if math.isfinite(best) else math.inf)
        rule = "at least 1 % saved, and half a per cent above the best of the paper's rules at most"
        return PaperClaim(what, None, "ratio", at_most(most, rule), _CALM_ZONES)
    if when is MoveWhen.CHEAPER:
        paper = _BEST_PRICE_COST if week else None
        size = half_the_effect(paper, none=1.0) if paper else _COSTS_MORE
        return PaperClaim(what, paper, "ratio", size, f"{_CALM_ZONES}, so the cheapest changes less often")
    paper = _HOURLY_COST if week else None
    size = half_the_effect(paper, none=1.0) if paper else _SAVES
    return PaperClaim(what, paper, "ratio", size, f"{_CALM_ZONES}, so another is cheaper less often")


def _table(found: MigrationStudy) -> dict[str, Any]:
    replays = {
        name: {rule: {key: _plain(value) for key, value in asdict(row).items()} for rule, row in rows.items()}
        for name, rows in found.replays.items()
    }
    return {"markets": found.markets, "by_length": replays}


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
