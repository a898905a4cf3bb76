"""Rows of `DeadlineAdvisor`: against Uniform Progress and the optimum from the same starts, and its variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ebbtide_papers.deadlines.advisor_study import ONE_MODEL, OWN, TYPES, VARIANTS, AdvisorCell
from ebbtide_papers.deadlines.study import Cell
from ebbtide_papers.reproduction import Claim, Row, at_least, at_most, ratio

_TICKS = "decisions and charges of the advisor by whole ticks, of the others by the second; models of other zones"

_NO_GAP = "Uniform Progress costs no more than the optimum on these records"


def advisor_claims() -> dict[str, Claim]:
    """The claims about the advisor, by id."""
    return {
        "advisor_misses": Claim("deadlines missed on the advisor's advice", 0.0, "runs", at_most(0.0)),
        "advisor_cost_vs_uniform_progress": Claim(
            "cost on the advisor's advice / Uniform Progress",
            96.94 / 101.68,
            "ratio",
            at_most(0.97, "3 % cheaper"),
            f"{_TICKS}; the figure beside it is of the best published program on other starts in six of the zones",
        ),
        "advisor_gap_closed": Claim(
            "what the advisor closes of the gap from Uniform Progress to the optimum",
            (101.68 - 96.94) / (101.68 - 92.16),
            "fraction",
            at_least(0.47, "our target"),
            _TICKS,
        ),
        "advisor_types_vs_one_model": Claim(
            "cost if types of zones are told apart while a run watches / with one model of all zones",
            None,
            "ratio",
            at_most(1.0, "no more expensive"),
        ),
    }


def advisor_rows(advised: Sequence[AdvisorCell], cells: Sequence[Cell]) -> list[Row]:
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
    means = {name: _mean(advised, name) for name in VARIANTS}
    shown = ", ".join(f"{name} {usd:.2f}" for name, usd in means.items())
    figures = {
        "advisor_misses": float(sum(one.misses for one in advised)),
        "advisor_cost_vs_uniform_progress": ratio(means[TYPES], uniform),
        "advisor_gap_closed": ratio(uniform - means[TYPES], max(uniform - best, 0.0)),
        "advisor_types_vs_one_model": ratio(means[TYPES], means[ONE_MODEL]),
    }
    note = f"mean USD: Uniform Progress {uniform:.2f}, {shown}, optimum {best:.2f}"
    claims = advisor_claims()
    return [claims[name].row(name, figure, note=note, missing=_NO_GAP) for name, figure in figures.items()]


def advisor_table(advised: Sequence[AdvisorCell]) -> Mapping[str, Any]:
    """Mean cost of each variant by zone, USD, and what models of age alone could still save at best."""
    zones = list(dict.fromkeys(one.zone for one in advised))
    by_zone = {zone: [one for one in advised if one.zone == zone] for zone in zones}
    return {
        "by_zone": {zone: {name: _mean(own, name) for name in VARIANTS} for zone, own in by_zone.items()},
        "left_to_own_spells_usd": _mean(advised, TYPES) - _mean(advised, OWN),
    }


def _mean(advised: Sequence[AdvisorCell], name: str) -> float:
    return float(np.mean([one.usd[name].mean() for one in advised]))
