"""Rows of the advisors: against rivals and the optimum from the same starts, what each part of what they know
adds, and, over two zones, against the least that is possible without foresight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ebbtide_papers.deadlines.advised_zones_study import ADVISED, BOUND, FAILS_OVER, OPTIMUM, AdvisedZones
from ebbtide_papers.deadlines.advisor_study import ONE_MODEL, OWN, TYPES, UNTOLD, VARIANTS, AdvisorCell
from ebbtide_papers.deadlines.study import ZoneResult
from ebbtide_papers.reproduction import ClaimRow, PaperClaim, at_least, at_most, ratio

_TICKS = "decisions and charges of the advisor by whole ticks, of the others by the second; models of other zones"

_SEVERAL = "24 h of work in 36 or 48 h; models of zones that are not in the set"

_NO_GAP = "Uniform Progress costs no more than the optimum on these records"


def advisor_claims() -> dict[str, PaperClaim]:
    """The claims about the advisor, by id."""
    return {
        "advisor_misses": PaperClaim("deadlines missed on the advisor's advice", 0.0, "runs", at_most(0.0)),
        "advisor_cost_vs_uniform_progress": PaperClaim(
            "cost on the advisor's advice / Uniform Progress",
            96.94 / 101.68,
            "ratio",
            at_most(0.97, "3 % cheaper"),
            f"{_TICKS}; the figure beside it is of the best published program on other starts in six of the zones",
        ),
        "advisor_gap_closed": PaperClaim(
            "what the advisor closes of the gap from Uniform Progress to the optimum",
            (101.68 - 96.94) / (101.68 - 92.16),
            "fraction",
            at_least(0.47, "our target"),
            _TICKS,
        ),
        "advisor_types_vs_one_model": PaperClaim(
            "cost if types of zones are told apart while a run watches / with one model of all zones",
            None,
            "ratio",
            at_most(1.0, "no more expensive"),
        ),
    }


def advised_zones_claims() -> dict[str, PaperClaim]:
    """The claims about the advisor over several zones, by id."""
    return {
        "zones_advisor_misses": PaperClaim(
            "deadlines missed on advice over several zones, all of them seen", 0.0, "runs", at_most(0.0)
        ),
        "zones_advisor_cost_vs_failover": PaperClaim(
            "cost on advice over several zones / next-cheapest failover, mean of sets of zones",
            None,
            "ratio",
            at_most(0.97, "3 % cheaper"),
            _SEVERAL,
        ),
        "zones_advisor_cost_vs_bound": PaperClaim(
            "the same over two zones / least without foresight, by the exact program that knows both zones",
            None,
            "ratio",
            at_most(1.02, "our target"),
            _SEVERAL,
        ),
    }


def advisor_rows(advised: Sequence[AdvisorCell], cells: Sequence[ZoneResult]) -> list[ClaimRow]:
    """A row for each claim.

    Args:
        advised: The advisor in each cell.
        cells: The other policies in the same cells, from these starts and more.
    """
    others = {(cell.zone, cell.problem.deadline_h, cell.problem.restart_h): cell.usd for cell in cells}
    same = [(others[one.zone, one.deadline_h, one.restart_h], one) for one in advised]
    uniform, best = (
        float(np.mean([usd[name][: len(one.usd[TYPES])].mean() for usd, one in same]))
        for name in ("uniform-progress", "optimum")
    )
    means = {name: _mean(advised, name) for name in (TYPES, ONE_MODEL, OWN)}
    shown = ", ".join(f"{name} {usd:.2f}" for name, usd in means.items())
    figures = {
        "advisor_misses": float(sum(one.misses for one in advised)),
        "advisor_cost_vs_uniform_progress": ratio(means[TYPES], uniform),
        "advisor_gap_closed": ratio(uniform - means[TYPES], max(uniform - best, 0.0)),
        "advisor_types_vs_one_model": ratio(means[TYPES], means[ONE_MODEL]),
    }
    note = f"mean USD: Uniform Progress {uniform:.2f}, {shown}, optimum {best:.2f}"
    claims = advisor_claims()
    saved = ", ".join(f"{what} {usd:.3f}" for what, usd in _saved_usd(advised).items() if usd is not None)
    notes = {"advisor_types_vs_one_model": f"USD saved by {saved}"}
    return [
        claims[name].row(name, figure, note=notes.get(name, note), missing=_NO_GAP)
        for name, figure in figures.items()
    ]


def advised_zones_rows(sets: Sequence[AdvisedZones]) -> list[ClaimRow]:
    """A row for each claim about several zones; of the bound, where there are pairs of zones."""
    claims = advised_zones_claims()
    rows = [claims["zones_advisor_misses"].row("zones_advisor_misses", float(sum(one.misses for one in sets)))]
    pairs = [one for one in sets if BOUND in one.usd]
    for row_id, rival, group in (
        ("zones_advisor_cost_vs_failover", FAILS_OVER, sets),
        ("zones_advisor_cost_vs_bound", BOUND, pairs),
    ):
        if group:
            means = {name: _mean_of(group, name) for name in (FAILS_OVER, ADVISED, rival, OPTIMUM)}
            note = "mean USD: " + ", ".join(f"{name} {usd:.2f}" for name, usd in means.items())
            rows.append(claims[row_id].row(row_id, ratio(means[ADVISED], means[rival]), note=note))
    return rows


def advisor_table(advised: Sequence[AdvisorCell], sets: Sequence[AdvisedZones]) -> Mapping[str, Any]:
    """Mean cost of each variant by zone, and of each policy by set of zones, USD; and what each part of what the
    advisor knows takes off the cost: with only models of age, no more than the last is left to be gained."""
    zones = list(dict.fromkeys(one.zone for one in advised))
    by_zone = {zone: [one for one in advised if one.zone == zone] for zone in zones}
    return {
        "by_zone": {
            zone: {name: _mean(own, name) for name in VARIANTS if name in own[0].usd}
            for zone, own in by_zone.items()
        },
        "usd_saved_by": _saved_usd(advised),
        "by_set_of_zones": [
            {
                "zones": list(one.zones),
                "mean_usd": {name: float(usd.mean()) for name, usd in one.usd.items()},
                "misses": one.misses,
            }
            for one in sets
        ],
    }


def _saved_usd(advised: Sequence[AdvisorCell]) -> dict[str, float | None]:
    """Reduction of the mean cost by each part of an advisor's knowledge, USD; None: not known here."""
    # What whole ticks are worth is known where a run without them can be had.
    both = [one for one in advised if UNTOLD in one.usd]
    return {
        "telling types of zones apart": _mean(advised, ONE_MODEL) - _mean(advised, TYPES),
        "knowing of whole ticks": _mean(both, UNTOLD) - _mean(both, TYPES) if both else None,
        "knowing the zone's own spells": _mean(advised, TYPES) - _mean(advised, OWN),
    }


def _mean(advised: Sequence[AdvisorCell], name: str) -> float:
    return float(np.mean([one.usd[name].mean() for one in advised]))


def _mean_of(sets: Sequence[AdvisedZones], name: str) -> float:
    return float(np.mean([one.usd[name].mean() for one in sets]))
