"""Tables of policies: nothing is cut at any width, names are text, and marks differ."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from ebbtide.backtesting.policy_table import PLAIN_WIDTH, MeanAndDeviation, PolicyTable, policy_marks
from ebbtide.backtesting.summary import summary_table
from ebbtide.policies.registry import POLICIES


def statistics(cost: float | None) -> dict[str, object]:
    spread = {"mean": cost, "std": None if cost is None else 12.345, "p95": cost}
    metrics = ("cost_usd", "makespan_h", "revocations", "refund_usd", "checkpoints", "steps_lost")
    return dict.fromkeys(metrics, spread) | {"unfinished": 3}


def drawn(table: PolicyTable, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_cell_is_cut(width: int) -> None:
    table = summary_table({name: statistics(123.456) for name in POLICIES}, "a title")
    text = drawn(table, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for heading in ("cost", "p95", "revoked", "refund", "lost"):
        assert heading in text
    joined = "".join(text.split())
    for name in POLICIES:
        assert name in joined or all(part in joined for part in name.split("-")), name
    # Each policy has its mean and its spread, in full.
    assert text.count("123.456") == 3 * len(POLICIES)
    assert joined.count("±12.345") == 2 * len(POLICIES)


def test_as_text_it_is_no_wider_than_promised() -> None:
    text = str(summary_table({name: statistics(123.456) for name in POLICIES}, "a title"))
    assert max(map(len, text.splitlines())) <= PLAIN_WIDTH == 100


def test_the_cheapest_is_first_and_what_never_finished_last() -> None:
    table = summary_table({"b": statistics(2.0), "never": statistics(None), "a": statistics(1.0)}, "")
    assert [name for name, _ in table.rows] == ["a", "b", "never"]
    assert str(table.rows[-1][1][0]) == "-"


def test_names_are_text_and_never_markup() -> None:
    hostile = PolicyTable(
        "[/red] title", ["cost"], [("[/b]x", [MeanAndDeviation(1.0, 0.5, 2)]), ("[bold]", ["<i>"])], ["[/i]"]
    )
    text = drawn(hostile, 80)
    assert all(part in text for part in ("[/red] title", "[/b]x", "[bold]", "[/i]", "1.00 ± 0.50"))
    page = hostile.to_html()
    assert "<i>" not in page
    assert "&lt;i&gt;" in page


def test_a_spread_of_nothing_is_a_dash() -> None:
    assert str(MeanAndDeviation(math.nan, 0.0, 2)) == "-"


def test_colours_do_not_repeat_and_marks_never() -> None:
    marks = policy_marks([f"policy {number}" for number in range(60)])
    assert len(set(marks.values())) == 60
    colours = [mark.colour for mark in list(marks.values())[:32]]
    assert len(set(colours)) == 32
    rgb = [tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5)) for colour in colours]
    apart = min(math.dist(one, other) for place, one in enumerate(rgb) for other in rgb[:place])
    assert apart > 35, apart
    # The same eight hues come back with another dash each time.
    dashes = [mark.dash for mark in list(marks.values())[:32]]
    assert [len(set(dashes[row : row + 8])) for row in range(0, 32, 8)] == [1, 1, 1, 1]
    assert len(set(dashes)) == 4
    assert all(mark.svg_dash for mark in marks.values())
