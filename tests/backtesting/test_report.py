from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import ebbtide as eb
from ebbtide.backtesting.comparison import compare
from ebbtide.backtesting.figures import record_figure
from ebbtide.backtesting.record import BacktestRecord
from ebbtide.backtesting.report import render, write_report
from ebbtide.market.billing import billing_preset
from ebbtide.policies.registry import policies


@pytest.fixture(scope="module")
def record(one_day: eb.Job) -> BacktestRecord:
    return eb.backtest(
        one_day, policies("on-demand,reactive"), eb.generate_prices(days=15, kind="auction"), starts=4
    ).record()


def test_the_report_is_one_page_that_needs_no_network(record: BacktestRecord, tmp_path: Path) -> None:
    path = write_report(record, tmp_path / "deep" / "report.html")
    page = path.read_text(encoding="utf-8")
    loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"([^\"]*)\"", page)
    assert loaded == ["data:,"]
    assert page.startswith("<!doctype html>")


def test_the_report_tells_what_the_record_holds(record: BacktestRecord) -> None:
    page = render(record)
    for name, row in record.summary().items():
        assert name in page
        mean, std = row["cost_usd"]["mean"], row["cost_usd"]["std"]
        assert f'<td>{mean:.3f}<span class="std">± {std:.3f}</span></td>' in page
    for market in set(record.leases["market"]):
        assert market in page


def test_a_record_among_others_is_headed_by_its_name_once(record: BacktestRecord) -> None:
    (job,) = record.about["jobs"]
    rest = f"4 starts, billing {record.about['billing']}"
    assert record.title_under(job) == f"{job}: {rest}"
    assert record.title_under("first") == f"first: {job}: {rest}"
    page = render({job: record, "second": record})
    assert "<h2>second</h2>\n<p>Job one-day. Costs of each policy, replayed from 4 starts" in page
    assert f"<h2>{job}</h2>" in page


def test_the_same_record_gives_the_same_page(record: BacktestRecord) -> None:
    assert render(record) == render(record)


def test_names_are_escaped(record: BacktestRecord) -> None:
    about = dict(record.about) | {"jobs": ["<script>alert(1)</script>"]}
    page = render(
        BacktestRecord(about, record.outcomes, record.leases, record.timeline, record.ledger, record.prices)
    )
    assert "<script>alert(1)</script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_tables_of_a_comparison_tell_the_same_spread_and_are_sorted_by_cost(
    one_day: eb.Job, tmp_path: Path
) -> None:
    found = compare(
        one_day,
        policies("on-demand,cheapest-spot,reactive"),
        eb.generate_prices(days=15, kind="auction"),
        starts=4,
        billing=billing_preset("ec2-second"),
    )
    page = found.report(tmp_path / "page.html").read_text()
    tables = page.split("<table>")
    summary = found.result.summary()
    for row in found.rows:
        if row.policy in summary:
            told = summary[row.policy]["cost_usd"]
            assert row.cost_std_usd == told["std"]
            cell = f'<td>{told["mean"]:.3f}<span class="std">± {told["std"]:.3f}</span></td>'
            assert all(cell in table for table in tables[1:3])
    for table in tables[1:3]:
        # The first figure of each row.
        costs = [float(cost) for cost in re.findall(r"<tr>\s*<t[dh][^>]*>.*?<td>([\d.]+)<span", table, re.DOTALL)]
        assert len(costs) >= 3
        assert costs == sorted(costs)


def test_results_are_reports_from_python_and_tables_in_notebooks(one_day: eb.Job, tmp_path: Path) -> None:
    result = eb.backtest(
        one_day, policies("on-demand,reactive"), eb.generate_prices(days=15, kind="auction"), starts=2
    )
    path = result.report(tmp_path / "deep" / "x.html")
    assert path == tmp_path / "deep" / "x.html"
    assert path.read_text() == render(result.record())
    shown = result._repr_html_()
    assert all(name in shown for name in result.outcomes)
    assert len(shown) < 5_000
    assert repr(result) == "<BacktestResult of on-demand, reactive: 2 starts>"


def test_every_policy_has_its_label_mark_and_place_in_the_figure(record: BacktestRecord) -> None:
    many = [f"policy-{number}" for number in range(25)]
    outcomes = pd.concat(
        [record.outcomes[record.outcomes["policy"] == "reactive"].assign(policy=name) for name in many]
    )
    figure = record_figure(replace(record, outcomes=outcomes))
    boxes = [trace for trace in figure.data if trace.type == "box"]
    assert [box.name for box in boxes] == many
    assert len({box.marker.color for box in boxes}) == 25
    axis = figure.layout.yaxis2
    assert (axis.dtick, axis.automargin) == (1, True)
    panel_px = (axis.domain[1] - axis.domain[0]) * (figure.layout.height - 80)
    # Enough for a line of text each.
    assert panel_px / 25 >= 16
    assert figure.layout.height > record_figure(record).layout.height


def test_ids_of_pictures_differ_within_a_page_and_are_the_same_each_time(record: BacktestRecord) -> None:
    page = render({"a": record, "b": record})
    assert page == render({"a": record, "b": record})
    ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids))
    assert len(page.encode()) < 1_500_000
    assert "<script" not in page
