"""What a reproduction writes is JSON for any reader, also where a figure is not defined on the given prices."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.markets import history

import ebbtide as eb
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide_papers.reproduction import (
    ClaimRow,
    PaperClaim,
    Reproduction,
    around,
    at_least,
    at_most,
    counted,
    half_the_effect,
    half_to_twice_the_effect,
    ratio,
    require_any,
)


def strictly(text: str) -> object:
    """The content of JSON, in which NaN and infinity are no numbers."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def test_figures_that_are_not_finite_are_null() -> None:
    row = ClaimRow("saving", "saved", None, math.nan, "fraction", at_most(1.0), missing="no price")
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
    claim = PaperClaim("saved", 0.8, "fraction", at_least(0.7), "mean prices")
    row = claim.row("saving", ours, missing="one market only")
    assert (row.ours, row.holds, row.missing) == (None, False, "one market only")
    assert claim.row("saving", ours).missing
    whole = claim.row("saving", 0.9, note="thirteen markets", missing="stale")
    assert (whole.holds, whole.missing, whole.note) == (True, "", "thirteen markets; mean prices")
    assert counted([one.plain() for one in (row, whole)]) == "1 of 2, 1 could not be worked out here"
    assert counted([whole.plain()]) == "1 of 1"
    require_any([row, whole])
    with pytest.raises(InputError, match="no claim can be worked out: one market only$"):
        require_any([row, row])


def test_a_claim_holds_within_its_tolerance() -> None:
    near = around(2.0, 0.25)
    assert near.text == "within 25% of the paper's (1.5 to 2.5)"
    assert [near.holds(figure) for figure in (1.49, 1.5, 2.5, 2.51)] == [False, True, True, False]
    assert half_the_effect(0.4).least == pytest.approx(0.2)
    cheaper = half_the_effect(0.8, none=1.0)
    assert cheaper.text == "at most 0.9: half of the paper's effect"
    assert [cheaper.holds(figure) for figure in (0.5, 0.9, 0.91)] == [True, True, False]
    size = half_to_twice_the_effect(3.0, none=1.0)
    assert (size.least, size.most) == (2.0, 5.0)
    size = half_to_twice_the_effect(0.8, none=1.0)
    assert (size.least, size.most) == (pytest.approx(0.6), pytest.approx(0.9))
    assert at_most(0.0).holds(0.0)


def test_reasons_are_not_listed_without_end() -> None:
    claim = PaperClaim("saved", 0.8, "fraction", at_least(0.7))
    with pytest.raises(InputError, match="worked out: reason 0; reason 1; and 3 more reasons$"):
        require_any([claim.row(f"{place}", None, missing=f"reason {place}") for place in range(5)])


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
