"""Tables with one row per policy, for terminals, plain text and HTML; colours and dashes of policies."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ebbtide.base import html as html
from ebbtide.base.terminal import PlainConsole

# Okabe and Ito's colours, which colour-blind readers can distinguish, with a darker yellow for white paper; then
# the same hues dark, light and very dark. Hues differ within a row, dashes from row to row.
_COLOURS = (
    ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B5BD00", "#000000"),
    ("#003A5C", "#7A3300", "#00543D", "#83386A", "#8A5F00", "#14707E", "#4F5B00", "#4A4A4A"),
    ("#8FA8E8", "#F49B66", "#6CCFB2", "#EBB5D4", "#F7CC78", "#A6DBFA", "#E6EE8A", "#8C8C8C"),
    ("#4B3FA8", "#A8324A", "#3BA800", "#B05CFF", "#FF6F91", "#00A5A8", "#B3B38C", "#3A2A2A"),
)
_DASHES = ("solid", "dash", "dot", "dashdot")

# The same for SVG, in units of the line's width of 3.
_SVG_DASHES = {"solid": "none", "dash": "8 4", "dot": "3 3", "dashdot": "8 3 3 3", "longdash": "14 4"}

# Okabe and Ito's colours, which colour-blind readers can distinguish: for figures with few lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")


@dataclass(frozen=True)
class Mark:
    """The colour and dash of one policy in figures and tables.

    Attributes:
        colour: Colour of its line, as #rrggbb.
        dash: Dash of its line, by Plotly's name.
    """

    colour: str
    dash: str

    @property
    def svg_dash(self) -> str:
        """The dash as SVG's `stroke-dasharray`."""
        return _SVG_DASHES[self.dash]


def policy_marks(names: Sequence[str]) -> dict[str, Mark]:
    """A mark for each policy, by its position: the first 32 have unique colours, later ones other dashes."""
    marks = [Mark(colour, dash) for row, dash in zip(_COLOURS, _DASHES, strict=True) for colour in row]
    marks += [Mark(colour, "longdash") for colour in _COLOURS[0]]
    marks += [Mark(c, d) for row, d in product(_COLOURS, _DASHES) for c in row if Mark(c, d) not in marks]
    return {name: marks[place % len(marks)] for place, name in enumerate(dict.fromkeys(names))}


# Width of the text that `str` gives: a notebook cell or a page of code.
PLAIN_WIDTH = 100

# Wider than any terminal, to measure a table's width.
_UNBOUND = 1_000

# Names are broken at this width where they would leave no room for figures.
_NARROW_NAME = 20


@dataclass(frozen=True)
class MeanAndDeviation:
    """A mean and its standard deviation, for a table cell.

    Attributes:
        mean: Mean of the values; NaN: no values.
        std: Sample standard deviation of the values.
        digits: Number of digits shown after the point.
    """

    mean: float
    std: float
    digits: int

    @property
    def parts(self) -> tuple[str, str]:
        """Mean and deviation as text; a dash and an empty text without values."""
        if math.isnan(self.mean):
            return "-", ""
        return f"{self.mean:.{self.digits}f}", f"± {self.std:.{self.digits}f}"

    def __str__(self) -> str:
        return " ".join(part for part in self.parts if part)


@dataclass(frozen=True)
class PolicyTable:
    """A table of figures by policy. Nothing is cut off: in narrow terminals, cells take two lines.

    Attributes:
        title: Title above the table.
        headings: Headings of the columns after the policy's.
        rows: Name of each policy and its cells.
        notes: Lines of text below the table.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str | MeanAndDeviation]]]
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
        """The table as an HTML fragment with inline style."""
        rows = [[name, *map(str, cells)] for name, cells in self.rows]
        return html.table(self.title, ["policy", *self.headings], rows, self.notes)

    def _table(self, *, tight: bool = False, stacked: bool = False) -> Table:
        """The table, optionally with narrow gaps between columns (`tight`) and cells of two lines (`stacked`)."""
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


def _stacked(cell: str | MeanAndDeviation) -> str:
    if isinstance(cell, str):
        return cell
    mean, deviation = cell.parts
    return f"{mean}\n{deviation.replace(' ', '')}" if deviation else mean


def _broken(name: str) -> str:
    """A long name on two or more lines, broken after a hyphen where possible."""
    if len(name) <= _NARROW_NAME:
        return name
    at = name.rfind("-", 0, _NARROW_NAME) + 1 or _NARROW_NAME
    return f"{name[:at]}\n{_broken(name[at:])}"
