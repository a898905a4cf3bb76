"""Rows of how well the next hour's capacity of a zone is forecast, on the later half of each set of zones.

Three forecasts: by what a zone shows now alone (persistence: how often zones that have capacity have it an hour
later, and how often those that have none), by the kind and age of its spell (independence), and by these and its
neighbours in the region. All are fitted to the first half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.forecasts.capacity.records import ZoneRecords
from ebbtide.market.price_series import Floats
from ebbtide_papers.deadlines.regions import (
    fit_region_model,
    own_forecast,
    seen_of_neighbours,
    shared_ends,
)
from ebbtide_papers.deadlines.zones import past_models
from ebbtide_papers.reproduction import ClaimRow, PaperClaim, at_most, ratio

_LEAST = 1e-4

# Hours of the pooled zones that a zone's own persistence is drawn towards.
_POOLED_H = 20.0

_NOT_SETS = "no file given has several zones that were probed together"


@dataclass(frozen=True)
class ForecastScores:
    """The log loss of each forecast on the later half of one set of zones.

    Attributes:
        name: Name of the set.
        forecasts: Number of forecasts: zones times ticks.
        persistence: Log loss by what a zone shows now.
        independence: Log loss by its own spell.
        region: Log loss by its own spell and its neighbours.
        shared_ends: Share of ends that zones of a region have in common, over the whole record.
    """

    name: str
    forecasts: int
    persistence: float
    independence: float
    region: float
    shared_ends: float


def forecast_claims() -> dict[str, PaperClaim]:
    """The claims, by id."""
    return {
        "forecast_log_loss_vs_independence": PaperClaim(
            "log loss of the next hour's capacity, with the neighbours in the region / by each zone's own spell",
            None,
            "ratio",
            at_most(0.995, "at least 0.5 % lower"),
        ),
        "forecast_log_loss_vs_persistence": PaperClaim(
            "the same / by what the zone shows now", None, "ratio", at_most(0.95, "at least 5 % lower")
        ),
    }


def forecast_rows(scores: Sequence[ForecastScores]) -> list[ClaimRow]:
    """The rows: mean log loss over all forecasts of all sets, as ratios."""
    weights = np.array([one.forecasts for one in scores], dtype=float)

    def mean(name: str) -> float:
        return float(np.average([getattr(one, name) for one in scores], weights=weights))

    return [
        claim.row(
            row_id,
            ratio(mean("region"), mean(row_id.rpartition("_")[2])) if len(scores) else None,
            missing=_NOT_SETS,
        )
        for row_id, claim in forecast_claims().items()
    ]


def forecast_table(scores: Sequence[ForecastScores]) -> list[dict[str, Any]]:
    """The scores of each set."""
    return [vars(one).copy() for one in scores]


def score_forecasts(records: ZoneRecords) -> ForecastScores:
    """Score all three forecasts on the later half of a set of zones, fitted to the first."""
    half, ahead = records.ticks // 2, max(round(HOUR_S / records.tick_s), 1)
    models, _ = past_models(records, half)
    own = own_forecast(records, models)
    usual = records.available[:, :half].mean(axis=1)
    seen = seen_of_neighbours(records, usual)
    up = records.available
    past, later = slice(0, half - ahead), slice(half, records.ticks - ahead)
    truth = up[:, ahead:]
    fitted = fit_region_model(own[:, past], up[:, past], seen[:, past], truth[:, past])
    told = truth[:, later]
    shown = up[:, later].astype(int)
    lasting = _persistence(up[:, past], truth[:, past], _POOLED_H * HOUR_S / records.tick_s)
    return ForecastScores(
        records.name,
        int(told.size),
        _log_loss(np.take_along_axis(lasting, shown, axis=1), told),
        _log_loss(own[:, later], told),
        _log_loss(fitted.forecast(own[:, later], up[:, later], seen[:, later]), told),
        shared_ends(up, [place.region for place in records.places], records.tick_s),
    )


def _persistence(up: np.ndarray, later: np.ndarray, pooled: float) -> Floats:
    """Share of times that each zone has capacity an hour later, if it has none now or some, shape (zones, 2)."""
    found = np.empty((len(up), 2))
    for kind in (0, 1):
        of_kind = up == bool(kind)
        usual = float(later[of_kind].mean()) if of_kind.any() else 0.5
        found[:, kind] = ((later & of_kind).sum(1) + pooled * usual) / (of_kind.sum(1) + pooled)
    return found


def _log_loss(chance: Floats, truth: np.ndarray) -> float:
    chance = np.clip(chance, _LEAST, 1.0 - _LEAST)
    return float(-np.mean(np.where(truth, np.log(chance), np.log(1.0 - chance))))
