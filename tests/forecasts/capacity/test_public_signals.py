"""Public signals of capacity: how bands are read, what signals do to a model, and what was watched as a record."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, DOWN, UP, SpellModel
from ebbtide.forecasts.capacity.models import SpellModels, default_spell_models, fit_file, probes_of_store
from ebbtide.forecasts.capacity.public_signals import PublicSignals, read_interruption_bands
from ebbtide.market.markets import Market
from ebbtide.market.price_store import PriceStore
from ebbtide.market.signals import Signal, SignalKind

EAST = Market("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
WEST = Market("aws", "us-west-2", "us-west-2b", "p3.2xlarge")
BINS = len(AGE_BINS_S)
MODEL = SpellModel(np.array([[1.0] * BINS, [0.5] * BINS]))


def test_bands_are_read_and_move_how_often_machines_go(tmp_path: Path) -> None:
    table = {
        "spot_advisor": {
            "us-east-1": {"Linux": {"p3.2xlarge": {"s": 70, "r": 4}}, "Windows": {}},
            "us-west-2": {"Linux": {"p3.2xlarge": {"s": 65, "r": 0}}},
        }
    }
    (tmp_path / "advisor.json").write_text(json.dumps(table))
    signals = read_interruption_bands(tmp_path / "advisor.json")
    models = signals.of(SpellModels(MODEL), [EAST, WEST])
    assert models.of(EAST).per_hour[UP] == pytest.approx(2 * MODEL.per_hour[UP])
    assert models.of(WEST).per_hour[UP] == pytest.approx(MODEL.per_hour[UP] / 5)
    assert models.of(EAST).per_hour[DOWN] == pytest.approx(MODEL.per_hour[DOWN])
    other = Market("aws", "eu-west-1", "eu-west-1a", "p3.2xlarge")
    assert models.of(other) is MODEL
    assert PublicSignals().applied(MODEL, EAST).per_hour == pytest.approx(MODEL.per_hour)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[", "is not JSON"),
        ("{}", "is not the Spot"),
        ('{"spot_advisor": {"a": {"Linux": {"t": {"r": 7}}}}}', "band 7 of a t is not one of 0 to 4"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InputError, match=told):
        read_interruption_bands(tmp_path / "x.json")
    with pytest.raises(InputError, match="there is no such file"):
        read_interruption_bands(tmp_path / "y.json")


def test_chances_of_a_request_move_how_often_a_machine_is_available() -> None:
    signals = PublicSignals.of_signals(
        [
            signal(0, SignalKind.AVAILABILITY, EAST.region, 0.1),
            signal(9, SignalKind.AVAILABILITY, EAST.region, 0.9),
            signal(0, SignalKind.AVAILABILITY, WEST.region, 0.2),
            # Kept, and asked by no model.
            signal(0, SignalKind.CAPACITY, EAST.region, 7.0),
            signal(0, SignalKind.UPTIME, EAST.region, 600.0),
        ]
    )
    assert signals.applied(MODEL, EAST).share_up == pytest.approx(0.9)
    assert signals.applied(MODEL, WEST).share_up == pytest.approx(0.2)
    assert signals.applied(MODEL, EAST).per_hour[UP] == pytest.approx(MODEL.per_hour[UP])
    zonal = signals | PublicSignals.of_signals([signal(0, SignalKind.AVAILABILITY, EAST.zone, 0.5)])
    assert zonal.applied(MODEL, EAST).share_up == pytest.approx(0.5)
    assert not signals.told_of(Market("gcp", "us-east-1", "us-east-1", "p3.2xlarge"))


def test_shares_of_any_source_move_how_often_machines_go() -> None:
    for share, factor in ((0.125, 1.0), (0.2, 1.6), (0.9, 2.0), (0.0, 0.2)):
        signals = PublicSignals.of_signals([signal(0, SignalKind.INTERRUPTION, EAST.zone, share)])
        assert signals.applied(MODEL, EAST).per_hour[UP] == pytest.approx(factor * MODEL.per_hour[UP])
        assert signals.applied(MODEL, WEST).per_hour == pytest.approx(MODEL.per_hour)


def signal(time_s: float, kind: SignalKind, zone: str, value: float) -> Signal:
    region = next(market.region for market in (EAST, WEST) if zone.startswith(market.region))
    return Signal(time_s, kind, Market("aws", region, zone, "p3.2xlarge"), value)


def test_capacity_that_was_watched_is_a_record_of_probes(tmp_path: Path) -> None:
    store = PriceStore(tmp_path / "prices.db")
    with pytest.raises(InputError, match="no source told capacity"):
        probes_of_store(store)
    counts = [3, 3, 0, 0, 0, 2, 2, 2, 0, 0, 1, 1, 1, 0, 0, 0, 5, 5, 0, 1] * 4
    for place, count in enumerate(counts):
        at_s = 600.0 * place
        found = [Signal(at_s, SignalKind.CAPACITY, EAST, float(count))]
        if place >= 2:
            found.append(Signal(at_s, SignalKind.CAPACITY, WEST, float(count == 0)))
        store.add_signals("vast", found, looked_at=at_s)
    probes = probes_of_store(store)
    of_east = probes[probes["zone"] == EAST.zone]
    assert of_east["available"].tolist() == [int(count > 0) for count in counts]
    # Nothing is made up of the time before a market was told of.
    assert len(probes[probes["zone"] == WEST.zone]) == len(counts) - 2
    models = fit_file(store.path)
    assert set(models.by_market) == {str(EAST), str(WEST)}
    assert exit_code("availability", "fit", str(store.path), "--out", str(tmp_path / "spells.json")) == 0
    assert set(SpellModels.read(tmp_path / "spells.json").by_market) == set(models.by_market)


def test_the_command_adjusts_models_to_what_was_watched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = eb.generate_prices(days=2, kind="auction")
    prices.write(tmp_path / "prices.parquet")
    market, *others = prices.markets
    path, out = tmp_path / "prices.db", str(tmp_path / "spells.json")
    store = PriceStore(path)
    store.add(prices.to_frame(), looked_at=prices.end_s)
    arguments = ("availability", "adjust", str(path), "--from", str(path), "--out", out)
    assert exit_code(*arguments) == 2
    assert "has no signals" in capsys.readouterr().err
    own = Market("aws", market.region, market.zone, market.instance_type)
    store.add_signals("spotlake", [Signal(5.0, SignalKind.INTERRUPTION, own, 0.25)], looked_at=9.0)
    before = default_spell_models()
    for source in (str(path), str(tmp_path / "prices.parquet")):
        assert exit_code("availability", "adjust", source, "--from", str(path), "--out", out) == 0
        told = capsys.readouterr().out
        assert "1 signals, of 1970-01-01T00:00:05Z" in told
        assert f"{len(others)} of {len(others) + 1} markets stay as they were" in told
        after = SpellModels.read(Path(out))
        assert after.of(market).per_hour[UP] == pytest.approx(2 * before.of(market).per_hour[UP])
        assert after.of(others[0]).per_hour == pytest.approx(before.of(others[0]).per_hour)
    assert (
        exit_code("availability", "adjust", str(path), "--from", str(tmp_path / "prices.parquet"), "--out", out)
        == 2
    )
    assert "is no price store" in capsys.readouterr().err
    elsewhere = Market("gcp", "us-central1", "us-central1-a", "g2-standard-8")
    other = PriceStore(tmp_path / "other.db")
    other.add_signals("gcp", [Signal(5.0, SignalKind.INTERRUPTION, elsewhere, 0.2)], looked_at=9.0)
    assert exit_code("availability", "adjust", str(path), "--from", str(other.path), "--out", out) == 2
    assert "there is no signal of any of its markets" in capsys.readouterr().err


def test_the_command_adjusts_the_models_of_a_price_file_s_markets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = eb.generate_prices(days=2, kind="auction")
    prices.write(tmp_path / "prices.parquet")
    market = prices.markets[0]
    table = {"spot_advisor": {market.region: {"Linux": {market.instance_type: {"r": 4}}}}}
    (tmp_path / "advisor.json").write_text(json.dumps(table))
    files = [str(tmp_path / name) for name in ("prices.parquet", "spells.json", "advisor.json")]
    assert exit_code("availability", "adjust", files[0], "--out", files[1], "--bands", files[2]) == 0
    before, after = default_spell_models(), SpellModels.read(files[1])
    assert after.of(market).per_hour[UP] == pytest.approx(2 * before.of(market).per_hour[UP])
    assert str(market) in capsys.readouterr().out
    again = ("--out", files[1], "--bands", files[2], "--spells", files[1])
    assert exit_code("availability", "adjust", files[0], *again) == 0
    assert SpellModels.read(files[1]).of(market).per_hour[UP] == pytest.approx(4 * before.of(market).per_hour[UP])
    assert exit_code("availability", "adjust", files[0], "--out", files[1]) == 2
    assert "give --from PRICES.db, --bands FILE or --scores" in capsys.readouterr().err


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)
