"""Ingestion as a flow: prices of one source are never added to those of another."""

from __future__ import annotations

from pathlib import Path

import pytest
from flows.ingest import _begin

from ebbtide.errors import InputError


@pytest.mark.parametrize(
    ("before", "source", "is_kept"),
    [
        ("ec2", "ec2", True),
        ("generated", "ec2", False),
        ("ec2", "generated", False),
        ("generated", "generated", False),
        (None, "files", False),
    ],
)
def test_only_the_prices_of_ec2_are_kept(tmp_path: Path, before: str | None, source: str, is_kept: bool) -> None:
    prices, noted = tmp_path / "prices.parquet", tmp_path / "price-source.txt"
    prices.write_bytes(b"prices")
    if before is not None:
        noted.write_text(f"{before}\n")
    _begin(prices, noted, source)
    assert prices.exists() == is_kept
    assert noted.read_text() == f"{source}\n"


def test_prices_of_an_unknown_source_are_not_taken_for_those_of_ec2(tmp_path: Path) -> None:
    """Before, prices that DVC had restored were taken for EC2's, and real prices were added to generated ones."""
    prices, noted = tmp_path / "prices.parquet", tmp_path / "price-source.txt"
    prices.write_bytes(b"prices")
    for told in (None, "", '"ec2"'):
        if told is not None:
            noted.write_text(told)
        with pytest.raises(InputError, match=r"prices.parquet: is of an unknown source: delete it, or, if"):
            _begin(prices, noted, "ec2")
        assert prices.exists()
    noted.write_bytes(b"EC2\n")
    _begin(prices, noted, "ec2")
    assert prices.exists()
    prices.unlink()
    _begin(prices, noted, "ec2")
    assert noted.read_text() == "ec2\n"
