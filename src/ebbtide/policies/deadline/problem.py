"""One job with a deadline in a zone whose spot machines come and go."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.errors import InputError


def check_times(deadline_h: float, *, work_h: float, restart_h: float, **prices: float) -> None:
    """Raise `InputError` for what is negative, and for a deadline that no machine could keep."""
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
    """What is to be done, and what machines cost.

    Attributes:
        work_h: Hours of work on one machine.
        deadline_h: From the start on.
        restart_h: That each start of a machine takes, before it works.
        spot_usd_per_hour: While it can be had.
        on_demand_usd_per_hour: Always to be had.
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
        """On an on-demand machine from the start on."""
        return (self.work_h + self.restart_h) * self.on_demand_usd_per_hour
