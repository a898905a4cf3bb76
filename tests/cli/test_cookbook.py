"""`ebbtide cookbook`: solved from prices, shown as a table and drawn; bad input is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import ebbtide as eb
from ebbtide.base.utc import iso
from ebbtide.cli.main import main

WORKFLOW = Path(__file__).parents[2] / "examples" / "rsvd.yaml"


def ebbtide(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    eb.generate_prices(days=20, seed=1, kind="auction").write(tmp_path / "prices.parquet")
    return tmp_path / "prices.parquet"


def test_it_is_solved_and_shown(prices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = tmp_path / "book.safetensors"
    market = str(eb.PriceHistory.read(prices).markets[0])
    assert (
        ebbtide(
            "cookbook",
            "solve",
            WORKFLOW,
            "--prices",
            prices,
            "--market",
            market,
            "--deadline",
            "15",
            "--most",
            "40",
            "--into",
            book,
        )
        == 0
    )
    told = capsys.readouterr().out
    assert "33 machine-hours in 15 h" in told
    assert "USD expected, standard deviation" in told
    assert ebbtide("cookbook", "show", book, "--plot", tmp_path / "book.html") == 0
    shown = capsys.readouterr().out
    assert "rsvd-1: 15 steps of 1 h" in shown
    assert (tmp_path / "book.html").stat().st_size > 10_000
    start = eb.PriceHistory.read(prices).start_s + 3 * 86_400
    for more in ([], ["--strict"]):
        assert (
            ebbtide(
                "cookbook", "apply", book, "--prices", prices, "--market", market, "--start", iso(start), *more
            )
            == 0
        )
        applied = capsys.readouterr().out
        assert "finished after" in applied
        assert "deadline of 15 h met" in applied
    assert (
        ebbtide(
            "cookbook", "apply", book, "--prices", prices, "--market", market, "--start", iso(start), "--on-demand"
        )
        == 2
    )
    assert "--on-demand and --delay need billing by whole hours" in capsys.readouterr().err
    assert ebbtide("cookbook", "show", book, "--at-hour", "15") == 2
    assert "the cookbook has 15 steps" in capsys.readouterr().err


def test_whole_hours_are_run_by_skyline_bids(
    prices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "book.safetensors"
    market = str(eb.PriceHistory.read(prices).markets[0])
    given = ("--prices", prices, "--market", market)
    solve = (
        "cookbook",
        "solve",
        WORKFLOW,
        *given,
        "--deadline",
        "15",
        "--most",
        "40",
        "--by-hour",
        "--into",
        book,
    )
    assert ebbtide(*solve, "--delay", "7200") == 2
    assert "decisions 7200 s before a charge; a step is 3600 s, give less" in capsys.readouterr().err
    assert ebbtide(*solve, "--on-demand", "0.21") == 0
    start = iso(eb.PriceHistory.read(prices).start_s + 3 * 86_400)
    apply = ("cookbook", "apply", book, *given, "--start", start, "--billing", "ec2-hourly", "--delay", "600")
    for more in ((), ("--on-demand",), ("--bids", "infinity")):
        capsys.readouterr()
        assert ebbtide(*apply, *more) == 0
        assert "deadline of 15 h met" in capsys.readouterr().out


def test_bad_input_is_told(prices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = tmp_path / "book.safetensors"
    assert (
        ebbtide("cookbook", "solve", WORKFLOW, "--prices", prices, "--market", "nowhere", "--deadline", "15") == 2
    )
    assert "unknown market 'nowhere'" in capsys.readouterr().err
    market = str(eb.PriceHistory.read(prices).markets[0])
    assert (
        ebbtide(
            "cookbook",
            "solve",
            WORKFLOW,
            "--prices",
            prices,
            "--market",
            market,
            "--deadline",
            "1",
            "--most",
            "3",
            "--into",
            book,
        )
        == 2
    )
    assert "33 machine-hours cannot be done in 1 h with 3 machines" in capsys.readouterr().err
    assert not book.exists()
    assert ebbtide("cookbook", "show", prices) == 2
    assert "cannot be read as a cookbook" in capsys.readouterr().err
