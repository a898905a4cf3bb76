"""`ZonesAdvisor`: where to run, on spot or on demand, or to wait, for whoever has a scheduler of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from ebbtide._compiled_records import NOTHING, ON_DEMAND, SPOT, ZonesMoment
from ebbtide._utc import HOUR_S
from ebbtide.errors import InputError, unknown_name
from ebbtide.forecasts.spells.fitting import AGE_BINS_S, DOWN, UP, SpellModel
from ebbtide.forecasts.spells.models import SpellModels
from ebbtide.forecasts.spells.zone_types import ZoneTypes
from ebbtide.market.price_series import Floats
from ebbtide.policies.deadline.advising_zones import LOOK, chosen_zone, seen_zones
from ebbtide.policies.deadline.advisor import ASKS_EVERY_S, Kind, types_of
from ebbtide.policies.deadline.problem import ZonesProblem
from ebbtide.policies.deadline.table import ZoneTable, solve_zones

ZoneAdvice = tuple[Literal["spot", "on-demand", "look"], str] | Literal["wait"]

_WORDS: dict[int, Literal["spot", "on-demand", "look"]] = {SPOT: "spot", ON_DEMAND: "on-demand", LOOK: "look"}
_HELD = {"spot": SPOT, "on-demand": ON_DEMAND}


class ZonesAdvisor:
    """Advice for a job with a deadline that may run in any of several zones.

    Args:
        zones: Names of the zones.
        work_h: Hours of work on one machine.
        deadline_h: Hours from the start of the run to the deadline.
        restart_h: Hours from the start of a machine until it works, in any zone.
        spot_usd_per_hour: Price of a spot machine in each zone, USD per hour; one number: the same in all.
        on_demand_usd_per_hour: Price of an on-demand machine, USD per hour; it is always available, in each zone.
        tick_h: Hours between two questions, where decisions and charges come in whole ticks; None: it is asked at
            least every five minutes, and machines are charged by the second.
        models: How long spells of availability last: those of several zones, of which each of these may resemble
            any, or one model of all; None for those of recorded zones.

    Raises:
        InputError: A value is out of range, there is no zone, or the deadline cannot be kept even on demand.
    """

    def __init__(
        self,
        zones: Sequence[str],
        *,
        work_h: float,
        deadline_h: float,
        restart_h: float,
        spot_usd_per_hour: float | Sequence[float],
        on_demand_usd_per_hour: float,
        tick_h: float | None = None,
        models: SpellModel | SpellModels | ZoneTypes | Sequence[SpellModel] | None = None,
    ) -> None:
        self.zones = tuple(map(str, zones))
        if len(set(self.zones)) != len(self.zones):
            raise InputError(f"zones are {', '.join(self.zones)}; each may be named once")
        if tick_h is not None and not (0 < tick_h < math.inf):
            raise InputError(f"tick_h is {tick_h}; it must be positive")
        prices = spot_usd_per_hour
        if isinstance(prices, int | float):
            prices = [float(prices)] * len(self.zones)
        usable_h = deadline_h if tick_h is None else math.floor(deadline_h / tick_h + 1e-9) * tick_h
        nowhere = np.zeros((1, 1))
        # The whole time is checked by the user's own numbers.
        problems = [
            ZonesProblem(
                work_h,
                hours,
                restart_h,
                on_demand_usd_per_hour,
                self.zones,
                tuple(map(float, prices)),
                (0,) * len(self.zones),
                nowhere,
                nowhere,
            )
            for hours in (deadline_h, max(usable_h, work_h + restart_h))
        ]
        self.tick_h, self.problem, self.types = tick_h, problems[1], types_of(models)
        self._usable_s = usable_h * HOUR_S
        self._tick_s = ASKS_EVERY_S if tick_h is None else tick_h * HOUR_S
        known = self.types.models
        hazards = np.stack([model.per_hour for model in known])
        self._hazards = hazards / HOUR_S
        shares = np.array([[model.ages(kind) for kind in (DOWN, UP)] for model in known])
        up = np.array([model.share_up for model in known])
        weights = np.array(self.types.weights)
        # Before anything is seen: shape (types, kinds, bins).
        self._prior = weights[:, None, None] * np.stack([1.0 - up, up], axis=1)[:, :, None] * shares
        # Ages that no spell of a type comes to count a little: their hazards are not known to be anything else.
        spent = self._prior + 1e-12
        pooled = np.sum(spent * hazards, axis=0) / np.sum(spent, axis=0)
        self._table = _table(work_h, self.problem.deadline_h, restart_h, on_demand_usd_per_hour, self.zones,
                             self.problem.spot_usd_per_hour, pooled.tobytes())  # fmt: skip
        self._costs, self._task = self._table.costs, self.problem.task
        # Expected time left of a spell of each age, seconds, of each type and in the table.
        self._left_s = np.stack([_left_s(model) for model in known])
        self._table_left_s = _left_s(SpellModel(pooled))
        self.begin()

    def begin(self) -> None:
        """Begin another run of the same job: nothing is known of the zones yet."""
        self._beliefs: Floats | None = None
        self._asked_s, self._last = 0.0, 0
        self._seen: dict[str, bool] = {}

    def choose(
        self,
        elapsed_h: float,
        done_h: float,
        holding: tuple[Kind, str] | None,
        seen: Mapping[str, bool],
        starting_h: float = 0.0,
    ) -> ZoneAdvice:
        """What to hold until the next question.

        Args:
            elapsed_h: Hours since the start of the run; no less than at the last question.
            done_h: Hours of work that are done and saved.
            holding: What is held and where, such as ("spot", "us-east-1a"); None: nothing. A spot machine is
                revoked where none is available.
            seen: Whether a spot machine is available now, of the zones whose state is known this time.
            starting_h: Hours that the held machine's start still takes.

        Returns:
            ("spot", zone) and ("on-demand", zone): keep that machine or start it; "wait": hold none.
            ("look", zone): find out whether that zone has a spot machine, and ask again with it in `seen`; a zone
            is to be looked at once at a time at most.

        Raises:
            InputError: A value is out of range, or a zone is not known.
        """
        held, zone = self._check(elapsed_h, done_h, holding, seen, starting_h)
        at_s = elapsed_h * HOUR_S
        if self._beliefs is not None and at_s > self._asked_s:
            self._seen = {}
        self._seen |= {name: bool(there) for name, there in seen.items()}
        if held == SPOT and self._seen.get(self.zones[zone], True) is False:
            held = NOTHING
        if held == SPOT:
            self._seen[self.zones[zone]] = True
        states = np.array([self._seen.get(name, -1) for name in self.zones], dtype=np.int64)
        beliefs = np.tile(self._prior, (len(self.zones), 1, 1, 1)) if self._beliefs is None else self._beliefs
        passed_s = 0.0 if self._beliefs is None else at_s - self._asked_s
        self._beliefs = seen_zones(beliefs, states, self._hazards, AGE_BINS_S, passed_s)
        self._asked_s = at_s
        left_s = self._task.work_s - done_h * HOUR_S
        if left_s <= 0.0:
            return "wait"
        if holding is None:
            zone = self._last
        self._last = zone
        now = ZonesMoment(
            self._usable_s - at_s,
            left_s,
            held,
            zone,
            0.0 if held == NOTHING else starting_h * HOUR_S,
            self._tick_s,
            self.tick_h is not None,
            states,
            self._ages(states),
        )
        choice, there, _ = chosen_zone(self._costs, self._task, now)
        if choice == NOTHING:
            return "wait"
        self._last = int(there)
        return _WORDS[int(choice)], self.zones[int(there)]

    def chance_up(self, zone: str) -> float:
        """How probable it is that a zone has a spot machine now, by what was seen so far.

        Raises:
            InputError: The zone is not known.
        """
        place = self._place(zone)
        beliefs = self._prior if self._beliefs is None else self._beliefs[place]
        return float(beliefs[:, UP].sum())

    def _ages(self, states: np.ndarray) -> Floats:
        """The place among the table's bins of age at which its spells are expected to last as long; by zone."""
        assert self._beliefs is not None
        found = np.empty(len(states))
        for zone, state in enumerate(states.tolist()):
            kind = DOWN if state == 0 else UP
            own = self._beliefs[zone, :, kind]
            left_s = float((own * self._left_s[:, kind]).sum() / max(own.sum(), 1e-300))
            found[zone] = np.interp(left_s, np.maximum.accumulate(self._table_left_s[kind]), self._places)
        return found

    @property
    def _places(self) -> Floats:
        return np.arange(len(AGE_BINS_S), dtype=np.float64)

    def _place(self, zone: str) -> int:
        if zone not in self.zones:
            raise unknown_name("zone", zone, self.zones)
        return self.zones.index(zone)

    def _check(
        self,
        elapsed_h: float,
        done_h: float,
        holding: tuple[Kind, str] | None,
        seen: Mapping[str, bool],
        starting_h: float,
    ) -> tuple[int, int]:
        """What is held, and the index of its zone.

        Raises:
            InputError: A value is out of range, or a zone is not known.
        """
        for name, value in {"elapsed_h": elapsed_h, "done_h": done_h, "starting_h": starting_h}.items():
            if not 0 <= value < math.inf:
                raise InputError(f"{name} is {value}; it must be a number of 0 or more")
        if elapsed_h * HOUR_S < self._asked_s - 1e-6:
            raise InputError(
                f"elapsed_h is {elapsed_h:g}, after a question at {self._asked_s / HOUR_S:g}; begin() begins "
                "another run"
            )
        for zone in seen:
            self._place(zone)
        if holding is None:
            return NOTHING, 0
        if not isinstance(holding, tuple) or len(holding) != 2 or holding[0] not in _HELD:
            raise InputError(f"holding is {holding!r}; it must be ('spot', zone), ('on-demand', zone) or None")
        return _HELD[holding[0]], self._place(holding[1])


def _left_s(model: SpellModel) -> Floats:
    """Expected time left of spells by kind and bin of age, seconds; shape (kinds, bins)."""
    return np.array([[model.mean_left_s(kind, float(age_s)) for age_s in AGE_BINS_S] for kind in (DOWN, UP)])


@lru_cache(maxsize=8)
def _table(
    work_h: float,
    deadline_h: float,
    restart_h: float,
    on_demand_usd: float,
    zones: tuple[str, ...],
    spot_usd: tuple[float, ...],
    hazards: bytes,
) -> ZoneTable:
    """The table of a job over zones that are alike but for their prices; from a cache of the last 8."""
    nowhere = np.zeros((1, 1))
    problem = ZonesProblem(
        work_h, deadline_h, restart_h, on_demand_usd, zones, spot_usd, (0,) * len(zones), nowhere, nowhere
    )
    model = SpellModel(np.frombuffer(hazards).reshape(2, -1))
    return solve_zones(problem, [model] * len(zones))
