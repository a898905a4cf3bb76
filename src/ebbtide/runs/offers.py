"""Present offers: what could be rented for a run before it begins, and what the run would cost there."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.providers import PROVIDERS, Machines
from ebbtide.clouds.settings import RunFolder
from ebbtide.jobs.job import UNKNOWN_STEPS
from ebbtide.jobs.job_list import Runnable
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.quotes import KnownQuotes
from ebbtide.policies.deepspotcloud.policy import ranked


@dataclass(frozen=True)
class MarketOffer:
    """A market on whose spot machines a job could be trained now, if prices stay as they are.

    Attributes:
        job: Name of the job, or of the first trial of a sweep.
        market: The market.
        machines: Most machines that the job takes.
        spot_usd_per_hour: Spot price of one of them, USD per hour.
        on_demand_usd_per_hour: List price of one of them, USD per hour; None: it is not known.
        work_h: Hours of work of all its trials, one after the other; NaN: speed or steps are not known.
    """

    job: str
    market: Market
    machines: int
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float | None
    work_h: float

    @property
    def expected_usd(self) -> float:
        """Cost of the work at the spot price, without starts and interruptions, USD; NaN: not known."""
        return self.spot_usd_per_hour * self.machines * self.work_h


def prices_now(work: Runnable, machines: Machines, catalogue: Catalogue) -> PriceHistory:
    """The newest known prices of the markets that a run on rented machines allows; nothing is rented or kept.

    Raises:
        InputError: No price is known, or none in a market that the run allows.
        CloudError: A cloud does not answer.
    """
    found: dict[Market, PriceSeries] = {}
    with tempfile.TemporaryDirectory(prefix="ebbtide-") as place:
        folder = RunFolder(Path(place))
        if catalogue is not default_catalogue():
            catalogue.write(folder.catalogue_file)
        for name, settings in machines.items():
            found.update(PROVIDERS[name].prices(folder, work, settings)())
    return PriceHistory(found)


def offers_of(
    work: Runnable, prices: PriceHistory, time_s: float, catalogue: Catalogue, most: int = 5
) -> list[MarketOffer]:
    """The best offers for each job, those of least cost per step first.

    Args:
        work: What is to be trained.
        prices: Prices of the allowed markets.
        time_s: Time of the offers, seconds since 1970.
        catalogue: Instance types and list prices.
        most: Most offers for each job.
    """
    known = {market: series.at(time_s) for market, series in prices.items()}
    quotes = KnownQuotes({one: usd for one, usd in known.items() if not math.isnan(usd)}, catalogue, time_s)
    found = []
    for part in work.parts:
        jobs = part.live_jobs(catalogue)
        steps = sum(job.steps for job in jobs)
        is_known = part.is_measured and jobs[0].steps < UNKNOWN_STEPS
        speedup = jobs[0].speedup_of(jobs[0].most_machines)
        for market in [one for one in ranked(quotes, jobs[0]) if part.allows(one, catalogue)][:most]:
            rate = quotes.steps_per_s(jobs[0], market) * speedup
            found.append(
                MarketOffer(
                    part.name,
                    market,
                    jobs[0].most_machines,
                    known[market],
                    quotes.on_demand_price(market),
                    steps / rate / HOUR_S if is_known else math.nan,
                )
            )
    return found
