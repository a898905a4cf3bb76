"""Jobs with a deadline, in one zone or in several: what machines, moves and waiting cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ebbtide.base.compiled_records import ZonesTask, ZoneTask
from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.egress import EgressPrices, transfer_s
from ebbtide.market.markets import Place
from ebbtide.market.price_series import Floats


def check_times(deadline_h: float, *, work_h: float, restart_h: float, **prices: float) -> None:
    """Raise `InputError` for a negative value, and for a deadline that not even an on-demand machine can meet."""
    for name, value in {"work_h": work_h, "restart_h": restart_h, **prices}.items():
        if not value >= 0:
            raise InputError(f"{name} is {value}; it cannot be negative")
    if deadline_h < work_h + restart_h:
        raise InputError(
            f"a deadline of {deadline_h:g} h cannot be kept: {work_h:g} h of work and a start of {restart_h:g} h "
            "need more"
        )


@dataclass(frozen=True)
class DeadlineProblem:
    """A job with a deadline in one zone.

    Attributes:
        work_h: Hours of work on one machine.
        deadline_h: Hours from the start to the deadline.
        restart_h: Hours from the start of a machine until it works.
        spot_usd_per_hour: Price of a spot machine, USD per hour; it is available at times.
        on_demand_usd_per_hour: Price of an on-demand machine, USD per hour; it is always available.
    """

    work_h: float
    deadline_h: float
    restart_h: float
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float

    def __post_init__(self) -> None:
        check_times(
            self.deadline_h,
            work_h=self.work_h,
            restart_h=self.restart_h,
            spot_usd_per_hour=self.spot_usd_per_hour,
            on_demand_usd_per_hour=self.on_demand_usd_per_hour,
        )

    @property
    def on_demand_usd(self) -> float:
        """The cost on an on-demand machine from the start on, USD."""
        return (self.work_h + self.restart_h) * self.on_demand_usd_per_hour

    @property
    def task(self) -> ZoneTask:
        """The problem as compiled code takes it."""
        return ZoneTask(
            self.work_h * HOUR_S,
            self.deadline_h * HOUR_S,
            self.restart_h * HOUR_S,
            self.spot_usd_per_hour,
            self.on_demand_usd_per_hour,
        )


@dataclass(frozen=True)
class ZonesProblem:
    """A job with a deadline in several zones.

    On-demand machines are always available, in every place, at one price; a spot machine in a zone while the zone
    has one. A start takes the restart time and, in another place than the checkpoint's, the time to fetch it.

    Attributes:
        work_h: Hours of work on an on-demand machine (or gang of machines).
        deadline_h: Hours from the start to the deadline.
        restart_h: Hours from the start of a machine until it works.
        on_demand_usd_per_hour: Price of an on-demand machine in any place, USD per hour.
        zones: Names of the zones, in the order of all other fields.
        spot_usd_per_hour: Expected price of a spot machine in each zone, USD per hour.
        place_of: Index of each zone's place (cloud and region).
        egress_usd: Cost of moving a checkpoint from place to place, USD; shape (places, places).
        fetch_h: Hours that a start takes longer when the checkpoint comes from another place; the same shape.
        speed: Speed of each zone's spot machine against that of an on-demand machine; empty: they are as fast.
        look_s: Seconds of a machine that are paid for to see whether a zone has one, so that a new spell may be
            watched before a machine is kept; infinity: a machine that is given is kept.
    """

    work_h: float
    deadline_h: float
    restart_h: float
    on_demand_usd_per_hour: float
    zones: tuple[str, ...]
    spot_usd_per_hour: tuple[float, ...]
    place_of: tuple[int, ...]
    egress_usd: Floats
    fetch_h: Floats
    speed: tuple[float, ...] = ()
    look_s: float = math.inf

    def __post_init__(self) -> None:
        check_times(
            self.deadline_h,
            work_h=self.work_h,
            restart_h=self.restart_h,
            on_demand_usd_per_hour=self.on_demand_usd_per_hour,
        )
        if not self.zones:
            raise InputError("there is no zone to run in")
        if not len(self.zones) == len(self.spot_usd_per_hour) == len(self.place_of):
            raise InputError(
                f"{len(self.zones)} zones need as many prices and places, not {len(self.spot_usd_per_hour)} and "
                f"{len(self.place_of)}"
            )
        if len(self.speed) not in (0, len(self.zones)) or not all(0.0 < one < math.inf for one in self.speed):
            raise InputError(f"speed is {self.speed}; each of {len(self.zones)} zones needs one above 0")
        places = max(self.place_of) + 1
        if self.egress_usd.shape != (places, places) or self.fetch_h.shape != (places, places):
            raise InputError(f"egress and fetching need a row and a column for each of {places} places")

    @property
    def slack_s(self) -> float:
        """Seconds from the start to the deadline beyond the work."""
        return (self.deadline_h - self.work_h) * HOUR_S

    @property
    def most_slack_s(self) -> float:
        """The most slack that a run can have, seconds: a machine that is faster than one on demand gains some."""
        return self.slack_s + self.work_h * HOUR_S * (1.0 - 1.0 / max((1.0, *self.speed)))

    @property
    def start_s(self) -> Floats:
        """Seconds of a start by place of the checkpoint and of the machine; shape (places, places)."""
        found: Floats = (self.restart_h + self.fetch_h) * HOUR_S
        return found

    @cached_property
    def task(self) -> ZonesTask:
        """The problem as compiled code takes it."""
        return ZonesTask(
            self.work_h * HOUR_S,
            self.deadline_h * HOUR_S,
            self.restart_h * HOUR_S,
            self.start_s,
            self.on_demand_usd_per_hour,
            np.array(self.spot_usd_per_hour),
            np.array(self.place_of),
            self.egress_usd,
            np.array(self.speed or (1.0,) * len(self.zones)),
            self.look_s,
        )

    def alone(self, zone: int) -> ZonesProblem:
        """The same job with only one of the zones."""
        return ZonesProblem(
            self.work_h,
            self.deadline_h,
            self.restart_h,
            self.on_demand_usd_per_hour,
            (self.zones[zone],),
            (self.spot_usd_per_hour[zone],),
            (0,),
            np.zeros((1, 1)),
            np.zeros((1, 1)),
            self.speed[zone : zone + 1],
            self.look_s,
        )


def place_numbers(zones: Sequence[Place]) -> tuple[int, ...]:
    """The number of each zone's place among the places of all."""
    places = sorted(set(zones))
    return tuple(map(places.index, zones))


def zones_problem(
    zones: Sequence[tuple[str, Place]],
    spot_usd_per_hour: Sequence[float],
    on_demand_usd_per_hour: float,
    *,
    work_h: float,
    deadline_h: float,
    restart_h: float,
    checkpoint_bytes: int,
    egress: EgressPrices | None = None,
    bucket: Place | None = None,
    speed: Sequence[float] = (),
    look_s: float = math.inf,
) -> ZonesProblem:
    """The problem of a job with a checkpoint of a given size, at what clouds charge for moving it.

    Args:
        zones: Name and place of each zone.
        spot_usd_per_hour: Expected price of a spot machine in each zone, USD per hour.
        on_demand_usd_per_hour: Price of an on-demand machine in any place, USD per hour.
        work_h: Hours of work on an on-demand machine.
        deadline_h: Hours from the start to the deadline.
        restart_h: Hours from the start of a machine until it works.
        checkpoint_bytes: Size of the checkpoint that a move transfers, bytes.
        egress: Egress prices of the clouds; None for list prices.
        bucket: Where checkpoints are stored, through which each move goes; None: a move is from place to place.
        speed: Speed of each zone's machine against that of an on-demand machine; empty: they are as fast.
        look_s: Seconds of a machine that a look at a zone costs; see `ZonesProblem`.

    Raises:
        InputError: The egress price of a move is not known, or the deadline cannot be met.
    """
    prices = egress or EgressPrices()
    places = sorted({place for _, place in zones})

    def route(source: Place, target: Place) -> list[tuple[Place, Place]]:
        return [(source, target)] if bucket is None else [(source, bucket), (bucket, target)]

    usd = [
        [sum(prices.usd(checkpoint_bytes, *leg) for leg in route(source, target)) for target in places]
        for source in places
    ]
    # The upload is over when the next machine begins.
    fetch_h = [
        [transfer_s(checkpoint_bytes, *route(source, target)[-1]) / HOUR_S for target in places]
        for source in places
    ]
    return ZonesProblem(
        work_h,
        deadline_h,
        restart_h,
        on_demand_usd_per_hour,
        tuple(name for name, _ in zones),
        tuple(spot_usd_per_hour),
        place_numbers([place for _, place in zones]),
        np.array(usd),
        np.array(fetch_h),
        tuple(speed),
        look_s,
    )
