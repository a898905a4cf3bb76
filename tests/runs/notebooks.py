"""Cells of a notebook for tests, entered as IPython enters them: their source is in `linecache` alone."""

from __future__ import annotations

import itertools
import linecache
import textwrap
from typing import Any

_COUNTER = itertools.count()


class Notebook:
    """Cells that share their names.

    Attributes:
        space: What they have defined.
    """

    def __init__(self) -> None:
        self.space: dict[str, Any] = {"__name__": "__main__"}

    def cell(self, text: str, *, flags: int = 0) -> None:
        """Enter and run a cell."""
        text = textwrap.dedent(text)
        name = f"/nowhere/ipykernel_1/{next(_COUNTER)}.py"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec", flags=flags, dont_inherit=True), self.space)

    def __getitem__(self, name: str) -> Any:
        return self.space[name]
