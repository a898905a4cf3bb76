"""Cost of `DeadlineAdvisor` on recorded zones that it was not fitted to, and the sources of the remaining cost.

The setting is that of the public benchmark: 48 h of work, decisions and charges by whole ticks of the record. None
of a zone's own records is in the models, except in the last variant, which knows the zone's own spells: the lowest
cost that models of age alone can reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.forecasts.capacity.fitting import SpellModel, Spells, fit_spells, spells_of
from ebbtide.forecasts.capacity.records import ZoneRecord
from ebbtide.forecasts.capacity.zone_types import ZoneTypes, zone_types
from ebbtide.market.price_series import Floats
from ebbtide.policies.deadline.advisor import DeadlineAdvisor
from ebbtide.policies.deadline.advisor_inputs import ASKS_EVERY_S
from ebbtide_papers.deadlines.advised_runs import run_advised
from ebbtide_papers.deadlines.study import DEADLINES_H, ON_DEMAND_USD, SPOT_USD, WORK_H

# Variants: types of zones told apart while a run watches; the same where it is not told that charges and questions
# come in whole ticks; one model of all zones; the zone's own, fitted in sample.
TYPES, UNTOLD, ONE_MODEL, OWN = VARIANTS = (
    "types of zones",
    "types of zones, ticks untold",
    "one model",
    "own spells, in sample",
)

# The shortest and the longest start of the public benchmark, hours; of those of the other studies.
_RESTARTS_H = (0.02, 0.1)

# Starts of a record that are run, at most.
ADVISED = 60


@dataclass(frozen=True)
class AdvisorCell:
    """Results for one deadline and restart time in one zone.

    Attributes:
        zone: The record of the zone.
        deadline_h: Hours to the deadline.
        restart_h: Hours of a start.
        usd: Cost of each run, USD, by variant; shape (starts,). Without `UNTOLD` where ticks are longer than an
            advisor without `tick_h` counts on.
        misses: Number of runs of all variants that were late.
    """

    zone: str
    deadline_h: float
    restart_h: float
    usd: Mapping[str, Floats]
    misses: int


def study_advisor(records: Sequence[ZoneRecord], place: int, starts: Sequence[int]) -> list[AdvisorCell]:
    """Every variant in every cell of one zone, from the same starts.

    Args:
        records: Records of all zones.
        place: Index of the zone to run in.
        starts: Start of each run, as ticks of its record.
    """
    record = records[place]
    models = _models(records, place)
    cells = []
    for deadline_h in DEADLINES_H:
        for restart_h in _RESTARTS_H:
            usd, misses = {}, 0
            for name, known in models.items():
                if name == UNTOLD and record.gap_s > ASKS_EVERY_S:
                    continue
                tick_h = record.gap_s / HOUR_S
                advisor = DeadlineAdvisor(
                    work_h=WORK_H,
                    deadline_h=deadline_h,
                    restart_h=restart_h,
                    spot_usd_per_hour=SPOT_USD,
                    on_demand_usd_per_hour=ON_DEMAND_USD,
                    tick_h=None if name == UNTOLD else tick_h,
                    models=known,
                )
                runs = [run_advised(advisor, record.available, first, tick_h) for first in starts]
                usd[name] = np.array([run.usd for run in runs])
                misses += sum(run.late_h > 1e-9 for run in runs)
            cells.append(AdvisorCell(record.name, deadline_h, restart_h, usd, misses))
    return cells


def _models(records: Sequence[ZoneRecord], place: int) -> dict[str, SpellModel | ZoneTypes]:
    zone = records[place].name.split()[0]
    spells = [spells_of(one.available, one.gap_s) for one in records]
    others = [one for one, record in zip(spells, records, strict=True) if record.name.split()[0] != zone]
    if not others:
        others = [one for number, one in enumerate(spells) if number != place] or spells
    types = types_from(others)
    own = fit_spells(spells[place], others)
    return {TYPES: types, UNTOLD: types, ONE_MODEL: fit_spells(None, others), OWN: own}


def types_from(spells: Sequence[Spells]) -> ZoneTypes:
    """The types that some zones stand for, each zone's model partially pooled with the others."""
    return zone_types([fit_spells(one, [other for other in spells if other is not one]) for one in spells])
