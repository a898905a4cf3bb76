"""Scores of hazards and rivals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.conftest import TRACES
from tests.forecasts.hazard.test_fitting import drawn

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.hazard.evaluation import (
    ESTIMATES,
    HazardScore,
    _scored,
    calibration_error,
    evaluate_hazard,
)
from ebbtide.forecasts.hazard.observations import read_observations


def by_estimate(rows: tuple[HazardScore, ...], data: str, event: str, horizon_s: float) -> dict[str, HazardScore]:
    found = [row for row in rows if (row.data, row.event, row.horizon_s) == (data, event, horizon_s)]
    return {row.estimate: row for row in found}


@pytest.mark.long
def test_a_drawn_record() -> None:
    """Machines of one zone go eight times as often: models of markets beat a constant, and are calibrated."""
    record = [drawn("a", 0.1, 1), drawn("b", 0.8, 2), drawn("c", 0.3, 3)]
    found = evaluate_hazard(record, "drawn")
    assert {row.estimate for row in found.rows} == set(ESTIMATES)
    hour = by_estimate(found.rows, "drawn", "loss", HOUR_S)
    assert hour["hazard"].log_loss < 0.98 * hour["constant"].log_loss
    assert hour["hazard"].calibration_error < 0.05
    assert hour["hazard"].n == hour["prices"].n > 1000
    # What really happens: no estimate can be better than the rates themselves.
    rates = {"a": 0.1, "b": 0.8, "c": 0.3}
    chances, happened = found.chances["loss", HOUR_S]
    assert len(chances) == len(happened) == hour["hazard"].n
    assert hour["hazard"].happened == pytest.approx(
        np.mean([-np.expm1(-rate) for rate in rates.values()]), abs=0.12
    )
    left_out = by_estimate(found.rows, "drawn, zones left out", "loss", HOUR_S)
    assert left_out["hazard"].log_loss < left_out["constant"].log_loss


def test_nothing_of_a_market_that_is_left_out_is_learnt() -> None:
    """Its first part may be anything: what is learnt and what is said of its later part stay the same."""
    record = [drawn(name, rate, seed, 1200) for name, rate, seed in (("a", 0.1, 1), ("b", 0.8, 2), ("c", 0.3, 3))]
    split_s = np.full(3, 700 * 600.0)
    other = drawn("c", 2.0, 9, 1200)
    flipped = replace(record[2], is_up=np.where(record[2].times_s < split_s[2], other.is_up, record[2].is_up))
    for key, found in _scored(record, split_s, frozenset({2}), None).chances.items():
        again = _scored([*record[:2], flipped], split_s, frozenset({2}), None).chances[key]
        for name in ESTIMATES:
            assert np.array_equal(found[name], again[name]), (key, name)


def test_a_first_part_without_observations_is_an_error() -> None:
    with pytest.raises(InputError, match="no market with two observations"):
        evaluate_hazard([drawn("a", 0.1, 1, 2)], "x")


def test_calibration_by_hand() -> None:
    chances = np.array([0.2] * 10 + [0.8] * 10)
    happened = np.array([1.0] * 2 + [0.0] * 8 + [1.0] * 5 + [0.0] * 5)
    assert calibration_error(chances, happened) == pytest.approx(0.5 * 0.0 + 0.5 * 0.3)
    # Equal chances stay together, whatever the order.
    assert calibration_error(np.full(20, 0.35), happened) == pytest.approx(0.0)


def test_shares_that_leave_nothing_are_errors() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        evaluate_hazard([drawn("a", 0.1, 1, 50)], "x", learnt_share=1.0)


@pytest.mark.long
@pytest.mark.real_traces
def test_the_hazard_beats_its_rivals_on_recorded_capacity() -> None:
    record = read_observations(TRACES / "gcp-h100-capacity-2025.parquet", lambda *_: None)
    rows = evaluate_hazard(record, "h100").rows
    for data in ("h100", "h100, zones left out"):
        for horizon_s in (600.0, HOUR_S, 6 * HOUR_S):
            own = by_estimate(rows, data, "loss", horizon_s)
            assert min(own, key=lambda name: own[name].log_loss) == "hazard"
