"""One job with a deadline, several zones to run it in: what machines, moves and waiting cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide._utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.egress import EgressPrices, transfer_s
from ebbtide.market.markets import Place
from ebbtide.market.price_series import Floats
from ebbtide.policies.deadline.problem import check_times


@dataclass(frozen=True)
class ZonesProblem:
    """What is to be done, where it can be, and what that costs.

    On-demand machines are always to be had, in every place, at one price; a spot machine in a zone while the zone
    has one. A start takes the restart time and, in another place than the checkpoint's, the time to fetch it.

    Attributes:
        work_h: Hours of work on one machine (or gang of machines).
        deadline_h: From the start on.
        restart_h: That each start of a machine takes, before it works.
        on_demand_usd_per_hour: Anywhere.
        zones: Names.
        spot_usd_per_hour: Of each zone, as expected.
        place_of: Of each zone, which of the places.
        egress_usd: Of a checkpoint from place to place; shape (places, places).
        fetch_h: How much longer a start takes when the checkpoint comes from another place; the same shape.
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
        places = max(self.place_of) + 1
        if self.egress_usd.shape != (places, places) or self.fetch_h.shape != (places, places):
            raise InputError(f"egress and fetching need a row and a column for each of {places} places")

    @property
    def slack_s(self) -> float:
        """Time to the deadline beyond the work."""
        return (self.deadline_h - self.work_h) * HOUR_S

    @property
    def start_s(self) -> Floats:
        """What a start takes, by the checkpoint's place and the machine's; shape (places, places)."""
        found: Floats = (self.restart_h + self.fetch_h) * HOUR_S
        return found

    def alone(self, zone: int) -> ZonesProblem:
        """The same job where there is but one of the zones."""
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
        )


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
) -> ZonesProblem:
    """The problem of a checkpoint of so many bytes, at what clouds charge for moving it.

    Args:
        zones: Names, and where each lies.
        spot_usd_per_hour: Of each.
        on_demand_usd_per_hour: Anywhere.
        work_h, deadline_h, restart_h: The job's.
        checkpoint_bytes: What a move takes along.
        egress: What clouds charge; None: list prices.

    Raises:
        InputError: What a move costs is not known, or the deadline cannot be kept.
    """
    prices = egress or EgressPrices()
    places = sorted({place for _, place in zones})
    usd = [[prices.usd(checkpoint_bytes, source, target) for target in places] for source in places]
    fetch_h = [[transfer_s(checkpoint_bytes, source, target) / HOUR_S for target in places] for source in places]
    return ZonesProblem(
        work_h,
        deadline_h,
        restart_h,
        on_demand_usd_per_hour,
        tuple(name for name, _ in zones),
        tuple(spot_usd_per_hour),
        tuple(places.index(place) for _, place in zones),
        np.array(usd),
        np.array(fetch_h),
    )
