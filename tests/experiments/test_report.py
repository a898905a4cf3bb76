from __future__ import annotations

import re
from pathlib import Path

import pytest

import ebbtide as eb
from ebbtide.experiments.record import Record
from ebbtide.experiments.report import render, write_report
from ebbtide.policies.registry import policies


@pytest.fixture(scope="module")
def record(one_day: eb.Job) -> Record:
    return eb.backtest(policies("on-demand,reactive"), one_day, eb.generate_prices(days=15), starts=4).record()


def test_the_report_is_one_page_that_needs_no_network(record: Record, tmp_path: Path) -> None:
    path = write_report(record, tmp_path / "deep" / "report.html")
    page = path.read_text(encoding="utf-8")
    loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"([^\"]*)\"", page)
    assert loaded == ["data:,"]
    assert page.startswith("<!doctype html>")


def test_the_report_tells_what_the_record_holds(record: Record) -> None:
    page = render(record)
    for name, row in record.summary().items():
        assert name in page
        assert f"{row['cost_usd']['mean']:.3f} ±" in page
    for market in set(record.leases["market"]):
        assert market in page


def test_the_same_record_gives_the_same_page(record: Record) -> None:
    assert render(record) == render(record)


def test_names_are_escaped(record: Record) -> None:
    about = dict(record.about) | {"jobs": ["<script>alert(1)</script>"]}
    page = render(Record(about, record.outcomes, record.leases, record.timeline, record.ledger, record.prices))
    assert "<script>alert(1)</script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
