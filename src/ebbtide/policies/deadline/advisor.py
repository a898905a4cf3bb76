"""`DeadlineAdvisor`: spot, on demand or wait, for whoever has a scheduler of their own.

It rents nothing. A scheduler asks it at each of its ticks, and tells what it sees; the advice is the choice of
least expected cost among those that keep the deadline for sure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from ebbtide.base.compiled_records import (
    NOTHING,
    ON_DEMAND,
    SPOT,
    AdvisorGrid,
    AdvisorMoment,
    AdvisorTables,
    SpellChances,
)
from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, DOWN, UP, SpellModel
from ebbtide.forecasts.capacity.models import SpellModels
from ebbtide.forecasts.capacity.zone_types import ZoneTypes
from ebbtide.market.price_series import Floats
from ebbtide.policies.deadline.advising import chosen, first_belief, next_belief, solved_costs
from ebbtide.policies.deadline.advisor_inputs import ASKS_EVERY_S, number, truth, types_of, usable_hours
from ebbtide.policies.deadline.costs import DeadlineProblem

Advice = Literal["spot", "on-demand", "wait"]
Kind = Literal["spot", "on-demand"]

_ADVICE: dict[int, Advice] = {NOTHING: "wait", SPOT: "spot", ON_DEMAND: "on-demand"}
_HELD: dict[str | None, int] = {None: NOTHING, "spot": SPOT, "on-demand": ON_DEMAND}

# Times closer than this are the same, seconds.
_SAME_S = 1e-3

# Ticks of the tables are no shorter, seconds: between them costs are interpolated.
_TABLE_TICK_S = 600.0

# Slack is resolved to about a minute, or to this at least, up to 1.5 hours; beyond, to a tick; seconds.
_NARROW_S, _LEAST_NARROW_S, _NARROW_UNTIL_S = 60.0, 20.0, 1.5 * HOUR_S

# Numbers in the tables of a job, over all types; with more, ticks and steps are made longer.
_MOST_CELLS = 60_000_000


class DeadlineAdvisor:
    """Advice for a job with a deadline in one zone.

    Args:
        work_h: Hours of work on one machine.
        deadline_h: Hours from the start of the run to the deadline.
        restart_h: Hours from the start of a machine until it works.
        spot_usd_per_hour: Price of a spot machine, USD per hour.
        on_demand_usd_per_hour: Price of an on-demand machine, USD per hour; it is always available.
        tick_h: Hours between two questions, where decisions and charges come in whole ticks; None: it is asked at
            least every five minutes, and machines are charged by the second.
        models: How long spells of availability last: one model, or those of several zones, of which this zone may
            resemble any; None for those of recorded zones.

    Attributes:
        problem: The job; its deadline is a whole number of ticks.
        usable_s: Seconds from the start until the last tick ends.
        types: The types of zones, of which this zone is taken to be one.
        tables: Expected costs for each type.
        prior: What is known of the types before a run: the share of spell time in each bin of age, shape (types,
            kinds, bins); the share of time with machines, shape (types,); their weights, shape (types,).

    Raises:
        InputError: A value is out of range, or the deadline cannot be kept even on demand.
    """

    def __init__(
        self,
        *,
        work_h: float,
        deadline_h: float,
        restart_h: float,
        spot_usd_per_hour: float,
        on_demand_usd_per_hour: float,
        tick_h: float | None = None,
        models: SpellModel | SpellModels | ZoneTypes | Sequence[SpellModel] | None = None,
    ) -> None:
        given = {
            "work_h": work_h,
            "deadline_h": deadline_h,
            "restart_h": restart_h,
            "spot_usd_per_hour": spot_usd_per_hour,
            "on_demand_usd_per_hour": on_demand_usd_per_hour,
        }
        numbers = {name: number(name, value) for name, value in given.items()}
        # The whole time is checked by the user's own numbers.
        DeadlineProblem(**numbers)
        usable_h, self.tick_h = usable_hours(
            numbers["work_h"], numbers["deadline_h"], numbers["restart_h"], tick_h
        )
        self.problem = DeadlineProblem(**(numbers | {"deadline_h": usable_h}))
        self.usable_s = usable_h * HOUR_S
        self.types = types_of(models)
        self._tick_s = ASKS_EVERY_S if self.tick_h is None else self.tick_h * HOUR_S
        self._task = self.problem.task
        hazards = tuple(model.per_hour.tobytes() for model in self.types.models)
        self.tables = _tables(self.problem, self._tick_s, self.tick_h is not None, hazards)
        ages = np.array([[model.ages(kind) for kind in (DOWN, UP)] for model in self.types.models])
        share_up = np.array([model.share_up for model in self.types.models])
        self.prior = (ages, share_up, np.array(self.types.weights))
        self.begin()

    def begin(self) -> None:
        """Begin another run of the same job: nothing is known of the zone yet."""
        self._belief: Floats | None = None
        self._asked_s, self._was_up = 0.0, 0

    def choose(
        self,
        elapsed_h: float,
        done_h: float,
        holding: Kind | None,
        spot_available: bool,
        starting_h: float = 0.0,
    ) -> Advice:
        """Advise what to hold until the next question.

        Args:
            elapsed_h: Hours since the start of the run; no less than at the last question.
            done_h: Hours of work that are done and saved.
            holding: What is held: "spot", "on-demand" or None. A spot machine is revoked where none is available.
            spot_available: Whether the zone has a spot machine now.
            starting_h: Hours that the held machine's start still takes.

        Returns:
            "spot" and "on-demand": keep that machine or start it; "wait": hold none.

        Raises:
            InputError: A value is out of range.
        """
        now = self._asked(elapsed_h, done_h, holding, spot_available, starting_h)
        self._see(self.usable_s - now.left_s, now.up)
        if now.work_s <= 0.0:
            return "wait"
        choice, _ = chosen(self.tables, self._task, self._belief, now)
        return _ADVICE[int(choice)]

    def expected_usd(
        self,
        elapsed_h: float,
        done_h: float,
        holding: Kind | None,
        spot_available: bool,
        starting_h: float = 0.0,
    ) -> dict[Advice, float]:
        """Expected cost from here on of each choice, USD; infinity: it might miss the deadline, or is not there.

        It asks without telling: what the advisor knows of the zone stays as it was. Arguments as for `choose`,
        which has to come first.
        """
        now = self._asked(elapsed_h, done_h, holding, spot_available, starting_h)
        if self._belief is None:
            raise InputError("choose() has not been called in this run: nothing is known of the zone")
        if now.work_s <= 0.0:
            return {"wait": 0.0, "spot": math.inf, "on-demand": math.inf}
        costs = chosen(self.tables, self._task, self._belief, now)[1]
        return {_ADVICE[choice]: float(usd) for choice, usd in enumerate(costs)}

    @property
    def chances(self) -> tuple[float, ...]:
        """Probability of each type of `types` for this zone, from what was seen in this run."""
        if self._belief is None:
            return self.types.weights
        return tuple(self._belief.sum(axis=1).tolist())

    def _see(self, at_s: float, up: int) -> None:
        if self._belief is None:
            self._belief = first_belief(*self.prior, up)
        elif at_s > self._asked_s:
            self._belief = next_belief(self.tables, self._belief, self._was_up, up, at_s - self._asked_s)
        self._asked_s, self._was_up = at_s, up

    def _asked(
        self, elapsed_h: Any, done_h: Any, holding: Any, spot_available: Any, starting_h: Any
    ) -> AdvisorMoment:
        """The question as compiled code takes it.

        Raises:
            InputError: A value is out of range.
        """
        at_s = number("elapsed_h", elapsed_h) * HOUR_S
        left_s = self._task.work_s - number("done_h", done_h) * HOUR_S
        starting_s = number("starting_h", starting_h) * HOUR_S
        up = truth("spot_available", spot_available)
        if holding is not None and not (isinstance(holding, str) and holding in _HELD):
            raise InputError(f"holding is {holding!r:.80}; it must be 'spot', 'on-demand' or None")
        if at_s < self._asked_s - _SAME_S:
            raise InputError(
                f"elapsed_h is {elapsed_h}, after a question at {self._asked_s / HOUR_S:g}; begin() begins "
                "another run"
            )
        held = _HELD[holding]
        if held == SPOT and not up:
            held = NOTHING
        return AdvisorMoment(
            self.usable_s - max(at_s, self._asked_s),
            # Hours as a scheduler counts them are not exact.
            left_s if left_s > _SAME_S else 0.0,
            held,
            0.0 if held == NOTHING else starting_s,
            int(up),
            self._tick_s,
            self._tick_s if self.tick_h is None else 0.0,
        )


@lru_cache(maxsize=8)
def _tables(
    problem: DeadlineProblem, tick_s: float, whole_ticks: bool, hazards: tuple[bytes, ...]
) -> AdvisorTables:
    """The tables of a job for each type of zone, by its hazards; from a cache of the last 8."""
    grid = _grid(problem, tick_s, len(hazards), whole_ticks)
    models = [SpellModel(np.frombuffer(each).reshape(2, -1)) for each in hazards]
    onward: Floats = np.tile(np.minimum(grid.tick_s / np.diff(AGE_BINS_S, append=np.inf), 1.0), (2, 1))
    usd = []
    for model in models:
        ends = [[model.ends_within(kind, age_s, grid.tick_s) for age_s in AGE_BINS_S] for kind in (DOWN, UP)]
        usd.append(solved_costs(grid, problem.task, SpellChances(np.array(ends), onward)))
    per_s = np.stack([model.per_hour for model in models]) / HOUR_S
    return AdvisorTables(np.stack(usd), grid, per_s, AGE_BINS_S)


def _grid(problem: DeadlineProblem, tick_s: float, types: int, whole_ticks: bool) -> AdvisorGrid:
    """Ticks and steps of slack: as fine as the tables' size allows."""
    fine = max(round(_TABLE_TICK_S / tick_s), 1)
    cells_at_one = types * 2 * len(AGE_BINS_S) * 3
    while True:
        grid = _grid_of(problem, tick_s * fine, whole_ticks and fine == 1)
        if grid.ticks * len(grid.slack_s) * cells_at_one <= _MOST_CELLS:
            return grid
        fine = math.ceil(fine * 1.25)


def _grid_of(problem: DeadlineProblem, tick_s: float, whole_ticks: bool) -> AdvisorGrid:
    deadline_s, restart_s = problem.deadline_h * HOUR_S, problem.restart_h * HOUR_S
    slack_s = deadline_s - problem.work_h * HOUR_S
    narrow_s = _narrow_step_s(tick_s, restart_s)
    # Waiting shortens the slack by whole wide steps, a start by whole narrow ones, where the numbers are round.
    waits = max(math.floor((slack_s - _NARROW_UNTIL_S) / tick_s), 0)
    narrow = math.ceil((slack_s - waits * tick_s) / narrow_s - 1e-9) + 1
    steps = np.arange(narrow + waits + 1, dtype=np.float64)
    slacks = np.where(steps < narrow, steps * narrow_s, (narrow - 1) * narrow_s + (steps - narrow + 1) * tick_s)
    # Where the tables' ticks are longer than the scheduler's, its last one is not.
    return AdvisorGrid(
        math.ceil(deadline_s / tick_s - 1e-9), tick_s, slacks, narrow, narrow_s, tick_s, whole_ticks
    )


def _narrow_step_s(tick_s: float, restart_s: float) -> float:
    """Width of a narrow step of slack, seconds: one that divides ticks and starts, if that is not too narrow."""
    common_s = math.gcd(round(tick_s), round(restart_s))
    is_whole = tick_s == round(tick_s) and abs(restart_s - round(restart_s)) < 1e-6
    for width_s in (float(common_s) if is_whole else 0.0, restart_s):
        if width_s >= _LEAST_NARROW_S:
            return width_s / max(round(width_s / _NARROW_S), 1)
    return _NARROW_S
