"""Up and down spells, and how likely they are to end."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import TRACES

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import (
    AGE_BINS_S,
    DOWN,
    PARTS_OF_DAY,
    UP,
    SpellModel,
    Spells,
    fit_spells,
    part_of_day,
    spells_of,
    spells_of_probes,
    updated,
)


def test_spells_by_hand() -> None:
    """Ten-minute ticks: down for two, up for three, down for one, up for two (its end not seen)."""
    found = spells_of(np.array([0, 0, 1, 1, 1, 0, 1, 1], dtype=bool), 600.0)
    # Up: one that ended within its third tick, twenty minutes that did not end; by bins 0-10, 10-20, 20-40 min.
    assert found.exposure_h[UP].sum(1)[:4] == pytest.approx([2 / 6, 2 / 6, 1 / 12, 0.0])
    assert found.ended[UP].sum(1).tolist() == [0, 0, 1] + [0] * (len(AGE_BINS_S) - 3)
    assert found.exposure_h[DOWN].sum(1)[:3] == pytest.approx([1 / 6 + 1 / 12, 1 / 12, 0.0])
    assert found.ended[DOWN].sum(1)[:2].tolist() == [1, 1]
    assert found.ended.sum() == 3


def test_probes_by_hand() -> None:
    """At 02:30, 02:50, 03:10, 03:40; a gap; then a spell of unknown beginning is left out."""
    times_s = HOUR_S * np.array([2.5, 2.5 + 1 / 3, 2.5 + 2 / 3, 2.5 + 7 / 6, 9.0, 9.5])
    found = spells_of_probes(times_s, np.array([0, 1, 1, 0, 1, 0], dtype=bool), HOUR_S)
    up, ended = found.exposure_h[UP], found.ended[UP]
    # Twenty minutes before three o'clock, then half of thirty, in the second part of the day, in which it ended.
    assert up[:, 0].sum() == pytest.approx(1 / 3)
    assert up[:, 1].sum() == pytest.approx(1 / 4)
    assert (ended.sum(), ended[:, 1].sum()) == (1, 1)
    # Half of the twenty minutes from 02:30; the down spells of 03:40 and 09:30 are seen for one probe each.
    assert found.exposure_h[DOWN].sum() == pytest.approx(1 / 6 + 1 / 2 + 1 / 2)
    assert found.ended[DOWN].sum() == 1
    with pytest.raises(InputError, match="not in the order of time at probe 3"):
        spells_of_probes(np.array([0.0, 2.0, 1.0]), np.array([0, 1, 1]), 10.0)


def test_a_time_of_day_that_matters_is_found() -> None:
    """Machines go four times as often between 09:00 and 12:00; of the down spells nothing depends on it."""
    random = np.random.default_rng(5)
    times_s = np.arange(60_000) * 600.0
    busy = part_of_day(times_s) == 3
    up = np.empty(len(times_s), dtype=bool)
    now = True
    for tick, chance in enumerate(random.random(len(times_s))):
        up[tick] = now
        now = now != (chance < (0.05 if not now else 0.16 if busy[tick] else 0.04))
    model = fit_spells(spells_of_probes(times_s, up, 900.0), [])
    others = np.delete(model.by_part[UP], 3)
    assert model.by_part[UP, 3] > 2.0 * others.max()
    assert model.by_part[DOWN] == pytest.approx(np.ones(PARTS_OF_DAY), abs=0.25)
    assert fit_spells(spells_of(up, 600.0), []).by_part == pytest.approx(np.ones((2, PARTS_OF_DAY)), rel=0.01)


@given(st.lists(st.booleans(), min_size=2, max_size=300), st.sampled_from([195.0, 600.0]))
def test_hours_and_ends_are_all_counted(ticks: list[bool], gap_s: float) -> None:
    up = np.array(ticks)
    changes = int(np.count_nonzero(np.diff(up)))
    found = spells_of(up, gap_s)
    assert found.ended.sum() == changes
    # Half a tick of each end's was not lived.
    hours = (len(up) - 0.5 * changes) * gap_s / HOUR_S
    assert found.exposure_h.sum() == pytest.approx(hours)


def test_without_memory_the_hazard_is_one_number_at_every_age() -> None:
    random = np.random.default_rng(1)
    flat = SpellModel(np.array([[0.5] * len(AGE_BINS_S), [0.25] * len(AGE_BINS_S)]))
    record = flat.drawn(60_000, 600.0, random)
    fitted = fit_spells(spells_of(record, 600.0), [])
    assert fitted.mean_left_s(UP, 0.0) == pytest.approx(4 * HOUR_S, rel=0.1)
    assert fitted.mean_left_s(DOWN, 0.0) == pytest.approx(2 * HOUR_S, rel=0.1)
    assert flat.mean_left_s(UP, 7 * HOUR_S) == pytest.approx(4 * HOUR_S)
    assert flat.ends_within(UP, 3 * HOUR_S, HOUR_S) == pytest.approx(1 - np.exp(-0.25))


def test_with_heavy_tails_what_has_lasted_lasts() -> None:
    random = np.random.default_rng(2)
    lengths = np.ceil(random.pareto(1.2, 4_000) * 3 + 1).astype(int)
    record = np.concatenate([np.full(min(length, 3_000), place % 2 == 1) for place, length in enumerate(lengths)])
    model = fit_spells(spells_of(record, 600.0), [])
    left = [model.mean_left_s(UP, age_h * HOUR_S) for age_h in (0, 1, 6, 24)]
    assert left == sorted(left)
    assert left[-1] > 3 * left[0]


def test_a_zone_with_little_data_is_pooled_with_the_others() -> None:
    random = np.random.default_rng(3)
    flat = SpellModel(np.array([[1.0] * len(AGE_BINS_S), [0.2] * len(AGE_BINS_S)]))
    others = [spells_of(flat.drawn(20_000, 600.0, random), 600.0) for _ in range(3)]
    own = Spells(np.zeros((2, len(AGE_BINS_S), PARTS_OF_DAY)), np.zeros((2, len(AGE_BINS_S), PARTS_OF_DAY)))
    assert fit_spells(own, others).per_hour == pytest.approx(fit_spells(None, others).per_hour)
    # One that ends four times as often in a thousand hours says so itself.
    own.exposure_h[UP, 0], own.ended[UP, 0] = 125.0, 100.0
    assert fit_spells(own, others).per_hour[UP, 0] == pytest.approx(0.8, rel=0.05)


def test_what_cannot_be_counted_is_told() -> None:
    with pytest.raises(InputError, match="two ticks or more"):
        spells_of(np.array([True]), 600.0)
    with pytest.raises(InputError, match="no spell of availability"):
        fit_spells(None, [])


def test_a_zone_that_never_went_is_believed_to_stay() -> None:
    random = np.random.default_rng(6)
    flat = SpellModel(np.array([[1.0] * len(AGE_BINS_S), [0.5] * len(AGE_BINS_S)]))
    others = [spells_of(flat.drawn(3_000, 600.0, random), 600.0) for _ in range(3)]
    steady = fit_spells(spells_of(np.ones(3_000, dtype=bool), 600.0), others)
    assert steady.mean_left_s(UP, 24 * HOUR_S) > 5 * fit_spells(None, others).mean_left_s(UP, 24 * HOUR_S)


@pytest.mark.real_traces
def test_simulated_spells_are_like_those_of_later_days() -> None:
    """Fitted on the first half of each zone (leaning on the others), held against the second half."""
    table = pd.read_parquet(TRACES / "spot-availability-2022-2023.parquet")
    table = table[(table["kind"] == "availability") & (table["nodes"] == 1)]
    records = [(row.data >= 1, float(row.gap_seconds)) for row in table.itertuples()]
    halves = [(up[: len(up) // 2], up[len(up) // 2 :], gap_s) for up, gap_s in records]
    first = [spells_of(up, gap_s) for up, _, gap_s in halves]
    ours, memoryless = [], []
    for place, (_, later, gap_s) in enumerate(halves):
        model = fit_spells(first[place], first[:place] + first[place + 1 :])
        flat = SpellModel(
            np.repeat(first[place].ended.sum(axis=(1, 2)) + 0.5, len(AGE_BINS_S)).reshape(2, -1)
            / (first[place].exposure_h.sum(axis=(1, 2))[:, None] + 1.0)
        )
        seen = spells_of(later, gap_s)
        for fitted, into in ((model, ours), (flat, memoryless)):
            # Log-likelihood of the later ends, by exposure.
            ended, exposure_h = seen.ended.sum(2), seen.exposure_h.sum(2)
            into.append(float((ended * np.log(fitted.per_hour) - exposure_h * fitted.per_hour).sum()))
    assert sum(ours) > sum(memoryless)


@pytest.mark.real_traces
def test_the_time_of_day_predicts_later_ends() -> None:
    """Fitted on first halves, where times are known: later ends are likelier with the factors than without."""
    probes = pd.read_parquet(TRACES / "ec2-gpu-availability-2022-2023.parquet")
    gain = 0.0
    for _, rows in probes.groupby(["zone", "instance_type", "interval_seconds"], observed=True):
        rows = rows.sort_values("timestamp")
        times_s = (rows["timestamp"] - pd.Timestamp(0, tz="UTC")).dt.total_seconds().to_numpy()
        up, half = rows["available"].to_numpy() >= 1, len(rows) // 2
        model = fit_spells(spells_of_probes(times_s[:half], up[:half], 1_800.0), [])
        later = spells_of_probes(times_s[half:], up[half:], 1_800.0)
        foretold = (later.exposure_h * model.per_hour[:, :, None]).sum(1)
        gain += float((later.ended.sum(1) * np.log(model.by_part) - foretold * (model.by_part - 1.0)).sum())
    assert gain > 0.0


def test_what_is_seen_of_a_zone_updates_its_model_by_hand() -> None:
    """Twenty pseudo-counts at one an hour, and twenty ends in ten hours: the level, then each bin of age."""
    model = SpellModel(np.ones((2, len(AGE_BINS_S))))
    nothing = Spells(np.zeros((2, len(AGE_BINS_S), PARTS_OF_DAY)), np.zeros((2, len(AGE_BINS_S), PARTS_OF_DAY)))
    assert updated(model, nothing).per_hour == pytest.approx(model.per_hour)
    exposure_h, ended = nothing.exposure_h.copy(), nothing.ended.copy()
    exposure_h[UP, 0, 0], ended[UP, 0, 0] = 10.0, 20.0
    found = updated(model, Spells(exposure_h, ended)).per_hour
    level = (20.0 + 20.0) / (10.0 + 20.0)
    assert found[UP, 0] == pytest.approx((20.0 + 20.0) / (10.0 + 20.0 / level))
    assert found[UP, 1] == pytest.approx(level)
    assert found[DOWN] == pytest.approx(np.ones(len(AGE_BINS_S)))
