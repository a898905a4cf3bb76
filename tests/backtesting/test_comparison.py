"""All policies on one job, and the floor that none comes below."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.markets import C3, R3, START_S, history, job

import ebbtide as eb
from ebbtide.backtesting.comparison import FLOOR, compare, floor_usd
from ebbtide.backtesting.record import BacktestRecord
from ebbtide.backtesting.report import render
from ebbtide.base.utc import HOUR_S
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.market.billing import billing_preset
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.generator import generate_auction_prices
from ebbtide.policies.registry import POLICIES, policies


def test_the_floor_by_hand() -> None:
    """One step a second on c3.xlarge, half one on r3.large; two hours of work within three."""
    prices = history({C3: [(0, 0.10), (3600, 0.02), (7200, 0.05)], R3: [(0, 0.03)]}, hours=10)
    catalogue = default_catalogue()
    # The second hour on C3 at 0.02, the third at 0.05; R3 costs 0.06 for as much.
    assert floor_usd(job(7200), prices, START_S, START_S + 3 * HOUR_S, catalogue) == pytest.approx(0.07)
    # Half an hour more: R3's steps at 0.06 an hour, before C3's at 0.10.
    assert floor_usd(job(9000), prices, START_S, START_S + 3 * HOUR_S, catalogue) == pytest.approx(0.07 + 0.03)
    with pytest.raises(InputError, match="does not fit between its start and its deadline"):
        floor_usd(job(4 * 3600), prices, START_S, START_S + 3 * HOUR_S, catalogue)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1_000), steps=st.integers(1_000, 20_000))
def test_without_refunds_no_policy_comes_below_the_floor(seed: int, steps: int) -> None:
    prices = generate_auction_prices(days=12, seed=seed)
    work = eb.Job(
        name="j", steps=steps, steps_per_hour={"c3.xlarge": 1_000, "m3.medium": 210, "g2.2xlarge": 2_600}
    )
    found = compare(
        work,
        policies("on-demand,cheapest-spot,reactive,deepspotcloud-migrate"),
        prices,
        billing=billing_preset("per-second"),
        starts=3,
        seed=seed,
    )
    assert all(row.over_floor >= 1.0 for row in found.rows if not np.isnan(row.over_floor))
    assert found.rows[0].policy == FLOOR


def test_each_policy_has_a_row_and_one_that_cannot_serve_says_why() -> None:
    whole = eb.Job(name="whole", steps=3_000, steps_per_hour={"c3.xlarge": 1_000}, checkpoint=None)
    found = compare(
        whole,
        policies(list(POLICIES)),
        generate_auction_prices(days=10, seed=1),
        billing=billing_preset("ec2-second"),
        starts=2,
    )
    by_name = {row.policy: row for row in found.rows}
    assert set(by_name) == {*POLICIES, FLOOR}
    for name, row in by_name.items():
        assert np.isnan(row.cost_usd) == bool(row.why_not), name
    costs = [row.cost_usd for row in found.rows if not row.why_not]
    assert costs == sorted(costs)


def test_what_is_late_is_a_miss() -> None:
    prices = history({C3: [(0, 0.03)], R3: [(0, 0.01)]}, hours=60)
    found = compare(
        job(3600),
        policies("cheapest-spot,fastest-spot"),
        prices,
        billing=billing_preset("per-second"),
        starts=4,
        deadline_h=1.5,
    )
    by_name = {row.policy: row for row in found.rows}
    # R3 takes two hours.
    assert by_name["cheapest-spot"].misses == 4
    assert by_name["cheapest-spot"].why_not == "it never finished in time"
    assert by_name["fastest-spot"].misses == 0


def test_several_jobs_are_compared_without_a_floor(tmp_path: Path) -> None:
    """Costs of two jobs add up, and no bound is claimed."""
    prices = history({C3: [(0, 0.10)]}, hours=10)
    alone = compare(job(7200), policies("on-demand,cheapest-spot"), prices, starts=1)
    both = [job(7200).model_copy(update={"name": name}) for name in ("a", "b")]
    found = compare(both, policies("on-demand,cheapest-spot"), prices, starts=1)
    assert [row.policy for row in found.rows] == ["cheapest-spot", "on-demand"]
    costs = {row.policy: row.cost_usd for row in alone.rows}
    for row in found.rows:
        assert row.cost_usd == pytest.approx(2.0 * costs[row.policy])
        assert np.isnan(row.over_floor)
    assert FLOOR in str(alone)
    assert "x floor" in alone.table().headings
    assert "x floor" not in found.table().headings
    page = found.report(tmp_path / "page.html").read_text()
    assert "x floor" not in page
    found.record().write(tmp_path / "record")
    assert render(BacktestRecord.read(tmp_path / "record")) == page


@pytest.mark.long
@pytest.mark.usefixtures("in_project")
def test_the_command_writes_rows_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "rows.json", tmp_path / "page.html"
    words = [
        "compare",
        "examples/one-day.yaml",
        "--generate",
        "20",
        "--starts",
        "2",
        "--policies",
        "on-demand,reactive",
    ]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json", str(out), "--report", str(page)])
    assert ended.value.code in (0, None)
    told = capsys.readouterr().out
    assert "No schedule costs less." in told
    assert "saved: against on-demand; x floor: cost / the lowest possible with all prices known" in told
    rows = json.loads(out.read_text())["rows"]
    assert [row["policy"] for row in rows] == [FLOOR, "reactive", "on-demand"]
    assert rows[2]["saved"] == 0.0
    text = page.read_text()
    assert (
        text.index("All policies") < text.index("With their spread") < text.index("All starts, and the start of ")
    )
    assert "<td>reactive</td>" in (leases := text[text.index("Machines rented from this start") :])
    assert leases.index("<td>reactive</td>") < leases.index("<td>on-demand</td>")
