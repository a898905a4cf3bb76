"""What a reproduction writes is JSON for any reader, also where a figure is not defined on the given prices."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.markets import history

import ebbtide as eb
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide_papers.reproduction import Reproduction, Row, counted, ratio, require_any


def strictly(text: str) -> object:
    """The content of JSON, in which NaN and infinity are no numbers."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def test_figures_that_are_not_finite_are_null() -> None:
    row = Row("saving", "saved", None, math.nan, "fraction", False, "no price")
    tables = {"costs": {"v100": math.nan, "k80": 0.5}, "by_day": [1.0, math.inf, (-math.inf, 2)], "starts": 3}
    content = strictly(Reproduction("name", {}, 1, (row,), tables).to_json())
    assert isinstance(content, dict)
    assert content["rows"][0]["ours"] is None
    assert content["tables"] == {
        "costs": {"v100": None, "k80": 0.5},
        "by_day": [1.0, None, [None, 2]],
        "starts": 3,
    }


@pytest.mark.parametrize("ours", [None, math.nan, math.inf])
def test_a_row_without_a_figure_never_holds_and_says_why(ours: float | None) -> None:
    row = Row("saving", "saved", 0.8, ours, "fraction", True, "holds from 0.7 on", "one market only")
    assert (row.ours, row.holds, row.missing) == (None, False, "one market only")
    assert Row("saving", "saved", 0.8, ours, "fraction", True, "note").missing
    whole = Row("saving", "saved", 0.8, 0.9, "fraction", True, "holds from 0.7 on", "stale")
    assert (whole.holds, whole.missing) == (True, "")
    assert counted([asdict(one) for one in (row, whole)]) == "1 of 2, 1 could not be worked out here"
    assert counted([asdict(whole)]) == "1 of 1"
    require_any([row, whole])
    with pytest.raises(InputError, match="no claim can be worked out: one market only$"):
        require_any([row, row])


def test_a_ratio_over_nothing_is_not_defined() -> None:
    assert ratio(1.0, 2.0) == 0.5
    assert math.isnan(ratio(1.0, 0.0))
    assert math.isnan(ratio(math.nan, 1.0))
    assert math.isnan(ratio(1.0, math.inf))


def test_prices_that_begin_late_leave_gaps_in_the_tables(tmp_path: Path) -> None:
    v100 = eb.Market("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
    k80 = eb.Market("aws", "us-east-1", "us-east-1b", "p2.xlarge")
    # For a day, no market with a V100 has a price.
    history({v100: [(86_400, 1.0)], k80: [(0, 0.2), (10 * 86_400, 0.3)]}, hours=241.0).write(
        tmp_path / "prices.parquet"
    )
    words = ["reproduce", "dynamic-pricing", "--prices", str(tmp_path / "prices.parquet")]
    with pytest.raises(SystemExit) as end:
        main([*words, "--json", str(tmp_path / "out.json")])
    assert end.value.code == 0
    assert strictly((tmp_path / "out.json").read_text())
