"""Chances of markets as users are told them: to be granted a machine, and to keep it for an hour and for a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ebbtide.base.utc import HOUR_S
from ebbtide.forecasts.hazard.evidence import Evidence
from ebbtide.forecasts.hazard.model import Hazard
from ebbtide.forecasts.hazard.observations import MarketObservations
from ebbtide.market.markets import Market


@dataclass(frozen=True)
class MarketChances:
    """Chances of a machine in a market now, as capacity and not the price has it.

    Attributes:
        granted: The chance that a request for a machine is granted.
        kept_1h: The chance that a machine that is granted is kept for an hour.
        kept: The chance that it is kept until a job's work is done.
    """

    granted: float
    kept_1h: float
    kept: float

    @classmethod
    def of(cls, hazard: Hazard, evidence: Evidence, market: Market, now_s: float, work_s: float) -> MarketChances:
        """The chances of a market.

        Args:
            hazard: Gives the chances.
            evidence: What has been seen of capacity until now.
            market: The market.
            now_s: The present time, seconds since 1970.
            work_s: Time that the job's work takes there, seconds.
        """
        return cls(
            granted=1.0 - hazard.refused(evidence, market, now_s).value,
            kept_1h=hazard.kept(evidence, market, now_s, HOUR_S).value,
            kept=hazard.kept(evidence, market, now_s, work_s).value,
        )


def chance_text(chance: float) -> str:
    """Text of a chance for a table: a percentage, never 0 % or 100 %, which nobody can know."""
    if chance < 0.005:
        return "<1%"
    return ">99%" if chance > 0.995 else f"{chance:.0%}"


def evidence_of(hazard: Hazard, observations: Iterable[MarketObservations], until_s: float) -> Evidence:
    """Return what observations show of capacity until a time.

    Args:
        hazard: Relates the markets to each other.
        observations: Observations of markets.
        until_s: Time after which nothing counts, seconds since 1970.
    """
    evidence = Evidence()
    rows = [
        (time_s, each.market, bool(is_up), each.longest_gap_s)
        for each in observations
        for time_s, is_up in zip(each.times_s.tolist(), each.is_up.tolist(), strict=True)
        if time_s <= until_s
    ]
    for time_s, market, is_up, longest_gap_s in sorted(rows):
        hazard.observe(evidence, market, time_s, is_up=is_up, longest_gap_s=longest_gap_s)
    return evidence
