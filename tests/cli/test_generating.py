"""First commands: prices and a demonstration out of nothing, and never over anybody's file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_commands import ended

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.market.generator import FLOOR_RATIO, generate_smooth_prices


@pytest.mark.parametrize("kind", ["auction", "gpu"])
def test_the_next_command_takes_what_generate_makes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ended("generate", "--into", "my prices.parquet", "--days", "3", "--kind", kind) == 0
    assert "next: ebbtide describe 'my prices.parquet'" in capsys.readouterr().out
    assert ended("describe", "my prices.parquet") == 0
    assert "us-east-1a" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_bytes_and_no_other_file_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    for path in (one, two, one):
        assert ended("generate", "--into", str(path), "--days", "2") == 0
    assert one.read_bytes() == two.read_bytes()
    assert ended("generate", "--into", str(one), "--days", "2", "--seed", "1") == 2
    assert "exists already, with other content" in capsys.readouterr().err
    assert one.read_bytes() == two.read_bytes()
    (tmp_path / "notes.txt").write_text("mine")
    assert ended("generate", "--into", str(tmp_path / "notes.txt")) == 2
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert ended("generate", "--into", str(tmp_path)) == 2
    assert ended("generate", "--days", "0") == 2
    assert ended("generate", "--kind", "spiky") == 2


def test_gpu_prices_move_little_and_stay_below_the_list_price() -> None:
    prices = generate_smooth_prices(days=60, seed=3)
    assert prices.equals(generate_smooth_prices(days=60, seed=3))
    still = 0
    for market, series in prices.items():
        listed = eb.default_catalogue().on_demand_usd_per_hour(market, prices.start_s)
        assert listed is not None
        ratio = series.prices / listed
        assert ratio.min() >= FLOOR_RATIO - 1e-4
        assert ratio.max() < 1.0
        assert (np.diff(series.times_s) > 0).all()
        assert not len(ratio) > 1 or np.abs(np.diff(np.log(ratio))).max() < 0.1
        assert len(ratio) <= 60 * 4 + 1
        still += len(ratio) == 1
    assert 0 < still < len(prices)
    with pytest.raises(InputError, match="must be positive"):
        generate_smooth_prices(days=float("nan"))


def test_the_demo_leaves_what_its_next_commands_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # Few replays of a short history: its figures are not looked at here.
    monkeypatch.setattr("ebbtide.cli.demo._STARTS", 1)
    monkeypatch.setattr("ebbtide.cli.demo._DAYS", 4.0)
    assert ended("demo") == 0
    told = capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "job.yaml",
        "prices-capacity.parquet",
        "prices.parquet",
        "report.html",
    ]
    assert "one-day" in (tmp_path / "report.html").read_text()
    for policy in ("on-demand", "reactive"):
        assert policy in told
    offered = re.findall(r"^  ebbtide (describe .*|compare .*)$", told, re.MULTILINE)
    assert len(offered) == 2
    assert ended(*offered[0].split()) == 0
    assert ended(*offered[1].split(), "--policies", "on-demand,reactive", "--starts", "1") == 0
    assert "billing by-cloud" in told
    before = (tmp_path / "prices.parquet").read_bytes()
    assert ended("demo") == 0
    assert (tmp_path / "prices.parquet").read_bytes() == before


@pytest.mark.parametrize("name", ["prices.parquet", "prices-capacity.parquet", "job.yaml", "report.html"])
def test_the_demo_overwrites_nobodys_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text("mine")
    assert ended("demo", "--into", str(tmp_path)) == 2
    assert "exists already, with other content" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_capacity_of_other_markets_and_a_kind_beside_prices_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    today, auction = tmp_path / "today.parquet", tmp_path / "auction.parquet"
    assert ended("generate", "--into", str(today), "--days", "3") == 0
    assert ended("generate", "--into", str(auction), "--days", "3", "--kind", "auction") == 0
    job = ("compare", str(Path(__file__).parents[2] / "examples" / "one-day.yaml"), "--starts", "1")
    beside = tmp_path / "today-capacity.parquet"
    assert ended(*job, "--prices", str(auction), "--availability", str(beside)) == 2
    assert "has capacity of none of the markets with prices" in capsys.readouterr().err
    assert ended(*job, "--prices", str(today), "--kind", "auction") == 2
    assert "--kind auction is of a generated market" in capsys.readouterr().err


def test_the_job_of_the_demo_is_the_example() -> None:
    """One file: the example is a link to what the package carries."""
    example = Path(__file__).parents[2] / "examples" / "one-day.yaml"
    packaged = Path(eb.__file__).parent / "jobs" / "data" / "one-day.yaml"
    assert example.resolve() == packaged.resolve()


def test_a_folder_that_is_not_there_is_made_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = tmp_path / "nodir" / "x.parquet"
    assert ended("generate", "--into", str(into), "--days", "1") == 0
    assert f"{into.parent}: no such folder; it is created" in capsys.readouterr().err
    assert into.is_file()
    assert ended("generate", "--into", str(into), "--days", "1") == 0
    assert "no such folder" not in capsys.readouterr().err
