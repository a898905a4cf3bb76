"""`ebbtide portfolio`: what it shows adds up, and what is wrong is said in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ebbtide as eb
from ebbtide.cli.main import main


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prices") / "prices.parquet"
    eb.generate_prices(days=30, seed=2, kind="auction").write(path)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["portfolio", *map(str, arguments)])
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out, told.err


def test_shares_sum_to_one_and_machines_have_all_that_was_asked(
    prices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "--prices", prices, "--vcpus", 100, "--alpha", 100, "--json", tmp_path / "p.json")
    assert code == 0
    assert "of what is rented is surplus" in out
    content = json.loads((tmp_path / "p.json").read_text())
    assert len(content["markets"]) > 1
    assert sum(row["share"] for row in content["markets"]) == pytest.approx(1.0)
    catalogue = eb.default_catalogue()
    vcpus = sum(
        row["machines"] * catalogue.instance_type("aws", row["market"].split()[1]).vcpus
        for row in content["markets"]
    )
    assert vcpus >= 100
    assert content["portfolio"]["over_allocated"] == pytest.approx(1 - 100 / vcpus)


def test_the_frontier_gives_saving_for_risk(
    prices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, _ = run(capsys, "--prices", prices, "--frontier", "--json", tmp_path / "f.json")
    assert code == 0
    rows = json.loads((tmp_path / "f.json").read_text())["frontier"]
    for column in ("saving", "risk"):
        values = [row[column] for row in rows]
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the cluster is empty; give --vcpus"),
        (("--vcpus", 4, "--covariance", "beta"), "unknown covariance 'beta'; known: hybrid, price, revocation"),
        (("--vcpus", 4, "--instance-type", "c9.huge"), "none meets the constraints"),
        (("--vcpus", 4, "--least-mttr-h", 100_000), "live 100000 h in the mean"),
    ],
)
def test_what_is_wrong_is_said(
    prices: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], said: str
) -> None:
    code, _, errors = run(capsys, "--prices", prices, *arguments)
    assert code == 2
    assert said in errors
    assert errors.count("\n") == 1
