"""`ZonesAdvisor`: where to run, on spot or on demand, or to wait, for whoever has a scheduler of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from numbers import Real
from typing import Any, Literal

import numpy as np

from ebbtide.base.compiled_records import NOTHING, ON_DEMAND, SPOT, ZonesMoment
from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError, unknown_name
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, DOWN, UP, SpellModel
from ebbtide.forecasts.capacity.models import SpellModels
from ebbtide.forecasts.capacity.zone_types import ZoneTypes
from ebbtide.market.price_series import Floats
from ebbtide.policies.deadline.advising_zones import LOOK, chosen_zone, seen_zones
from ebbtide.policies.deadline.advisor import Kind
from ebbtide.policies.deadline.advisor_inputs import ASKS_EVERY_S, number, truth, types_of, usable_hours
from ebbtide.policies.deadline.costs import ZonesProblem, check_times
from ebbtide.policies.deadline.table import ZoneTable, solve_zones, zones_tick_s

ZoneAdvice = tuple[Literal["spot", "on-demand", "look"], str] | Literal["wait"]

_WORDS: dict[int, Literal["spot", "on-demand", "look"]] = {SPOT: "spot", ON_DEMAND: "on-demand", LOOK: "look"}
_HELD = {"spot": SPOT, "on-demand": ON_DEMAND}

# Times closer than this are the same, seconds.
_SAME_S = 1e-3


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
        if isinstance(zones, str) or not isinstance(zones, Iterable):
            raise InputError(f"zones are {zones!r:.80}; a list of names is needed")
        self.zones = tuple(map(str, zones))
        if len(set(self.zones)) != len(self.zones):
            raise InputError(f"zones are {', '.join(self.zones)}; each may be named once")
        if not self.zones:
            raise InputError("there is no zone to run in")
        prices = spot_usd_per_hour
        if isinstance(prices, Real):
            prices = [prices] * len(self.zones)  # type: ignore[list-item]
        if not isinstance(prices, Iterable) or len(list(prices)) != len(self.zones):
            raise InputError(f"spot_usd_per_hour is {prices!r:.80}; {len(self.zones)} zones need as many prices")
        spot_usd = tuple(
            number(f"spot_usd_per_hour of {zone}", usd) for zone, usd in zip(self.zones, prices, strict=True)
        )
        work, deadline, restart, listed = (
            number(name, value)
            for name, value in {
                "work_h": work_h,
                "deadline_h": deadline_h,
                "restart_h": restart_h,
                "on_demand_usd_per_hour": on_demand_usd_per_hour,
            }.items()
        )
        # The whole time is checked by the user's own numbers.
        check_times(deadline, work_h=work, restart_h=restart)
        usable_h, self.tick_h = usable_hours(work, deadline, restart, tick_h)
        self.types = types_of(models)
        self._usable_s = usable_h * HOUR_S
        self._tick_s = ASKS_EVERY_S if self.tick_h is None else self.tick_h * HOUR_S
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
        table = _table(work, usable_h, restart, listed, self.zones, spot_usd, pooled.tobytes())
        self.problem = table.problem
        self._costs, self._task = table.costs, self.problem.task
        # Expected time left of a spell of each age, seconds, of each type and in the table.
        self._left_s = np.stack([_left_s(model) for model in known])
        self._table_left_s = _left_s(SpellModel(pooled))
        self.begin()

    def begin(self) -> None:
        """Begin another run of the same job: nothing is known of the zones yet."""
        self._beliefs: Floats | None = None
        # Where the last machine was, and the one that was advised to be started at the last question.
        self._asked_s, self._last, self._advised = 0.0, 0, 0
        # Whether each zone was there, and when that was seen, seconds.
        self._seen: dict[str, tuple[bool, float]] = {}

    def choose(
        self,
        elapsed_h: float,
        done_h: float,
        holding: tuple[Kind, str] | None,
        seen: Mapping[str, bool],
        starting_h: float = 0.0,
    ) -> ZoneAdvice:
        """Advise what to hold until the next question.

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
        at_s, left_s, starting_s, held, zone = self._checked(elapsed_h, done_h, holding, seen, starting_h)
        # What was seen in this tick holds until the next.
        self._seen = {name: one for name, one in self._seen.items() if at_s - one[1] < self._tick_s / 2.0}
        self._seen |= {
            name: (truth(f"seen of {name}", there), at_s) for name, there in seen.items() if there is not None
        }
        if held == SPOT and not self._seen.get(self.zones[zone], (True, at_s))[0]:
            held = NOTHING
        if held == SPOT:
            self._seen[self.zones[zone]] = (True, at_s)
        states = np.array([self._seen.get(name, (-1, 0.0))[0] for name in self.zones], dtype=np.int64)
        beliefs = np.tile(self._prior, (len(self.zones), 1, 1, 1)) if self._beliefs is None else self._beliefs
        passed_s = 0.0 if self._beliefs is None else at_s - self._asked_s
        # A machine runs once time has passed: asked again at the same moment, the answer is the same.
        if passed_s > _SAME_S:
            self._last = self._advised
        if holding is not None:
            self._last = zone
        self._advised = self._last
        self._beliefs = seen_zones(beliefs, states, self._hazards, AGE_BINS_S, passed_s)
        self._asked_s = at_s
        if left_s <= 0.0:
            return "wait"
        now = ZonesMoment(
            self._usable_s - at_s,
            left_s,
            held,
            self._last,
            0.0 if held == NOTHING else starting_s,
            self._tick_s,
            self._tick_s if self.tick_h is None else 0.0,
            self.tick_h is not None,
            states,
            self._ages(states),
        )
        choice, there, _ = chosen_zone(self._costs, self._task, now)
        if choice == NOTHING:
            return "wait"
        if choice != LOOK:
            self._advised = int(there)
        return _WORDS[int(choice)], self.zones[int(there)]

    def chance_up(self, zone: str) -> float:
        """Probability that a zone has a spot machine now, from what was seen so far.

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

    def _place(self, zone: Any) -> int:
        if zone not in self.zones:
            raise unknown_name("zone", str(zone), self.zones)
        return self.zones.index(zone)

    def _checked(
        self, elapsed_h: Any, done_h: Any, holding: Any, seen: Any, starting_h: Any
    ) -> tuple[float, float, float, int, int]:
        """Seconds since the start, of work and of a start that are left; what is held, and the index of its zone.

        Raises:
            InputError: A value is out of range, or a zone is not known.
        """
        at_s = number("elapsed_h", elapsed_h) * HOUR_S
        left_s = self._task.work_s - number("done_h", done_h) * HOUR_S
        starting_s = number("starting_h", starting_h) * HOUR_S
        if at_s < self._asked_s - _SAME_S:
            raise InputError(
                f"elapsed_h is {elapsed_h}, after a question at {self._asked_s / HOUR_S:g}; begin() begins "
                "another run"
            )
        if not isinstance(seen, Mapping):
            raise InputError(f"seen is {seen!r:.80}; it must map zones to True or False")
        for zone in seen:
            self._place(zone)
        held, place = NOTHING, 0
        if holding is not None:
            kind, zone = holding if isinstance(holding, tuple) and len(holding) == 2 else (None, None)
            if not isinstance(kind, str) or kind not in _HELD:
                raise InputError(
                    f"holding is {holding!r:.80}; it must be ('spot', zone), ('on-demand', zone) or None"
                )
            held, place = _HELD[kind], self._place(zone)
        return max(at_s, self._asked_s), left_s if left_s > _SAME_S else 0.0, starting_s, held, place


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
    tick_s = zones_tick_s(problem)
    return solve_zones(problem, [model] * len(zones), ask_every_s=tick_s, tick_s=tick_s)
