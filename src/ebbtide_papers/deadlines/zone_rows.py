"""Rows for several zones at once: the cost of `deadline` against failover, one zone and the optimum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ebbtide_papers.deadlines.reach_study import Reach, study_reach
from ebbtide_papers.deadlines.zone_sets import REAL_PRICES
from ebbtide_papers.deadlines.zones import DEADLINE_H, ELASTIC, FIRST_THIRD, RESTART_H, WORK_H, ZonesStudy
from ebbtide_papers.reproduction import ClaimRow, PaperClaim, at_most, half_the_effect, ratio

# Target cost over the optimum's. SkyNomad (NSDI 2027) reaches 606 of 571 USD and 41.73 of 37.37.
_TARGETS = {"h100": 1.06, "v100": 1.10}
_PUBLISHED = {"h100": 606 / 571, "v100": 41.73 / 37.37}
_PUBLISHED_FAILOVER = {"h100": 606 / 795, "v100": 41.73 / 47.02}

# Sets of zones with claims: where they cannot be computed, a row says so.
CLAIMED = (*_TARGETS, f"h100_{REAL_PRICES}")

# Without a published figure: of sets in which all machines are needed, and of other accelerators.
_TARGET_OF_GANGS, _TARGET_OF_OTHERS = 1.25, 1.10

# Where the rule is that it is cheaper and there is no published figure.
CHEAPER = at_most(0.97, "at least 3 % cheaper")

_FAILOVER = "the failover is of our making, on other starts than the published one"
_PLENTY = "where the cheapest zones nearly always have a machine, taking the cheapest leaves little to gain"

_MISSES = PaperClaim("deadlines missed, all policies, several zones", 0.0, "runs", at_most(0.0))

# Rows whose rival was run on drawn capacity, too.
_IN_REACH = ("_cost_vs_failover", "_cost_vs_best_zone")

_LATE_H = 1e-9
_OURS = "deadline"


def multi_rows(studies: Sequence[ZonesStudy], whole: Sequence[ZonesStudy]) -> list[ClaimRow]:
    """The rows of the claims.

    Args:
        studies: Study of each set of zones; for gangs, a zone is available if it has any machine, as in the
            published traces.
        whole: Studies of gangs in which a zone is available only if it has all machines.
    """
    rows = []
    names: Counter[str] = Counter()

    def named(kind: str) -> str:
        """The name of a set of zones; sets after the first of an accelerator are numbered."""
        names[kind] += 1
        return f"multi_{kind}" if names[kind] == 1 else f"multi_{kind}_{names[kind]}"

    for gang, group in ((False, studies), (True, whole)):
        for study in group:
            records = study.records
            kind = "_".join(part for part in (records.accelerator, records.reading) if part)
            claims = multi_claims(kind, gang=gang)
            rows += _rows(study, named(f"{kind}_whole_gang" if gang else kind), list(claims.values()))
    late = sum(int((runs.late_h > _LATE_H).sum()) for study in (*studies, *whole) for runs in study.runs.values())
    return [*rows, _MISSES.row("multi_misses", float(late))]


def multi_claims(kind: str, *, gang: bool) -> dict[str, PaperClaim]:
    """The claims about a set of zones, by id; `kind` is the accelerator, and how prices were read."""
    name = f"multi_{kind}_whole_gang" if gang else f"multi_{kind}"
    published = None if gang else _PUBLISHED.get(kind)
    failover = None if gang else _PUBLISHED_FAILOVER.get(kind)
    target = _TARGET_OF_GANGS if gang else _TARGETS.get(kind, _TARGET_OF_OTHERS)
    size = half_the_effect(failover, none=1.0) if failover else CHEAPER
    why = "a quarter above it: no figure is published" if gang else "our target"
    short = "spells of all machines are short, and a start takes longer than many of them last" if gang else ""
    unknown = "; ".join(part for part in ("nobody knows that zone before", short) if part)
    return {
        f"{name}_cost_vs_failover": PaperClaim(
            "cost of deadline / next-cheapest failover",
            failover,
            "ratio",
            size,
            _PLENTY if REAL_PRICES in kind and not gang else _FAILOVER,
        ),
        f"{name}_cost_vs_optimum": PaperClaim(
            "cost of deadline / optimum", published, "ratio", at_most(target, why), short
        ),
        f"{name}_cost_vs_uniform_progress": PaperClaim(
            "the same / Uniform Progress in one zone, mean of zones", None, "ratio", CHEAPER
        ),
        f"{name}_cost_vs_best_zone": PaperClaim(
            "the same / Uniform Progress in the zone that turned out cheapest", None, "ratio", CHEAPER, unknown
        ),
        **(_elastic_claims(name) if gang else {}),
        "multi_misses": _MISSES,
    }


def _elastic_claims(name: str) -> dict[str, PaperClaim]:
    """The claims about gangs that work on any number of their machines, by id."""
    return {
        f"{name}_elastic_vs_whole": PaperClaim(
            "cost of deadline if the job works on any number of its machines / on all of them only",
            None,
            "ratio",
            CHEAPER,
            "on fewer it is as much slower; each change of their number is a start",
        )
    }


def _rows(study: ZonesStudy, name: str, claims: Sequence[PaperClaim]) -> list[ClaimRow]:
    mean = {policy: float(runs.usd.mean()) for policy, runs in study.runs.items()}
    ours = mean[_OURS]
    zones = [usd for policy, usd in mean.items() if policy.startswith("uniform-progress ")]
    setting = f"{study.records.name}: {WORK_H:g} h of work, {DEADLINE_H:g} h, restart {RESTART_H:g} h"
    rivals = {
        "failover": mean["next-cheapest failover"],
        "optimum": mean["optimum"],
        "uniform_progress": math.fsum(zones) / len(zones),
        "best_zone": min(zones),
    }
    named = [replace(claim, text=f"{claim.text} ({setting})") for claim in claims[:2]] + list(claims[2:4])
    found = [
        claim.row(f"{name}_cost_vs_{rival}", ratio(ours, usd), note=_in_hindsight(mean["optimum"], usd))
        for claim, (rival, usd) in zip(named, rivals.items(), strict=True)
    ]
    if any(not row.holds and row.id.endswith(_IN_REACH) for row in found):
        reach = study_reach(study)
        found = [_with_reach(row, reach) for row in found]
    if ELASTIC in mean:
        note = _in_hindsight(mean["optimum, any number of machines"], mean["optimum"])
        figure = ratio(mean[ELASTIC], mean[FIRST_THIRD])
        found += [claim.row(row_id, figure, note=note) for row_id, claim in _elastic_claims(name).items()]
    return found


def _with_reach(row: ClaimRow, reach: Reach) -> ClaimRow:
    """A row that fails, with what policies without foresight can reach."""
    if row.holds or not row.id.endswith(_IN_REACH):
        return row
    rival_usd = reach.failover_usd if row.id.endswith(_IN_REACH[0]) else reach.best_zone_usd
    said = (
        f"on capacity drawn from models of {', '.join(reach.zones)}: this ratio {reach.ours_usd / rival_usd:.3f}, "
        f"that of the least without foresight {reach.bound_usd / rival_usd:.3f}"
    )
    return replace(row, note=f"{row.note}; {said}")


def _in_hindsight(optimum_usd: float, usd: float) -> str:
    """Note with the ratio of the optimum in hindsight, below which no policy is; empty: it is not below 1."""
    return f"in hindsight {ratio(optimum_usd, usd):.3f}" if optimum_usd < usd else ""


def multi_table(studies: Sequence[ZonesStudy]) -> list[dict[str, Any]]:
    """For each set and policy: mean and 95th percentile of the cost, egress, misses, starts and requests."""
    return [
        {
            "zones": list(study.records.zones),
            "zones_without_price": list(study.records.unpriced),
            "record": study.records.name,
            "asks_others_every_s": study.ask_every_s,
            "policies": {
                policy: {
                    "mean_usd": float(runs.usd.mean()),
                    "p95_usd": float(np.quantile(runs.usd, 0.95)),
                    "egress_usd": float(runs.egress_usd.mean()),
                    "misses": int((runs.late_h > _LATE_H).sum()),
                    "machines_started": float(runs.started.mean()),
                    "machines_asked_for": float(runs.asked.mean()),
                }
                for policy, runs in study.runs.items()
            },
        }
        for study in studies
    ]
