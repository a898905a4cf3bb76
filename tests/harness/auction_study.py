"""Cost of the default policy in generated auctions of random harshness: `python -m tests.harness.auction_study`.

Each auction has its own profile: prices may stand above the list price for days, jump many times a day, or hardly
move. The default policy and simple rules do the work of `ebbtide benchmark` in each, from the same starts. Written
to reports/auctions.json, with a row for each auction, billing rule and kind of work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from tests.harness.study import failed, run_study

import ebbtide as eb
from ebbtide.backtesting.benchmark import replays_of
from ebbtide.backtesting.benchmark_records import BenchmarkRecord, read_benchmark_records
from ebbtide.backtesting.benchmark_starts import CellRuns
from ebbtide.backtesting.benchmark_work import KINDS, BenchmarkWork, works_of
from ebbtide.base.cores import in_processes
from ebbtide.market.generator import MarketProfile, generate_auction_prices
from ebbtide.policies.for_job import policy_for
from ebbtide.policies.registry import DEFAULT_NAME

# Each serves every kind of work.
RULES = ("reactive", "next-cheapest", "greedy-spot", "cheapest-spot", "on-demand")
_TYPES = ("c3.xlarge", "r3.large")
_DAYS = 28.0
# The most that the default policy may cost, as a multiple of the cheapest rule that is late least often.
_TIMES = 1.25


@dataclass(frozen=True)
class AuctionCosts:
    """Mean costs of one kind of work in one generated auction, by the default policy and by simple rules.

    Attributes:
        name: The auction's number, its first day, its machines and the billing rule.
        kind: Kind of work.
        profile: Properties of the prices.
        cost_usd: Mean cost of the default policy, USD.
        rule: The cheapest of the simple rules that are late least often.
        rule_usd: Its mean cost, USD.
        late: Starts in which the default policy was late, or did not finish.
        late_on_demand: The same of on-demand machines.
    """

    name: str
    kind: str
    profile: dict[str, float]
    cost_usd: float
    rule: str
    rule_usd: float
    late: int
    late_on_demand: int

    @property
    def problems(self) -> list[str]:
        """Failed checks, in words; empty if all hold."""
        return failed(
            {
                f"{self.kind}: costs {self.cost_usd:.3f} USD, with {self.rule} {self.rule_usd:.3f}": (
                    self.cost_usd <= _TIMES * self.rule_usd
                ),
                f"{self.kind}: late in {self.late} starts": self.late <= self.late_on_demand,
            }
        )


def studied(place: Path, auctions: int, starts: int, seed: int) -> Sequence[AuctionCosts]:
    """Generate auctions, and do every kind of work in each.

    Args:
        place: Folder for the prices.
        auctions: Number of auctions.
        starts: Starts of each kind of work.
        seed: Seed of the first auction; the others have the following ones.
    """
    found = in_processes(partial(_costs, place, starts), range(seed, seed + auctions))
    return [row for rows in found for row in rows]


def _costs(place: Path, starts: int, number: int) -> list[AuctionCosts]:
    folder = place / f"auction-{number}"
    folder.mkdir()
    profile = write_auction(folder / f"auction-{number}.parquet", number)
    return [row for record in read_benchmark_records(folder)[0] for row in _rows(record, profile, starts)]


def _rows(record: BenchmarkRecord, profile: dict[str, float], starts: int) -> Iterator[AuctionCosts]:
    for work in works_of(record, KINDS, starts, 0):
        ours, on_demand = runs_of(record, work, DEFAULT_NAME), runs_of(record, work, "on-demand")
        rules = {name: runs_of(record, work, name) for name in RULES}
        least = min(runs.misses for runs in rules.values())
        usd, rule = min((np.mean(runs.costs_usd), name) for name, runs in rules.items() if runs.misses == least)
        yield AuctionCosts(
            name=record.name,
            kind=work.kind,
            profile=profile,
            cost_usd=float(np.mean(ours.costs_usd)),
            rule=rule,
            rule_usd=float(usd),
            late=ours.misses,
            late_on_demand=on_demand.misses,
        )


def runs_of(record: BenchmarkRecord, work: BenchmarkWork, name: str) -> CellRuns:
    """Replay a policy by name from all starts of a work."""
    policy = policy_for(work.asked, name, catalogue=record.catalogue)
    return replays_of(record, work, policy, work.starts_s)


def write_auction(path: Path, number: int) -> dict[str, float]:
    """Write the prices of an auction of random harshness, and return its profile."""
    random = np.random.default_rng(number)

    def between(low: float, high: float) -> float:
        return float(np.exp(random.uniform(np.log(low), np.log(high))))

    profile = {
        "ratio": between(0.08, 0.9),
        "change_interval_min": between(3.0, 120.0),
        "spikes_per_day": between(0.1, 20.0),
        "spike_length_min": between(3.0, 120.0),
        "spike_height": between(1.2, 8.0),
        "share_stuck": float(random.uniform(0.0, 0.7)),
    }
    zones, types = "abc"[: int(random.integers(1, 4))], _TYPES[: int(random.integers(1, 3))]
    markets = [eb.Market("aws", "us-east-1", f"us-east-1{zone}", kind) for zone in zones for kind in types]
    generate_auction_prices(markets, days=_DAYS, seed=number, profile=MarketProfile(**profile)).write(path)
    return profile


if __name__ == "__main__":
    run_study(__doc__, "reports/auctions.json", studied, auctions=100, starts=4, seed=0)
