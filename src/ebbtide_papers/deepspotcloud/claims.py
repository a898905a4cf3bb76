"""DeepSpotCloud's claims (II-B, V-B), each with the paper's figure and ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ebbtide.policies.deepspotcloud.policy import MoveWhen
from ebbtide_papers.deepspotcloud.price_analysis import Standing, by_type
from ebbtide_papers.deepspotcloud.regions import RegionFound
from ebbtide_papers.deepspotcloud.study import LENGTHS_H, MigrationStudy, Replayed
from ebbtide_papers.reproduction import Reproduction, Row, ratio

_BASE = str(MoveWhen.NEVER)

_TOO_SHORT = "the prices cover less than twice this length"
_NONE_ENDED = "from no start did the job end under every rule"


@dataclass(frozen=True)
class _Claim:
    """The claims about a rule.

    Attributes:
        cost: Cost of a week's job over interrupt's, from Fig. 6(a).
        time: Running time over interrupt's, from V-B.
        rule: The rule by which the cost holds.
        why: Why our figure differs, where it does.
    """

    cost: float | None
    time: float | None
    rule: str
    why: str = ""


_CLAIMS = {
    MoveWhen.PERIOD_END: _Claim(0.87, 1.01, "not dearer than interrupt", "; fewer zones than in the paper"),
    MoveWhen.CHEAPER: _Claim(
        5.0, None, "dearer than interrupt", "; fewer zones than in the paper, so the cheapest changes less often"
    ),
    MoveWhen.WORTHWHILE: _Claim(None, None, "not dearer than any of the paper's three"),
}


def reproduce_deepspotcloud(
    found: MigrationStudy | None,
    wider: MigrationStudy | None,
    analysis: Sequence[Standing],
    regions: Mapping[str, Mapping[str, RegionFound]],
    *,
    inputs: dict[str, str],
    seed: int,
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
        why_none: Why there is no study, if there is none.
    """
    rows = []
    for name in LENGTHS_H:
        for when, claim in _CLAIMS.items():
            rows += _rows(name, when, claim, found.replays.get(name) if found else None, why_none or _TOO_SHORT)
    gpus = [standing.available for standing in analysis if standing.gpu]
    others = [standing.available for standing in analysis if not standing.gpu]
    share = float(np.mean(gpus)) if gpus else math.nan
    beside = f"; of other types {float(np.mean(others)):.3f}" if others else ""
    rule = f"holds if below 0.95, the least the paper finds for other types{beside}; other months and zones"
    what = "share of time that GPU machines cost less than the list price"
    why = "no GPU market of these prices has a list price"
    rows.append(Row("gpu_availability_below_on_demand", what, 0.65, share, "fraction", share < 0.95, rule, why))
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


def _rows(name: str, when: MoveWhen, claim: _Claim, replays: Mapping[str, Replayed] | None, why: str) -> list[Row]:
    """Rows of cost and running time of a rule over interrupt's, for jobs of one length."""
    key = str(when).replace("-", "_")
    ids = [f"{key}_{what}_vs_interrupt_{name}" for what in ("cost", "time")]
    claims = [f"{what} of {when} / interrupt, jobs of {name}" for what in ("cost", "running time")]
    papers = [claim.cost if name == "1w" else None, claim.time]
    if replays is None:
        triples = zip(ids, claims, papers, strict=True)
        return [Row.without(row_id, what, paper, "ratio", why) for row_id, what, paper in triples]
    ours, base = replays[str(when)], replays[_BASE]
    cost, slower = ratio(ours.cost_usd, base.cost_usd), ratio(ours.makespan_h, base.makespan_h)
    if not math.isfinite(cost):
        triples = zip(ids, claims, papers, strict=True)
        return [Row.without(row_id, what, paper, "ratio", _NONE_ENDED) for row_id, what, paper in triples]
    others = [row.cost_usd for rule, row in replays.items() if rule != str(MoveWhen.WORTHWHILE)]
    holds = {
        MoveWhen.PERIOD_END: cost <= 1.0,
        MoveWhen.CHEAPER: cost > 1.0,
        MoveWhen.WORTHWHILE: ours.cost_usd <= min(others),
    }
    note = f"holds if {claim.rule}; {ours.moves:.1f} moves a job, {base.moves:.1f} of interrupt{claim.why}"
    return [
        Row(ids[0], claims[0], papers[0], cost, "ratio", holds[when], note),
        Row(ids[1], claims[1], papers[1], slower, "ratio", *_time_rule(when, slower)),
    ]


def _time_rule(when: MoveWhen, slower: float) -> tuple[bool, str]:
    if when is MoveWhen.CHEAPER:
        return slower >= 1.0, "holds if not less than interrupt's: it moves most; the paper gives no figure"
    return slower <= 1.01, "holds if at most 1.01"


def _table(found: MigrationStudy) -> dict[str, Any]:
    replays = {
        name: {rule: {key: _plain(value) for key, value in asdict(row).items()} for rule, row in rows.items()}
        for name, rows in found.replays.items()
    }
    return {"markets": found.markets, "by_length": replays}


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
