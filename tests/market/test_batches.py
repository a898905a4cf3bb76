"""Batches of new prices: which are fit to be added, and what is wrong with the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.base.utc import DAY_S, HOUR_S, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.ingestion import BatchRules, judged
from ebbtide.market.price_series import PriceSeries

BEGAN_S = to_epoch_s("2015-06-01T00:00:00Z")
A = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")
# No list price is known of it.
UNLISTED = eb.Market("aws", "eu-north-1", "eu-north-1a", "c3.xlarge")


def history(market: eb.Market, *points: tuple[float, float]) -> eb.PriceHistory:
    """Of (hours after the beginning, price) pairs."""
    times, usd = zip(*points, strict=True)
    series = PriceSeries(BEGAN_S + np.array(times, dtype=float) * HOUR_S, np.array(usd))
    return eb.PriceHistory({market: series}, start_s=BEGAN_S, end_s=BEGAN_S + times[-1] * HOUR_S)


def written(tmp_path: Path, market: eb.Market, *points: tuple[float, float]) -> Path:
    history(market, *points).write(tmp_path / "batch.parquet")
    return tmp_path / "batch.parquet"


KNOWN = history(A, (0, 0.03), (24, 0.04))


def test_a_good_one_is_let_by(tmp_path: Path) -> None:
    found = judged(written(tmp_path, A, (25, 0.05), (30, 0.06)), KNOWN, BatchRules())
    assert (found.rows, found.problem) == (2, "")
    # Overlapping what is known is no gap; and the first of all has none.
    assert not judged(written(tmp_path, A, (2, 0.05), (30, 0.06)), KNOWN, BatchRules()).problem
    assert not judged(written(tmp_path, A, (900, 0.05), (930, 0.06)), None, BatchRules()).problem


def test_a_gap_is_told_with_its_length(tmp_path: Path) -> None:
    batch = written(tmp_path, A, (24 + 49, 0.05), (24 + 50, 0.06))
    problem = judged(batch, KNOWN, BatchRules()).problem
    assert "49 h after the known prices end; at most 48 h are allowed" in problem
    assert not judged(batch, KNOWN, BatchRules(max_gap_h=50)).problem
    # A batch before it, which came with it, closes the gap.
    before = judged(written(tmp_path, A, (25, 0.05), (40, 0.06)), KNOWN, BatchRules())
    assert before.ends_s == BEGAN_S + 40 * HOUR_S
    after = written(tmp_path, A, (24 + 49, 0.05), (24 + 50, 0.06))
    assert not judged(after, KNOWN, BatchRules(), known_until_s=before.ends_s).problem


def test_a_price_far_above_the_list_price_is_told(tmp_path: Path) -> None:
    batch = written(tmp_path, A, (25, 0.05), (26, 21.0))
    problem = judged(batch, KNOWN, BatchRules()).problem
    assert "costs 21 at 2015-06-02T02:00:00Z, 100 times its list price" in problem
    # Ten times the list price is what EC2 let bids go up to.
    assert not judged(written(tmp_path, A, (25, 2.1)), KNOWN, BatchRules()).problem


@pytest.mark.parametrize("prices", [((1, 0.05), (2, 11.0)), ((1, 11.0), (2, 0.05))])
def test_where_no_list_price_is_known_a_jump_is_told(
    tmp_path: Path, prices: tuple[tuple[float, float], ...]
) -> None:
    problem = judged(written(tmp_path, UNLISTED, *prices), None, BatchRules()).problem
    assert "goes from 0.05 to 11 USD an hour" in problem
    assert not judged(written(tmp_path, UNLISTED, *prices), None, BatchRules(max_jump=300)).problem


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a,b\n1,2\n", "not recognised as a header: a, b; needed are datetime"),
        ("", "holds nothing"),
        ("datetime,instance_type,os,region,price\n", "no"),
        (
            "datetime,instance_type,os,region,price\n2015-06-01 00:00:00+00:00,c3.xlarge,Linux/UNIX,us-east-1a,-1\n",
            "row 1",
        ),
        (
            "datetime,instance_type,os,region,price\n2015-06-01 00:00:00+00:00,z9.huge,Linux/UNIX,us-east-1a,1\n",
            "z9.huge",
        ),
    ],
)
def test_what_is_no_price_file_is_set_aside_with_the_reason(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "batch.csv").write_text(content)
    found = judged(tmp_path / "batch.csv", KNOWN, BatchRules())
    assert found.rows == 0
    assert problem in found.problem


def test_rules_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="max_gap_h is 0; it must be positive"):
        BatchRules(max_gap_h=0)
    assert BatchRules().max_gap_h * HOUR_S == 2 * DAY_S
