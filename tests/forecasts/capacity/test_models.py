"""Files of spell models, fits to probes, and capacity drawn from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.markets import C3, R3, history

from ebbtide.base.utc import HOUR_S
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.drawing import drawn_availability
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, UP, SpellModel
from ebbtide.forecasts.capacity.models import (
    SpellModels,
    default_spell_models,
    fit_file,
    fit_market_spells,
    probes_of,
)
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market

BINS = len(AGE_BINS_S)


def flat(down: float, up: float) -> SpellModel:
    return SpellModel(np.array([[down] * BINS, [up] * BINS]))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    models = SpellModels(flat(1.0, 0.2), {str(C3): flat(0.5, 0.1)})
    models.write(tmp_path / "spells.json")
    found = SpellModels.read(tmp_path / "spells.json")
    assert found.of(C3).per_hour == pytest.approx(models.of(C3).per_hour)
    assert found.of(R3).per_hour == pytest.approx(models.otherwise.per_hour)


def test_models_of_several_machines_are_those_of_the_next_larger_number(tmp_path: Path) -> None:
    one, two, four = flat(1.0, 0.1), flat(1.0, 0.2), flat(1.0, 0.4)
    models = SpellModels(flat(1.0, 0.05), {str(C3): one}, {2: {str(C3): two}, 4: {str(C3): four}})
    models.write(tmp_path / "spells.json")
    for found in (models, SpellModels.read(tmp_path / "spells.json")):
        hazards = [found.of(C3, machines).per_hour[UP, 0] for machines in (1, 2, 3, 4, 5)]
        # Of more machines than any model is of, there is that of one.
        assert hazards == pytest.approx([0.1, 0.2, 0.4, 0.4, 0.1])
        assert found.of(R3, 4).per_hour[UP, 0] == pytest.approx(0.05)


def test_rounds_that_count_machines_have_models_of_several(tmp_path: Path) -> None:
    """Six machines for half of the time, and two for the rest: six come and go, two are always there."""
    times = pd.date_range("2025-10-01", periods=600, freq="10min", tz="UTC")
    launched = np.where(np.arange(600) // 12 % 2 == 0, 6, 2)
    table = pd.DataFrame(
        {
            "timestamp": times,
            "cloud": "gcp",
            "region": "us-east4",
            "zone": "us-east4-a",
            "instance_type": "a3-highgpu-1g",
            "gpu_type": "H100",
            "interval_seconds": 600,
            "requested": 8,
            "launched": launched,
        }
    )
    table.to_parquet(tmp_path / "rounds.parquet")
    models = fit_file(tmp_path / "rounds.parquet")
    assert sorted(models.of_several) == [2, 4, 6]
    market = Market("gcp", "us-east4", "us-east4-a", "a3-highgpu-1g")
    assert models.of(market, 2).share_up > 0.9
    for machines in (3, 4, 6):
        assert models.of(market, machines).share_up == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is not JSON"),
        ("{}", "is not a file of spell models"),
        ('{"age_bins_s": [0, 1]}', "has other bins of age"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InputError, match=told):
        SpellModels.read(tmp_path / "x.json")
    with pytest.raises(InputError, match="there is no such file"):
        SpellModels.read(tmp_path / "y.json")


def test_hazards_that_are_none_are_refused(tmp_path: Path) -> None:
    SpellModels(flat(1.0, 0.0)).write(tmp_path / "x.json")
    with pytest.raises(InputError, match="hazards are positive numbers"):
        SpellModels.read(tmp_path / "x.json")


def test_what_holds_of_any_zone_has_heavy_tails() -> None:
    model = default_spell_models().of(C3)
    left_h = [model.mean_left_s(UP, age_h * HOUR_S) / HOUR_S for age_h in (0.0, 1.0, 6.0)]
    assert left_h == sorted(left_h)
    assert 0.3 < model.share_up < 0.9


def test_capacity_is_drawn_as_the_models_say() -> None:
    prices = history({C3: [(0, 0.1)], R3: [(0, 0.1)]}, hours=2_000.0)
    models = SpellModels(flat(1.0, 1.0), {str(R3): flat(1.0, 0.25)})
    found = drawn_availability(prices, models, 3, seed=1)
    assert found[C3].share_available(3) == pytest.approx(0.5, abs=0.06)
    assert found[R3].share_available(3) == pytest.approx(0.8, abs=0.06)
    assert found[R3].share_available(4) == 0.0
    assert drawn_availability(prices, models, 3, seed=1)[C3].nodes.tolist() == found[C3].nodes.tolist()
    assert drawn_availability(prices, models, 3, seed=2)[C3].nodes.tolist() != found[C3].nodes.tolist()


def test_probes_of_our_own_machines_by_hand() -> None:
    def lease(begin_s: float, end_s: float, state: LeaseState, *, on_demand: bool = False) -> Lease:
        started_s = np.nan if state is LeaseState.FAILED else begin_s
        return Lease(0, C3, 1.0, on_demand, begin_s, state, started_s=started_s, ended_s=end_s)

    table = probes_of(
        [
            lease(0.0, 0.0, LeaseState.FAILED),
            lease(600.0, 2_000.0, LeaseState.REVOKED),
            lease(2_000.0, 2_100.0, LeaseState.FAILED),
            lease(3_000.0, np.nan, LeaseState.RUNNING),
            lease(0.0, 9_000.0, LeaseState.RELEASED, on_demand=True),
        ],
        until_s=4_000.0,
    )
    seconds = (table["timestamp"] - pd.Timestamp(0, tz="UTC")).dt.total_seconds().tolist()
    assert list(zip(seconds, table["available"], strict=True)) == [
        (0.0, 0),
        (600.0, 1),
        (1_200.0, 1),
        (1_800.0, 1),
        (2_000.0, 0),
        (3_000.0, 1),
        (3_600.0, 1),
    ]
    assert set(table["zone"]) == {"us-east-1a"}
    with pytest.raises(InputError, match="every_s is 0"):
        probes_of([], 1.0, every_s=0.0)


def test_fitting_by_market_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(3)
    frames = [
        pd.DataFrame(
            {
                "timestamp": pd.date_range("2023-01-01", periods=4_000, freq="10min", tz="UTC"),
                "cloud": "aws",
                "region": "us-east-1",
                "zone": zone,
                "instance_type": "p3.2xlarge",
                "gpu_type": "v100",
                "interval_seconds": 600,
                "available": flat(1.0, ends).drawn(4_000, 600.0, random).astype(int),
            }
        )
        for zone, ends in (("us-east-1a", 0.2), ("us-east-1b", 3.0))
    ]
    pd.concat(frames).to_parquet(tmp_path / "probes.parquet")
    with pytest.raises(SystemExit) as ended:
        main(["availability", "fit", str(tmp_path / "probes.parquet"), "--out", str(tmp_path / "spells.json")])
    assert ended.value.code in (0, None)
    assert "us-east-1b p3.2xlarge" in capsys.readouterr().out
    models = SpellModels.read(tmp_path / "spells.json")
    means_h = [models.by_market[f"us-east-1{zone} p3.2xlarge"].mean_left_s(UP, 0.0) / HOUR_S for zone in "ab"]
    assert means_h[0] == pytest.approx(5.0, rel=0.3)
    assert means_h[1] == pytest.approx(1 / 3, rel=0.3)
    with pytest.raises(InputError, match="has no column 'region'"):
        fit_market_spells(frames[0].drop(columns="region"))
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(SystemExit) as ended:
        main(["availability", "fit", str(tmp_path / "x.parquet"), "--out", str(tmp_path / "y.json")])
    assert ended.value.code == 2
    assert "has no availability" in capsys.readouterr().err
    assert not (tmp_path / "y.json").exists()
