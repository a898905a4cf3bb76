"""Rows for several zones at once: the cost of `deadline` against failover, one zone and the optimum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebbtide_papers.deadlines.zones import DEADLINE_H, RESTART_H, WORK_H, ZonesStudy
from ebbtide_papers.reproduction import Row

# Target cost over the optimum's. SkyNomad (NSDI 2027) reaches 606 of 571 USD and 41.73 of 37.37.
_TARGETS = {"h100": 1.06, "v100": 1.10}
_PUBLISHED = {"h100": 606 / 571, "v100": 41.73 / 37.37}
_PUBLISHED_FAILOVER = {"h100": 606 / 795, "v100": 41.73 / 47.02}

# Accelerators with claims: where they cannot be computed, a row says so.
CLAIMED = tuple(_TARGETS)

_LATE_H = 1e-9
_OURS = "deadline"


@dataclass(frozen=True)
class Claim:
    """What is claimed, without a figure of ours."""

    text: str
    paper: float | None = None
    unit: str = "ratio"


def multi_rows(studies: Sequence[ZonesStudy], whole: Sequence[ZonesStudy]) -> list[Row]:
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

    for study in studies:
        kind = study.records.accelerator
        published = _PUBLISHED.get(kind), _PUBLISHED_FAILOVER.get(kind)
        rows += _rows(study, named(kind), _TARGETS.get(kind), *published)
    for study in whole:
        rows += _rows(study, named(f"{study.records.accelerator}_whole_gang"), None, None, None)
    late = sum(int((runs.late_h > _LATE_H).sum()) for study in (*studies, *whole) for runs in study.runs.values())
    rows.append(
        Row(
            "multi_misses",
            "deadlines missed, all policies, several zones",
            0.0,
            float(late),
            "runs",
            late == 0,
            "none",
        )
    )
    return rows


def multi_claims(accelerator: str, *, gang: bool) -> dict[str, Claim]:
    """The claims about a set of zones, by id."""
    name = f"multi_{accelerator}_whole_gang" if gang else f"multi_{accelerator}"
    published, failover = (None if gang else of.get(accelerator) for of in (_PUBLISHED, _PUBLISHED_FAILOVER))
    return {
        f"{name}_cost_vs_failover": Claim("cost of deadline / next-cheapest failover", failover),
        f"{name}_cost_vs_optimum": Claim("cost of deadline / optimum", published),
        f"{name}_cost_vs_uniform_progress": Claim("the same / Uniform Progress in one zone, mean of zones"),
        f"{name}_cost_vs_best_zone": Claim("the same / Uniform Progress in the zone that turned out cheapest"),
        "multi_misses": Claim("deadlines missed, all policies, several zones", 0.0, "runs"),
    }


def _rows(
    study: ZonesStudy, name: str, target: float | None, published: float | None, published_failover: float | None
) -> list[Row]:
    mean = {policy: float(runs.usd.mean()) for policy, runs in study.runs.items()}
    ours, failover, best = mean[_OURS], mean["next-cheapest failover"], mean["optimum"]
    zones = [usd for policy, usd in mean.items() if policy.startswith("uniform-progress ")]
    in_one = math.fsum(zones) / len(zones)
    setting = f"{study.records.name}: {WORK_H:g} h of work, {DEADLINE_H:g} h, restart {RESTART_H:g} h"
    limit = f"at most {target:g}" if target else "below failing over; no target was set"
    near = ours <= target * best if target else ours < failover
    return [
        Row(
            f"{name}_cost_vs_failover",
            f"cost of deadline / next-cheapest failover ({setting})",
            published_failover,
            ours / failover,
            "ratio",
            ours < failover,
            "below 1",
        ),
        Row(
            f"{name}_cost_vs_optimum",
            f"cost of deadline / optimum ({setting})",
            published,
            ours / best,
            "ratio",
            near,
            limit,
        ),
        Row(
            f"{name}_cost_vs_uniform_progress",
            "the same / Uniform Progress in one zone, mean of zones",
            None,
            ours / in_one,
            "ratio",
            ours < in_one,
            "below 1",
        ),
        Row(
            f"{name}_cost_vs_best_zone",
            "the same / Uniform Progress in the zone that turned out cheapest",
            None,
            ours / min(zones),
            "ratio",
            ours < min(zones),
            "below 1, and nobody knows that zone before",
        ),
    ]


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
