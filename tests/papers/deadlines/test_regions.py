"""What zones of a region tell of each other: by hand, and on zones that are drawn together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, SpellModel
from ebbtide.forecasts.capacity.records import ZoneRecords
from ebbtide.market.markets import Place
from ebbtide_papers.deadlines.regions import (
    RegionModel,
    fit_region_model,
    own_forecast,
    seen_of_neighbours,
    shared_ends,
)

TICK_S = 600.0


def records(available: np.ndarray, regions: list[str]) -> ZoneRecords:
    names = tuple(f"{region}-{place}" for place, region in enumerate(regions))
    places = tuple(Place("gcp", region) for region in regions)
    return ZoneRecords("drawn", "h100", names, places, 1, available, np.ones(available.shape), 9.0, TICK_S, 0.0)


def flat(per_hour: float) -> SpellModel:
    return SpellModel(np.full((2, len(AGE_BINS_S)), per_hour))


def test_zones_that_lose_everything_together_and_zones_that_do_not() -> None:
    tick = np.arange(3_000)
    one = (tick % 300) < 200
    assert shared_ends(np.stack([one, one]), ["a", "a"], TICK_S) == pytest.approx(1.0, abs=0.05)
    other = ((tick + 137) % 300) < 200
    assert shared_ends(np.stack([one, other]), ["a", "a"], TICK_S) == 0.0
    assert math.isnan(shared_ends(np.stack([one, one]), ["a", "b"], TICK_S))


def test_the_next_hour_by_the_own_spell_by_hand() -> None:
    """Spells that end at a rate of one an hour, down and up: in an hour the odds are (1 + e^-2) / (1 - e^-2)."""
    up = np.array([[True] * 20, [False] * 20])
    found = own_forecast(records(up, ["a", "b"]), [flat(1.0), flat(1.0)])
    stays = (1 + math.exp(-2)) / 2
    # In ticks of ten minutes a spell ends once at most.
    assert found[0] == pytest.approx(np.full(20, stays), abs=0.02)
    assert found[1] == pytest.approx(np.full(20, 1 - stays), abs=0.02)


def test_what_neighbours_show_by_hand() -> None:
    up = np.ones((3, 20), dtype=bool)
    up[1, 10:] = False
    seen = seen_of_neighbours(records(up, ["a", "a", "b"]), np.array([1.0, 0.5, 1.0]))
    assert seen[0, 9].tolist() == [0.5, 0.0, 0.0]
    assert seen[0, 10].tolist() == [-0.5, 1.0, 0.0]
    assert seen[0, 15].tolist() == [-0.5, 1.0, 0.0]
    # An hour later.
    assert seen[0, 16].tolist() == [-0.5, 0.0, 0.0]
    assert not seen[2].any()
    # Its neighbour has capacity as usual, and neither lost nor got it.
    assert not seen[1].any()


def test_neighbours_that_tell_something_improve_the_forecast_and_others_change_nothing() -> None:
    random = np.random.default_rng(1)
    whole = random.random(6_000) < 0.9
    zones = np.stack([whole & (random.random(6_000) < 0.95) for _ in range(2)])
    own, seen = np.full(zones.shape, 0.85), np.stack([zones[1], zones[0]]).astype(float)[:, :, None] - 0.85
    half = 3_000
    fitted = fit_region_model(
        own[:, :half], zones[:, :half], np.repeat(seen, 3, axis=2)[:, :half], zones[:, :half]
    )
    told = fitted.forecast(own[:, half:], zones[:, half:], np.repeat(seen, 3, axis=2)[:, half:])
    truth = zones[:, half:]

    def loss(chance: np.ndarray) -> float:
        return float(-np.mean(np.where(truth, np.log(chance), np.log(1 - chance))))

    assert loss(told) < 0.6 * loss(own[:, half:])
    nothing = RegionModel(np.zeros((2, 3)))
    assert nothing.forecast(own, zones, np.repeat(seen, 3, axis=2)) == pytest.approx(own)


def test_shapes_that_differ_are_refused() -> None:
    up = np.ones((2, 5), dtype=bool)
    with pytest.raises(InputError, match="same zones and ticks"):
        fit_region_model(np.full((2, 4), 0.5), up, np.zeros((2, 5, 3)), up)
