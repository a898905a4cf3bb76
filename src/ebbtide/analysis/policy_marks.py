"""How each policy looks in figures and tables: a colour that no other has, and a dash for those who tell few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

# Okabe and Ito's colours, told apart by colour-blind readers, their yellow darkened to be seen on white; then the
# same hues dark, light and very dark. Within a row hues differ, from row to row dashes do.
_COLOURS = (
    ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B5BD00", "#000000"),
    ("#003A5C", "#7A3300", "#00543D", "#83386A", "#8A5F00", "#14707E", "#4F5B00", "#4A4A4A"),
    ("#8FA8E8", "#F49B66", "#6CCFB2", "#EBB5D4", "#F7CC78", "#A6DBFA", "#E6EE8A", "#8C8C8C"),
    ("#4B3FA8", "#A8324A", "#3BA800", "#B05CFF", "#FF6F91", "#00A5A8", "#B3B38C", "#3A2A2A"),
)
_DASHES = ("solid", "dash", "dot", "dashdot")

# The same for SVG, in units of the line's width of 3.
_SVG_DASHES = {"solid": "none", "dash": "8 4", "dot": "3 3", "dashdot": "8 3 3 3", "longdash": "14 4"}


@dataclass(frozen=True)
class Mark:
    """How one policy looks.

    Attributes:
        colour: As #rrggbb.
        dash: Plotly's name of its line.
    """

    colour: str
    dash: str

    @property
    def svg_dash(self) -> str:
        """The dash as SVG's `stroke-dasharray`."""
        return _SVG_DASHES[self.dash]


def policy_marks(names: Sequence[str]) -> dict[str, Mark]:
    """A mark for each policy by its place: 32 have colours of their own, after them with other dashes."""
    marks = [Mark(colour, dash) for row, dash in zip(_COLOURS, _DASHES, strict=True) for colour in row]
    marks += [Mark(colour, "longdash") for colour in _COLOURS[0]]
    marks += [Mark(c, d) for row, d in product(_COLOURS, _DASHES) for c in row if Mark(c, d) not in marks]
    return {name: marks[place % len(marks)] for place, name in enumerate(dict.fromkeys(names))}
