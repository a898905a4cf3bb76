"""Every reproduction runs to its end on files that lack something: figures, or reasons, or one line of what is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.markets import history
from tests.papers.test_reproduction import strictly

import ebbtide as eb
from ebbtide.cli.main import main
from ebbtide_papers.cumulon.claims import reproduce_cumulon
from ebbtide_papers.cumulon.study import CumulonStudy
from ebbtide_papers.dynamic_pricing.claims import reproduce_dynamic_pricing
from ebbtide_papers.dynamic_pricing.study import follow, gpu_markets
from ebbtide_papers.exosphere import claims as exosphere
from ebbtide_papers.exosphere.transiency import transiency_study
from ebbtide_papers.spottune import claims as spottune

C3 = tuple(eb.Market("aws", "us-east-1", f"us-east-1{zone}", "c3.xlarge") for zone in "abc")
G2 = tuple(eb.Market("aws", "us-east-1", f"us-east-1{zone}", "g2.2xlarge") for zone in "ab")
V100 = eb.Market("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
K80 = eb.Market("aws", "us-east-1", "us-east-1b", "p2.xlarge")
NC6 = eb.Market("azure", "us-east", "us-east", "NC6")
HERE = (*C3, *G2, V100, K80)

HOUR, DAYS = 3600.0, 12


def hourly(
    markets: tuple[eb.Market, ...], usd: Callable[[int, int], float], days: float = DAYS
) -> eb.PriceHistory:
    """A price each hour for each market, from the hour and the market's place."""
    hours = range(int(days * 24) + 1)
    points = {m: [(hour * HOUR, usd(hour, place)) for hour in hours] for place, m in enumerate(markets)}
    return history(points, hours=days * 24)


def _list_usd(place: int) -> float:
    usd = eb.default_catalogue().on_demand_usd_per_hour(HERE[place], 1.6e9)
    assert usd is not None
    return usd


def _elsewhere() -> eb.PriceHistory:
    """Markets of a region without any list price."""
    markets = tuple(
        eb.Market("aws", "mars-1", f"mars-1{zone}", kind) for zone in "ab" for kind in ("c3.xlarge", "p3.2xlarge")
    )
    return hourly(markets, lambda hour, place: 0.05 + 0.01 * ((hour * (place + 2)) % 7))


def _one_market() -> eb.PriceHistory:
    prices = eb.generate_prices(days=DAYS, seed=1, kind="auction")
    return prices.select(prices.markets[:1])


FILES: dict[str, Callable[[], eb.PriceHistory]] = {
    "three days": lambda: eb.generate_prices(days=3, seed=1, kind="auction"),
    "one moment": lambda: history({market: [(0.0, 0.1)] for market in HERE}, hours=0.0),
    "one market": _one_market,
    "no list price": _elsewhere,
    "flat": lambda: hourly(HERE, lambda _hour, place: 0.3 * _list_usd(place)),
    "always above on demand": lambda: hourly(HERE, lambda hour, place: (2.0 + hour % 5) * _list_usd(place)),
    "above on demand later": lambda: hourly(
        HERE, lambda hour, place: (0.3 if hour < 160 else 3) * _list_usd(place)
    ),
}


# Files whose prices Dynamic Pricing's study can follow.
_PRICED = ("one moment", "flat", "always above on demand", "above on demand later")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    found = {}
    for name, make in FILES.items():
        found[name] = folder / f"{name.replace(' ', '-')}.parquet"
        make().write(found[name])
    return found


@pytest.fixture(scope="module")
def losses() -> dict[str, Any]:
    """What does not depend on prices, once."""
    return transiency_study(draws=1)


def run(words: list[str], out: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The rows of a reproduction; none if it ended with one line of what is needed."""
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", *words, "--json", str(out), "--plot", str(out.with_suffix(".html"))])
    told = capsys.readouterr().err.strip().splitlines()
    if ended.value.code == 2:
        assert told[-1].startswith("ebbtide: ")
        assert not any("Traceback" in line for line in told)
        assert not out.exists()
        return []
    assert ended.value.code == 0
    assert strictly(out.read_text())
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
    assert len({row["id"] for row in rows}) == len(rows)
    for row in rows:
        assert (row["ours"] is None) == bool(row["missing"])
        assert row["ours"] is not None or not row["holds"]
        assert "nan" not in row["note"].split()
    return rows


@pytest.mark.parametrize("name", FILES)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_dynamic_pricing(
    name: str, files: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run(["dynamic-pricing", "--prices", str(files[name])], tmp_path / "out.json", capsys)
    assert bool(rows) == (name in _PRICED)


@pytest.mark.parametrize("name", FILES)
def test_deepspotcloud(
    name: str, files: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["deepspotcloud", "--prices", str(files[name]), "--starts", "2"]
    rows = run(words, tmp_path / "out.json", capsys)
    assert len(rows) == (0 if name in ("one moment", "one market", "no list price") else 22)
    if name == "always above on demand":
        assert {row["missing"] for row in rows if row["id"].endswith("_1d")} == {
            "from no start did the job end under every rule"
        }


@pytest.mark.parametrize("name", FILES)
def test_exosphere(
    name: str,
    files: Mapping[str, Path],
    losses: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exosphere, "transiency_study", lambda **_options: losses)
    monkeypatch.setattr(exosphere, "solving_seconds", lambda _count: 0.5)
    rows = run(["exosphere", "--prices", str(files[name]), "--quick"], tmp_path / "out.json", capsys)
    assert len(rows) == (0 if name in ("one moment", "always above on demand") else 19)


def test_two_clouds_whose_days_hardly_overlap() -> None:
    """What needs no common days is there; the rest says how many there are."""
    aws = hourly((V100, K80), lambda hour, place: (1.0 + 0.1 * (hour % 3)) / (1 + place), days=6)
    for hours, why in ((10, "less than a day in common"), (50, "the prices have 50 h in common")):
        late = {NC6: [((6 * 24 - hours) * HOUR, 0.3), (9 * 24 * HOUR, 0.2)]}
        azure = history(late, hours=10 * 24)
        azure = eb.PriceHistory(dict(azure), start_s=azure.start_s + (6 * 24 - hours) * HOUR, end_s=azure.end_s)
        found = reproduce_dynamic_pricing(
            [aws, azure], {"m": {"k80": 1.0, "v100": 3.0}}, eb.default_catalogue(), inputs={}
        )
        assert strictly(found.to_json())
        rows = {row.id: row for row in found.rows}
        assert why in rows["total_cost_reduction_max"].missing
        assert rows["spot_reduction_aws_v100"].ours == pytest.approx(3.06)
        assert (rows["dynamic_cost_reduction_max"].ours is None) == (hours == 10)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_model_without_a_rate_on_a_gpu_does_not_begin_there() -> None:
    aws = hourly((K80, V100), lambda _hour, place: 0.2 + place, days=2)
    found = follow(gpu_markets([aws], eb.default_catalogue()), {"v100": 2.0}, 1.0)
    assert found.switches.tolist() == [0] * len(found.switches)
    assert found.reduction("dynamic", "1xV100") == pytest.approx(1.0)


def test_prices_that_begin_late_count_from_there_on() -> None:
    late = history({V100: [(4 * 24 * HOUR, 1.0)], K80: [(0.0, 0.2)]}, hours=10 * 24)
    found = follow(gpu_markets([late], eb.default_catalogue()), {"k80": 1.0, "v100": 2.0}, 1.0)
    assert found.reduction("dynamic", "1xV100") == pytest.approx(0.5 / 0.2)


def _outcomes(cost_usd: float, *, finished: bool = True) -> tuple[Any, ...]:
    return (SimpleNamespace(cost_usd=cost_usd, makespan_s=3600.0, finished=finished),)


def test_spottune_where_all_is_refunded_or_nothing_ends() -> None:
    free = {"svm": {"spottune": _outcomes(1.0), "cheapest-spot": _outcomes(0.0)}}
    row = spottune._saving(free, "saving", "spottune", "cheapest-spot", 0.5)
    assert row.missing == "cheapest-spot cost nothing here, all of it is refunded"
    never = {"svm": {"spottune": _outcomes(1.0, finished=False), "cheapest-spot": _outcomes(1.0)}}
    row = spottune._saving(never, "saving", "spottune", "cheapest-spot", 0.5)
    assert row.missing == "from no start did every policy finish"
    assert "nan" not in row.note


def test_cumulon_without_a_real_market_says_why() -> None:
    figures = dict.fromkeys(
        [
            *("dynamic_mean_cost", "strict_mean_cost", "oracle_mean_cost", "dba_mean_cost", "on_demand_only_cost"),
            *(
                f"{kind}_mean_cost_{at}"
                for kind in ("skyline", "infinity_bid", "best_fixed_bid", "plus", "fixed_plus")
                for at in ("s020", "s002")
            ),
            *(
                f"{bids}_bid_minus_skyline_error_{at}"
                for bids in ("infinity", "best_fixed")
                for at in ("s020", "s002")
            ),
        ],
        1.0,
    ) | {"fixed_mean_cost": np.nan}
    study = CumulonStudy(figures, {}, {}, 0, 0.1)
    found = reproduce_cumulon(study, None, inputs={}, seed=1, why_not_real="a week is needed")
    assert strictly(found.to_json())
    rows = {row.id: row for row in found.rows}
    assert rows["c3_xlarge_2015_dynamic_over_fixed"].missing == "a week is needed"
    assert "no fixed size and bid" in rows["fixed_mean_cost"].missing
