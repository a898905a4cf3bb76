"""Running a policy once: in replay, or for real on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ebbtide._utc import Time, to_epoch_s
from ebbtide.engine.engine import run_policy
from ebbtide.engine.outcome import Outcome
from ebbtide.engine.provider import Provider
from ebbtide.errors import InputError, unknown_name
from ebbtide.jobs.job import Job
from ebbtide.live.local_trainings import MIN_NOTICE_S, LocalProvider
from ebbtide.market.billing import Billing, billing_preset
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.generator import generate_prices
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.protocol import Policy
from ebbtide.simulation.replay import ReplayProvider
from ebbtide.simulation.replayed_market import ReplayedMarket
from ebbtide.simulation.start_delay import StartDelay

PROVIDERS = ("replay", "local")

# By default the local clock is set so that the job's work takes about this long on the fastest machine.
_LOCAL_WORK_S = 6.0


def run(
    policy: Policy,
    job: Job | Sequence[Job],
    provider: str = "replay",
    *,
    prices: PriceHistory | None = None,
    start: Time | None = None,
    billing: str | Billing = "ec2-second",
    seed: int = 0,
    speed: float | None = None,
    folder: str | Path | None = None,
    delay: StartDelay | None = None,
    catalogue: Catalogue | None = None,
) -> Outcome:
    """Run one policy once, with its timeline recorded.

    Args:
        policy: Decides.
        job: One job, or several.
        provider: `replay` simulates training in no time; `local` runs real training processes on this machine,
            on a market clock that runs faster than the real one.
        prices: The market; a generated one by default.
        start: When to begin; by default a quarter into the record.
        billing: Of spot leases.
        seed: Of the policy's random numbers, and of a generated market.
        speed: Market seconds in a real one, for `local`; by default so that the job takes some ten seconds on
            the fastest machine. Notices then last longer than billing says, in market time: half a real second.
        folder: Where `local` keeps checkpoints; by default a temporary one, removed at the end.
        delay: How long machines take to start.
        catalogue: Instance types and list prices.

    Returns:
        What came of it; print it for a summary.

    Raises:
        InputError: An unknown provider or preset, a start outside the record, a job that no machine here can
            run, or training that failed.
    """
    if provider not in PROVIDERS:
        raise unknown_name("provider", provider, PROVIDERS)
    jobs = (job,) if isinstance(job, Job) else tuple(job)
    if not jobs:
        raise InputError("no job to run; give one or more")
    catalogue = catalogue or default_catalogue()
    rule = billing_preset(billing) if isinstance(billing, str) else billing
    prices = prices or generate_prices(seed=seed)
    start_s = to_epoch_s(start) if start is not None else prices.start_s + (prices.end_s - prices.start_s) // 4
    fastest_s = max(_fastest_s(each, prices, catalogue) for each in jobs)
    if provider == "replay":
        market = ReplayedMarket(prices, start_s, rule, delay=delay)
        return _run(policy, jobs, ReplayProvider(market, catalogue=catalogue), rule, catalogue, seed)
    speed = speed or max(fastest_s / _LOCAL_WORK_S, 1.0)
    rule = replace(rule, notice_s=max(rule.notice_s, MIN_NOTICE_S * speed))
    market = ReplayedMarket(prices, start_s, rule, delay=delay)
    with tempfile.TemporaryDirectory(prefix="ebbtide-") as temporary:
        place = Path(folder) if folder is not None else Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        local = LocalProvider(market, place, speed, catalogue=catalogue)
        return _run(policy, jobs, local, rule, catalogue, seed)


def _run(
    policy: Policy, jobs: Sequence[Job], provider: Provider, billing: Billing, catalogue: Catalogue, seed: int
) -> Outcome:
    return run_policy(policy, jobs, provider, billing, catalogue=catalogue, seed=seed, record=True)


def _fastest_s(job: Job, prices: PriceHistory, catalogue: Catalogue) -> float:
    rates = [job.steps_per_s(market.cloud, market.instance_type, catalogue) for market in prices]
    if not max(rates) > 0:
        here = ", ".join(sorted({market.instance_type for market in prices}))
        raise InputError(f"job {job.name} has no rate for any instance type of these prices ({here})")
    return job.steps / max(rates)
