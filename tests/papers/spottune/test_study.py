"""SpotTune's study, small: every claim is there, figures follow from the outcomes, the same bytes twice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.forecasts.learning_curves.curves import write_curves
from ebbtide.forecasts.learning_curves.methods import table_two_curves
from ebbtide.market.generator import demo_markets
from ebbtide_papers.spottune.study import moving_share, refunded_share, study
from ebbtide_papers.spottune.sweeps import PARALLEL, TRIAL_HOURS, sweeps_of

IDS = [
    "cost_saving_full_vs_cheapest",
    "cost_saving_full_vs_fastest",
    "cost_saving_theta07_vs_full",
    "cost_saving_theta07_vs_cheapest",
    "cost_saving_theta07_vs_fastest",
    "jct_speedup_theta07_vs_cheapest",
    "jct_ratio_theta07_vs_fastest",
    "pcr_full_vs_cheapest",
    "pcr_full_vs_fastest",
    "pcr_theta07_vs_cheapest",
    "pcr_theta07_vs_fastest",
    "refunded_step_share",
    "checkpoint_restore_share",
    *(f"{key}_accuracy_theta0{tenths}" for tenths in (7, 8, 9) for key in ("top1", "top3")),
    "earlycurve_error_vs_slaq_theta07",
    "step_time_variation",
    "revpred_accuracy_vs_tributary",
    "revpred_f1_vs_tributary",
    "revpred_vs_tributary_cost",
    "chosen_forecast_vs_revpred_cost",
    "speed_noise_cost_ratio",
    "no_refund_cost_vs_cheapest",
    "cost_saving_bid_vs_cheapest",
    "bid_share_of_distance_to_foresight",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prices of three markets and curves of two workloads, in one folder."""
    folder = tmp_path_factory.mktemp("study")
    eb.generate_prices(demo_markets()[:3], days=9, seed=2, kind="auction").write(folder / "prices.parquet")
    write_curves([c for c in table_two_curves() if c.workload in ("svm", "resnet")], folder / "curves.parquet")
    return folder


def reproduce(folder: Path, out: str) -> dict[str, object]:
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "reproduce",
                "spottune",
                "--prices",
                str(folder / "prices.parquet"),
                "--quick",
                "--json",
                str(folder / out),
                "--curves",
                str(folder / "curves.parquet"),
            ]
        )
    assert not ended.value.code
    content: dict[str, object] = json.loads((folder / out).read_text())
    return content


@pytest.mark.exhaustive
def test_every_claim_is_told_with_the_papers_figure_and_ours(small: Path) -> None:
    content = reproduce(small, "one.json")
    rows = {row["id"]: row for row in content["rows"]}  # type: ignore[attr-defined]
    assert list(rows) == IDS
    for row in rows.values():
        assert isinstance(row["ours"], float)
        assert set(row["tolerance"]) == {"text", "least", "most"}
    assert set(content["inputs"]) == {"prices.parquet", "curves.parquet"}  # type: ignore[call-overload]
    by_policy = content["tables"]["by_policy"]  # type: ignore[index]
    full, cheapest = (
        np.mean(list(by_policy[name]["cost_usd"].values())) for name in ("spottune-full", "cheapest-spot")
    )
    assert rows["cost_saving_full_vs_cheapest"]["ours"] == pytest.approx(1 - full / cheapest)
    assert rows["cost_saving_full_vs_cheapest"]["holds"] == (full <= (1 - 0.415 / 2) * cheapest)


@pytest.mark.exhaustive
def test_the_same_bytes_twice(small: Path) -> None:
    reproduce(small, "two.json")
    reproduce(small, "three.json")
    assert (small / "two.json").read_bytes() == (small / "three.json").read_bytes()


def test_trials_keep_their_sizes_and_the_mean_is_as_said() -> None:
    prices = eb.generate_prices(demo_markets()[:3], days=2, seed=1, kind="auction")
    curves = [curve for curve in table_two_curves() if curve.workload == "svm"]
    (sweep,) = sweeps_of(curves, prices, eb.default_catalogue())
    assert len(sweep.jobs) == 16
    kind = next(iter(sweep.jobs[0].steps_per_hour))
    hours = [job.steps / job.steps_per_hour[kind] for job in sweep.jobs]
    spent = [curve.train_seconds[-1] for curve in curves if curve.train_seconds is not None]
    np.testing.assert_allclose(np.array(hours) / np.mean(hours), np.array(spent) / np.mean(spent))
    assert 0.5 * TRIAL_HOURS < np.mean(hours) < 2.0 * TRIAL_HOURS
    assert 0 < PARALLEL < 1


def test_a_history_too_short_is_told() -> None:
    prices = eb.generate_prices(demo_markets()[:3], days=2, seed=1, kind="auction")
    with pytest.raises(InputError, match="the history has 48 h"):
        study(prices, [curve for curve in table_two_curves() if curve.workload == "svm"], starts=1)


def test_shares_by_hand() -> None:
    prices = eb.generate_prices(demo_markets()[:3], days=9, seed=2, kind="auction")
    job = eb.Job(
        name="j", steps=1000, steps_per_hour=dict.fromkeys({m.instance_type for m in prices.markets}, 500.0)
    )
    result = eb.backtest(job, [eb.policies.CheapestSpot()], prices, starts=1, seed=1)
    (outcome,) = result.outcomes["cheapest-spot"]
    assert refunded_share(outcome) == 0.0
    # Restored once for 60 s, saved once for 30 s, trained for two hours.
    assert moving_share(outcome) == pytest.approx(90 / 7200)
