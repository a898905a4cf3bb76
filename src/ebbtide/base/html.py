"""Tables for notebooks: HTML fragments in which every text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_LEFT, _RIGHT = 'style="text-align: left"', 'style="text-align: right; white-space: nowrap"'


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """A table with inline style.

    Args:
        title: Title above the table.
        headings: Headings of the columns, of which the first is aligned to the left.
        rows: The cells of each row.
        notes: Lines of text below the table.
    """
    head = _row(headings, "th")
    body = "".join(_row(cells, "td") for cells in rows)
    below = "".join(f"<div>{escape(note)}</div>" for note in notes)
    return (
        f'<div style="overflow-x: auto"><table><caption>{escape(title)}</caption>'
        f"<thead>{head}</thead><tbody>{body}</tbody></table>{below}</div>"
    )


def _row(cells: Sequence[str], kind: str) -> str:
    placed = (f"<{kind} {_RIGHT if place else _LEFT}>{escape(cell)}</{kind}>" for place, cell in enumerate(cells))
    return f"<tr>{''.join(placed)}</tr>"
