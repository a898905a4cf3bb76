"""Replays of `DeepSpotCloud` by the thousand: a scenario as plain numbers for compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebbtide.base.compiled_records import (
    LEASE,
    MAX_LEASES,
    MAX_OPEN,
    MAX_TIMERS,
    MOVE_CHEAPER,
    MOVE_NEVER,
    MOVE_PERIOD_END,
    MOVE_WORTHWHILE,
    NONE,
    RULE,
    STATE,
    World,
)
from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.jobs.job import Coupling, Job
from ebbtide.market.billing import Charged
from ebbtide.market.price_series import Floats
from ebbtide.policies.deepspotcloud.policy import LOOK_S, MARGIN_S, RETRY_S, DeepSpotCloud, MoveWhen
from ebbtide.replay.replay import SAVE_MARGIN_S
from ebbtide.replay.replayed_market import cleared_prices
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.simulated_training import CLOCK_S, STEP_TOLERANCE
from ebbtide.replay.start_delay import MeasuredStartDelay, StartDelay
from ebbtide_papers.deepspotcloud.compiled.market import charging_of, cheapest_of, tape_of
from ebbtide_papers.deepspotcloud.compiled.migration import replay

_WHEN = {
    MoveWhen.NEVER: MOVE_NEVER,
    MoveWhen.CHEAPER: MOVE_CHEAPER,
    MoveWhen.PERIOD_END: MOVE_PERIOD_END,
    MoveWhen.WORTHWHILE: MOVE_WORTHWHILE,
}

# Starts that one thread takes at a time.
_CHUNK = 25


@dataclass(frozen=True, eq=False)
class MigrationResults:
    """Results of one policy from many starts; arrays of shape (starts,).

    Attributes:
        cost_usd: Cost after refunds, with egress, USD.
        egress_usd: Egress part of the cost, USD.
        makespan_s: Seconds from the start to the job's end; NaN if the record ended first.
        machines: Number of machines that were charged.
        revocations: Number of machines that the provider revoked.
        steps_lost: Steps that had to be run again.
    """

    cost_usd: Floats
    egress_usd: Floats
    makespan_s: Floats
    machines: NDArray[np.int64]
    revocations: NDArray[np.int64]
    steps_lost: Floats


class MigrationReplays:
    """`DeepSpotCloud` in one scenario, compiled; costs agree to the cent with the scenario's own `run`.

    Args:
        scenario: A scenario of one job on one machine at a time that is saved only to move, without a bucket of
            its checkpoints and without a record of capacity.

    Raises:
        InputError: The scenario is of another kind.
    """

    def __init__(self, scenario: Scenario) -> None:
        _check(scenario)
        self._scenario = scenario
        self._tape = tape_of(cleared_prices(scenario.prices, scenario.billing), scenario.catalogue)
        self._pairs = _describe_markets(scenario, self._tape.markets)
        self._cheapest = cheapest_of(self._tape)
        self._delays = _delays(scenario.delay)

    def run(self, policy: DeepSpotCloud, starts_s: Sequence[float], *, workers: int = 2) -> MigrationResults:
        """Replay the policy from every start (seconds since 1970), on `workers` threads."""
        rule = _rule(self._scenario, policy)
        found = np.zeros(len(starts_s), dtype=STATE)
        chunks = [range(low, min(low + _CHUNK, len(starts_s))) for low in range(0, len(starts_s), _CHUNK)]

        def replay_chunk(chunk: range) -> None:
            world = World(
                self._tape.points,
                self._tape.markets,
                self._cheapest,
                self._pairs,
                self._delays,
                rule,
                np.zeros(MAX_LEASES, dtype=LEASE),
                np.zeros(MAX_OPEN, np.int64),
                np.zeros(MAX_TIMERS),
            )
            for n in chunk:
                replay(world, found[n], starts_s[n])

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(replay_chunk, chunks))
        if found["overflow"].any():
            raise InputError(
                f"a run of {policy.name} has more than {MAX_LEASES} machines; give the job fewer steps"
            )
        return MigrationResults(
            found["cost_usd"] + found["egress_usd"],
            found["egress_usd"],
            found["finished_s"] - np.asarray(starts_s),
            found["charged"],
            found["revoked"],
            found["lost"],
        )


def _rule(scenario: Scenario, policy: DeepSpotCloud) -> Any:
    """The settings of policy, job and billing as one record."""
    job = scenario.jobs[0]
    rules = np.zeros(1, dtype=RULE)
    values = charging_of(scenario.billing) | {
        "when": _WHEN[policy.when],
        "overlap": policy.overlap,
        "lead_s": policy.lead_s,
        "moves_per_day": policy.moves_per_day,
        "charged_boot_s": policy.boot_s,
        "stay_s": policy.stay_h * HOUR_S,
        "retry_s": RETRY_S,
        "look_s": LOOK_S,
        "margin_s": MARGIN_S,
        "save_margin_s": SAVE_MARGIN_S,
        "steps": job.steps,
        "tolerance": STEP_TOLERANCE,
        "clock_s": CLOCK_S,
        "dataset_s": job.dataset.copy_s if job.dataset else 0.0,
        "dataset_cloud": _clouds(scenario).index(job.dataset.cloud) if job.dataset else NONE,
        "end_s": scenario.prices.end_s,
    }
    for name, value in values.items():
        rules[name] = value
    return rules[0]


def _describe_markets(scenario: Scenario, markets: Any) -> Floats:
    """Fill in the job's speed and times in each market; returns seconds and USD to move its checkpoint from place
    to place."""
    job, catalogue, egress = scenario.jobs[0], scenario.catalogue, scenario.egress
    places, clouds = sorted({market.place for market in scenario.prices}), _clouds(scenario)
    checkpoint, dataset = job.checkpoint, job.dataset
    assert checkpoint is not None
    for record, market in zip(markets, scenario.prices, strict=True):
        cores = catalogue.instance_type(market.cloud, market.instance_type).vcpus
        record["steps_per_s"] = job.steps_per_s(market, catalogue)
        record["save_s"], record["restore_s"] = job.save_s(cores), job.restore_s(cores)
        record["place"], record["cloud"] = places.index(market.place), clouds.index(market.cloud)
        if dataset is not None and market.cloud != dataset.cloud:
            record["dataset_usd"] = egress.usd(dataset.size_bytes, dataset.home, market.place)
    pairs = np.zeros((2, len(places), len(places)))
    for one, source in enumerate(places):
        for other, destination in enumerate(places):
            pairs[0, one, other] = job.restore_s(1, source, destination) - job.restore_s(1)
            pairs[1, one, other] = egress.usd(checkpoint.size_bytes, source, destination)
    return pairs


def _clouds(scenario: Scenario) -> list[str]:
    dataset = scenario.jobs[0].dataset
    return sorted({market.cloud for market in scenario.prices} | ({dataset.cloud} if dataset else set()))


def covers(job: Job) -> bool:
    """Return whether compiled replays support jobs of this kind."""
    saves = job.checkpoint is not None and job.checkpoint.interval_s is None
    is_alone = job.coupling is Coupling.GANG and job.most_machines == 1
    return saves and is_alone and job.speedup_of(1) == 1.0 and job.bucket is None


def _check(scenario: Scenario) -> None:
    if len(scenario.jobs) != 1 or not covers(scenario.jobs[0]):
        raise InputError(
            "compiled replays are of one job that can be saved, is saved only to move, and has no bucket; "
            "`ebbtide.backtest` replays others"
        )
    if scenario.availability is not None or scenario.billing.charged is Charged.ON_DEMAND:
        raise InputError("compiled replays know no capacity and no on-demand billing of spot machines")
    if scenario.billing.clouds:
        raise InputError(f"compiled replays have one rule of billing, and {scenario.billing.name} has several")
    if scenario.speed_noise > 0.0:
        raise InputError("compiled replays know no machines that differ from others of their type")


def _delays(delay: StartDelay | MeasuredStartDelay) -> Floats:
    if isinstance(delay, StartDelay):
        return np.array([[delay.request_s, delay.boot_s]])
    return np.stack(delay.split_s, axis=1)
