"""DeepSpotCloud's claims (II-B, V-B), each with the paper's figure and ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ebbtide.experiments.deepspotcloud_study import LENGTHS_H, MigrationStudy, Replayed
from ebbtide.experiments.reproduction import Reproduction, Row
from ebbtide.policies.deepspotcloud import MoveWhen

_BASE = str(MoveWhen.NEVER)


@dataclass(frozen=True)
class _Claim:
    """What is said of a rule.

    Attributes:
        cost: Of a week's job over interrupt's, as Fig. 6(a) has it.
        time: Running time over interrupt's, as V-B has it.
        rule: By which the cost holds.
        why: Where ours differs.
    """

    cost: float | None
    time: float | None
    rule: str
    why: str = ""


_CLAIMS = {
    MoveWhen.PERIOD_END: _Claim(0.87, 1.01, "not dearer than interrupt", "; fewer zones than in the paper"),
    MoveWhen.CHEAPER: _Claim(
        5.0, None, "dearer than interrupt",
        "; fewer zones to flee to, and the old machine trains until the new one has booted",
    ),
    MoveWhen.WORTHWHILE: _Claim(None, None, "not dearer than any of the paper's three"),
}  # fmt: skip


def reproduce_deepspotcloud(
    found: MigrationStudy, wider: MigrationStudy | None, *, inputs: dict[str, str], seed: int
) -> Reproduction:
    """The claims of Fig. 6 and II-B.

    Args:
        found: On the prices given.
        wider: With generated regions beside them.
        inputs: Digests of the files that went in.
        seed: Of the studies.
    """
    rows = []
    for name in LENGTHS_H:
        for when, claim in _CLAIMS.items():
            rows += _rows(name, when, claim, found.replays.get(name))
    share = float(np.mean(list(found.available.values())))
    what = f"share of time that {found.instance_type} costs less than the list price"
    rule = (
        "holds if below 0.95, the least the paper finds for other types; other months and zones than the paper's"
    )
    rows.append(Row("gpu_availability_below_on_demand", what, 0.65, share, "fraction", share < 0.95, rule))
    tables = {"prices": _table(found)} | ({} if wider is None else {"with_generated_regions": _table(wider)})
    return Reproduction("deepspotcloud", inputs, seed, tuple(rows), tables)


def _rows(name: str, when: MoveWhen, claim: _Claim, replays: Mapping[str, Replayed] | None) -> list[Row]:
    """Cost and running time of a rule on jobs of one length, over interrupt's."""
    key = str(when).replace("-", "_")
    ids = [f"{key}_{what}_vs_interrupt_{name}" for what in ("cost", "time")]
    claims = [f"{what} of {when} / interrupt, jobs of {name}" for what in ("cost", "running time")]
    papers = [claim.cost if name == "1w" else None, claim.time]
    if replays is None:
        note = "the prices cover less than twice this length"
        triples = zip(ids, claims, papers, strict=True)
        return [Row(row_id, what, paper, None, "ratio", False, note) for row_id, what, paper in triples]
    ours, base = replays[str(when)], replays[_BASE]
    cost, slower = ours.cost_usd / base.cost_usd, ours.makespan_h / base.makespan_h
    others = [row.cost_usd for rule, row in replays.items() if rule != str(MoveWhen.WORTHWHILE)]
    holds = {
        MoveWhen.PERIOD_END: cost <= 1.0,
        MoveWhen.CHEAPER: cost > 1.0,
        MoveWhen.WORTHWHILE: ours.cost_usd <= min(others),
    }
    note = f"holds if {claim.rule}; {ours.moves:.1f} moves a job, {base.moves:.1f} of interrupt{claim.why}"
    return [
        Row(ids[0], claims[0], papers[0], cost, "ratio", holds[when] and math.isfinite(cost), note),
        Row(ids[1], claims[1], papers[1], slower, "ratio", slower <= 1.01, "holds if at most 1.01"),
    ]


def _table(found: MigrationStudy) -> dict[str, Any]:
    replays = {
        name: {rule: {key: _plain(value) for key, value in asdict(row).items()} for rule, row in rows.items()}
        for name, rows in found.replays.items()
    }
    return {
        "instance_type": found.instance_type,
        "replays": replays,
        "share_below_list_price": dict(found.available),
        "paid_of_list_price": dict(found.paid),
    }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
