"""`ebbtide revocation`: evaluate, train, predict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ebbtide as eb
from ebbtide.cli.main import main
from ebbtide.market.generator import demo_markets


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prices") / "prices.parquet"
    eb.generate_prices(demo_markets()[:2], days=8, seed=3, kind="auction").write(path)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["revocation", *arguments])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.mark.long
def test_evaluate_scores_and_writes(prices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "reliability.html"
    code, shown, _ = run(
        capsys,
        "evaluate",
        "--prices",
        str(prices),
        "--train-days",
        "4",
        "--test-days",
        "1",
        "--origins",
        "1",
        "--stride",
        "60",
        "--test-stride",
        "30",
        "--models",
        "revpred,base-rate",
        "--json",
        str(out),
        "--plot",
        str(plot),
    )
    assert code == 0
    assert "base-rate" in shown
    told = json.loads(out.read_text())
    assert set(told["models"]) == {"revpred", "base-rate"}
    assert set(told["correction"]) == {"none", "derived", "printed"}
    assert {"pooled", "0.1%", "1%", "10%", "markets"} == set(told["models"]["revpred"])
    assert "Eq. 3 derived" in plot.read_text()


@pytest.mark.long
def test_train_then_predict(prices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "model", tmp_path / "answers.json"
    code, shown, _ = run(
        capsys,
        "train",
        "--prices",
        str(prices),
        "--into",
        str(folder),
        "--train-days",
        "5",
        "--test-days",
        "1",
        "--stride",
        "60",
    )
    assert (code, shown.splitlines()[-1]) == (0, f"wrote {folder}")
    assert len(list((folder / "cards").glob("*.md"))) == 2
    code, shown, _ = run(
        capsys, "predict", "--prices", str(prices), "--model", str(folder), "--delta", "5", "--json", str(out)
    )
    assert code == 0
    told = json.loads(out.read_text())
    assert [row["market"] for row in told["markets"]] == [str(market) for market in demo_markets()[:2]]
    for row in told["markets"]:
        assert row["max_price"] == pytest.approx(1.05 * row["price"])
        assert 0 <= row["probability"] <= 1
    code, _, error = run(
        capsys, "predict", "--prices", str(prices), "--model", str(folder), "--at", "2012-01-01T00:00:00Z"
    )
    assert (code, error.count("\n")) == (2, 1)
    assert "outside the history" in error


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["evaluate", "--train-days", "30"], "training on 30 and testing on 3 needs 33.1"),
        (["evaluate", "--models", "oracle"], "unknown model 'oracle'"),
        (["evaluate", "--origins", "0"], "origins is 0"),
        (["predict", "--model", "nowhere"], "nowhere: is not a revocation model"),
        (["train", "--train-days", "99"], "the history has 8.0 days"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    prices: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    code, shown, error = run(capsys, arguments[0], "--prices", str(prices), *arguments[1:])
    assert (code, shown, error.count("\n")) == (2, "", 1)
    assert problem in error
