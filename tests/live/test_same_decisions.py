"""The policy that is backtested is the policy that runs: one tape, replayed and lived, the same decisions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.live.virtual_clock import run_live
from tests.small_bundle import small_bundle

import ebbtide as eb
from ebbtide._utc import DAY_S
from ebbtide.engine.outcome import Outcome
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.job import Checkpointing
from ebbtide.market.billing import billing_preset
from ebbtide.policies.spottune.policy import SpotTune
from ebbtide.simulation.scenario import Scenario
from ebbtide.simulation.start_delay import StartDelay

TRAINED_DAYS = 8.0
# Short steps: a live run knows progress in whole ones.
STEPS, PER_HOUR = 8000, 400.0
CHECKPOINT = Checkpointing(save_s=20, restore_s=40)
# A machine boots at once: of a notice before that, a live run learns only when there is an agent to tell it.
DELAY = StartDelay(20.0, 0.0)
POLICIES = (
    "on-demand",
    "reactive",
    "spottune",
    "spottune-bid",
    "deepspotcloud-best-price",
    "deepspotcloud-migrate",
    "dynamic-pricing-cost",
    "exosphere",
    "deadline",
)


@pytest.fixture(scope="module")
def prices() -> eb.PriceHistory:
    return eb.generate_prices(days=14, seed=5)


@pytest.fixture(scope="module")
def bundle(prices: eb.PriceHistory, tmp_path_factory: pytest.TempPathFactory) -> eb.ModelBundle:
    known = prices.window(prices.start_s, prices.start_s + TRAINED_DAYS * DAY_S)
    return small_bundle(known, tmp_path_factory.mktemp("bundle") / "models")


def _job(number: int = 0, steps: int = STEPS) -> eb.Job:
    name = f"hours-{number}"
    return eb.Job(name=name, steps=steps, other_steps_per_hour_per_vcpu=PER_HOUR, checkpoint=CHECKPOINT)


def _decisions(outcome: Outcome) -> list[tuple[object, ...]]:
    """What was rented, at what max price, when, and when and how it ended; times to the second."""
    return [
        (
            str(lease.market),
            lease.on_demand,
            lease.max_price_usd_per_hour,
            round(lease.requested_s),
            str(lease.state),
            round(lease.ended_s),
        )
        for lease in outcome.leases
    ]


def _both(scenario: Scenario, policy: eb.Policy, start_s: float) -> tuple[Outcome, Outcome]:
    with pytest.MonkeyPatch.context() as patches:
        lived = run_live(scenario, policy, start_s, patches)
    return scenario.run(policy, start_s, record=True), lived


@pytest.mark.parametrize("name", POLICIES)
def test_a_live_run_decides_as_the_backtest_does(
    name: str, prices: eb.PriceHistory, bundle: eb.ModelBundle
) -> None:
    scenario = Scenario((_job(),), prices, billing_preset("ec2-hourly"), seed=3, delay=DELAY)
    replayed, lived = _both(scenario, eb.policy(name, bundle), prices.start_s + 11 * DAY_S)
    assert _decisions(lived) == _decisions(replayed)
    assert lived.cost_usd == pytest.approx(replayed.cost_usd, abs=1e-9)
    assert lived.revocations == replayed.revocations
    assert lived.finished


def test_spottune_selects_the_same_trials(prices: eb.PriceHistory, bundle: eb.ModelBundle) -> None:
    steps = np.arange(100.0, 2001.0, 100.0)
    curves = tuple(
        Curve("net", f"trial {number}", steps, 0.2 * (number + 1) + 50.0 / steps, 2000.0) for number in range(3)
    )
    jobs = tuple(_job(number, 2000) for number in range(3))
    scenario = Scenario(jobs, prices, billing_preset("ec2-hourly"), seed=3, delay=DELAY, curves=curves)
    spottune = eb.policy("spottune", bundle)
    assert isinstance(spottune, SpotTune)
    replayed, lived = _both(scenario, replace(spottune, mcnt=1), prices.start_s + 11 * DAY_S)
    assert _decisions(lived) == _decisions(replayed)
    assert [job.stopped for job in lived.jobs] == [job.stopped for job in replayed.jobs]
    # Some were stopped at theta, and the best was not.
    assert not replayed.jobs[0].stopped
    assert any(job.stopped for job in replayed.jobs)
