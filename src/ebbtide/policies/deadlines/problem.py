"""One job with a deadline in a zone whose spot machines come and go."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.errors import InputError


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
        for name in ("work_h", "restart_h", "spot_usd_per_hour", "on_demand_usd_per_hour"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} is {getattr(self, name)}; it cannot be negative")
        if self.deadline_h < self.work_h + self.restart_h:
            raise InputError(
                f"a deadline of {self.deadline_h:g} h cannot be kept: {self.work_h:g} h of work and a start of "
                f"{self.restart_h:g} h need more"
            )

    @property
    def on_demand_usd(self) -> float:
        """On an on-demand machine from the start on."""
        return (self.work_h + self.restart_h) * self.on_demand_usd_per_hour
