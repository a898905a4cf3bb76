"""Names that users choose, on a terminal: shown as written, never interpreted.

A market, a setting or a file may be named `[/red]`, `:boom:` or an escape sequence. Rich would read the first as
markup, the second as an emoji, and the terminal would obey the third.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.status import Status
from rich.text import Text

# Control characters except tab and line feed, and those that change the direction of the text after them.
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text with control characters written out, such as `\\x1b`."""
    return _HIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


class PlainStatus(Status):
    """A line with a spinner, whose text is shown as written."""

    def update(self, status: RenderableType | None = None, **options: Any) -> None:
        """Show another text."""
        super().update(Text(visible(status)) if isinstance(status, str) else status, **options)


class PlainConsole(Console):
    """A console that shows text as written: no markup, no emoji codes, no control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def status(self, status: RenderableType, **options: Any) -> PlainStatus:
        """A line with a spinner, while something is done."""
        shown = Text(visible(status)) if isinstance(status, str) else status
        return PlainStatus(shown, console=self, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Text for the cells of a table, measured as it will be shown."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments of anything, for text that came as a `Text` of its own."""
        for segment in super().render(renderable, options):
            if segment.control is None and _HIDDEN.search(segment.text):
                yield Segment(visible(segment.text), segment.style)
            else:
                yield segment
