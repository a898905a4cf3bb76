"""The value of a metric in lines printed for people: beside its name, or below it in a table."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ebbtide.agent.log_formats import NUMBER

_SEPARATOR = r"[ _/.-]"
_VALUE = rf"({NUMBER}|[-+]?(?:nan|inf(?:inity)?)\b)"
# Words before a name that make it another metric.
_OTHERS = re.compile(r"\b(?:val|valid|validation|test|testing|eval|evaluation|dev|best)[ _/-]*$", re.I)
_OURS = re.compile(
    r"(?:^|[^\w]|\b(?:train|training|lm|avg|average|mean|running|total|batch|epoch)[ /-]?)\s*$", re.I
)
_PAIR = re.compile(rf"(?<![\w.])[\"']?([A-Za-z_][\w@/().%-]{{0,60}})[\"']?\s*[:=]\s*[\"']?{_VALUE}(?![\w])", re.I)
_CELL = re.compile(r"\s{2,}|\t|,|\s*\|\s*")
# Scores of boosters, whose names have spaces in them.
_SCORE = re.compile(rf"\s([A-Za-z][^\t:]*):\s*{_VALUE}")
# Rows of ultralytics end with a bar.
_BAR = re.compile(r":?\s*\d{1,3}%.*$")
_ROWS = 3


class MetricWords:
    """Finds the values of one metric.

    Args:
        name: Name of the metric; words of it may be joined by `_`, `-`, `/`, a point or a space.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        joined = _SEPARATOR.join(re.escape(part) for part in re.split(_SEPARATOR, name))
        after = rf"[\"']?(?:\s*[:=|]|\s+(?:is|was|reached|of)\b|(?<=[\"'\s])|(?=\s))\s*[\"']?{_VALUE}(?!\w|\.\w)"
        before = r"(?<![\w.])" if re.match(r"\w", name) else ""
        self._exact = re.compile(before + joined + after)
        self._any_case = re.compile(before + joined + after, re.I)
        self._below: tuple[int, int] | None = None

    def value_in(self, text: str) -> float | None:
        """The metric's value on a line; NaN if the line says so, None if it has none."""
        for pattern in (self._exact, self._any_case):
            found = sorted(
                (0 if _OURS.search(text[: match.start()]) else 1, place, match[1])
                for place, match in enumerate(pattern.finditer(text))
                if not _OTHERS.search(text[: match.start()])
            )
            if found:
                return float(found[0][2])
        return self._in_table(text)

    def value_of_end(self, text: str) -> float | None:
        """The last value on a line whose name ends in the metric's, as `valid-rmse` ends in `rmse`."""
        found = [float(match[2]) for match in _SCORE.finditer(text) if _ends_in(match[1], self.name)]
        return found[-1] if found else None

    def _in_table(self, text: str) -> float | None:
        """The value in the metric's column, in a row below a line of column names."""
        text = _BAR.sub("", text)
        cells = [cell for cell in _CELL.split(text.strip(" |")) if cell]
        tokens = cells if "," in text or "|" in text else text.split()
        for names in (cells, [token.strip("():") for token in tokens]):
            if len(names) > 2 and self.name in names and not any(map(_is_number, names)):
                # Counted from the end: names may have several words, and rows may begin with a name or a bar.
                self._below = len(names) - names.index(self.name), _ROWS
                return None
        if self._below is None or len(tokens) < 2:
            return None
        place, rows = self._below
        if len(tokens) >= place and _is_number(tokens[-place]):
            return float(tokens[-place])
        self._below = (place, rows - 1) if rows > 1 else None
        return None


def names_in(text: str) -> Iterator[str]:
    """Names that a line gives values of."""
    for match in _PAIR.finditer(text):
        yield match[1]


def _ends_in(name: str, end: str) -> bool:
    return name == end or name.endswith(tuple(f"{mark}{end}" for mark in "-/_ "))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
