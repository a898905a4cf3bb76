"""Output of a reproduction: the terminal and the requested files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide.base.files import write_text
from ebbtide.cli.options import print_written, terminal
from ebbtide_papers.reproduction import Reproduction, counted, require_any

if TYPE_CHECKING:
    import plotly.graph_objects as go


def show_reproduction(
    result: Reproduction,
    title: str,
    json_path: Path | None,
    plot: Path | None = None,
    figure: Callable[[], go.Figure] | None = None,
) -> None:
    """Write the requested files, print the claims, and list the written files.

    Raises:
        InputError: No claim could be worked out; nothing is written.
    """
    require_any(result.rows)
    if json_path:
        result.write(json_path)
    if plot and figure:
        write_text(plot, figure().to_html(include_plotlyjs=True, full_html=True))
    _show(result, title)
    print_written(json_path, plot)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.2g}"


def _show(result: Reproduction, title: str) -> None:
    table = Table(title=title, box=SIMPLE_HEAD)
    for heading in ("claim", "paper", "ours", "unit", "holds"):
        table.add_column(heading, justify="right" if heading in ("paper", "ours") else "left")
    for row in result.rows:
        holds = "not worked out" if row.ours is None else "yes" if row.holds else "no"
        table.add_row(row.id, _number(row.paper), _number(row.ours), row.unit, holds)
    terminal().print(table)
    terminal().print(f"claims that hold: {counted([row.plain() for row in result.rows])}", highlight=False)
    by_reason: dict[str, list[str]] = {}
    for row in result.rows:
        if row.missing:
            by_reason.setdefault(row.missing, []).append(row.id)
    for reason, ids in by_reason.items():
        terminal().print(f"not worked out, since {reason}: {', '.join(ids)}", highlight=False, markup=False)
