"""Tables with a row a policy: for terminals of any width, as plain text, and as HTML for notebooks."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ebbtide._terminal import PlainConsole

# What `str` gives: as wide as a notebook's cell or a page of code.
PLAIN_WIDTH = 100

# Wider than any terminal: to measure how much room a table would take.
_UNBOUND = 1_000

# Where names are broken that would leave no room for figures.
_NARROW_NAME = 20


@dataclass(frozen=True)
class Spread:
    """A mean with the deviation around it.

    Attributes:
        mean: NaN: of nothing.
        std: Standard deviation of the sample.
        digits: Shown behind the point.
    """

    mean: float
    std: float
    digits: int

    @property
    def parts(self) -> tuple[str, str]:
        """Mean and deviation as text; a dash and nothing, where there is none."""
        if math.isnan(self.mean):
            return "-", ""
        return f"{self.mean:.{self.digits}f}", f"± {self.std:.{self.digits}f}"

    def __str__(self) -> str:
        return " ".join(part for part in self.parts if part)


@dataclass(frozen=True)
class PolicyTable:
    """Figures by policy. Nothing in it is ever cut: where there is little room, cells take two lines.

    Attributes:
        title: Above it.
        headings: Of the columns after the policy's.
        rows: A policy's name and its cells.
        notes: Lines below.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str | Spread]]]
    notes: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbound = options.update(width=_UNBOUND)
        tables = (self._table(), self._table(tight=True), self._table(tight=True, stacked=True))
        fitting = (t for t in tables if Measurement.get(console, unbound, t).maximum <= options.max_width)
        yield next(fitting, tables[-1])

    def __str__(self) -> str:
        out = io.StringIO()
        PlainConsole(file=out, width=PLAIN_WIDTH, no_color=True, highlight=False).print(self)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def to_html(self) -> str:
        """The table alone, with the little style it needs."""
        cell = 'style="text-align: right; white-space: nowrap"'
        head = "".join(f"<th {cell}>{escape(heading)}</th>" for heading in self.headings)
        lines = [
            f'<tr><td style="text-align: left">{escape(name)}</td>'
            + "".join(f"<td {cell}>{escape(str(each))}</td>" for each in cells)
            + "</tr>"
            for name, cells in self.rows
        ]
        notes = "".join(f"<div>{escape(note)}</div>" for note in self.notes)
        return (
            f'<div style="overflow-x: auto"><table><caption>{escape(self.title)}</caption>'
            f'<thead><tr><th style="text-align: left">policy</th>{head}</tr></thead>'
            f"<tbody>{''.join(lines)}</tbody></table>{notes}</div>"
        )

    def _table(self, *, tight: bool = False, stacked: bool = False) -> Table:
        """The table with little between its columns, and with cells of two lines."""
        # Texts, not markup: policies and jobs are named by users.
        table = Table(
            title=Text(self.title),
            caption=Text("\n".join(self.notes)) if self.notes else None,
            caption_justify="left",
            box=SIMPLE_HEAD,
            padding=0 if tight else (0, 1, 0, 0),
            pad_edge=False,
        )
        table.add_column("policy", overflow="fold")
        for heading in self.headings:
            table.add_column(
                Text(heading.replace(" ", "\n") if tight else heading), justify="right", overflow="fold"
            )
        for name, cells in self.rows:
            table.add_row(
                Text(_broken(name) if stacked else name),
                *(Text(_stacked(each) if stacked else str(each)) for each in cells),
            )
        return table


def _stacked(cell: str | Spread) -> str:
    if isinstance(cell, str):
        return cell
    mean, deviation = cell.parts
    return f"{mean}\n{deviation.replace(' ', '')}" if deviation else mean


def _broken(name: str) -> str:
    """A long name on two lines, broken behind a hyphen where it has one."""
    if len(name) <= _NARROW_NAME:
        return name
    at = name.rfind("-", 0, _NARROW_NAME) + 1 or _NARROW_NAME
    return f"{name[:at]}\n{_broken(name[at:])}"
