"""Progress of programs that do not use `ebbtide.trial`, read from the lines that they print for people."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
# The larger unit first: in each epoch, steps may be counted from the beginning.
_UNITS = tuple(
    (unit, re.compile(rf"\b(?:{words})\b\s*[:=#\[(]*\s*(\d{{1,12}})\b", re.IGNORECASE))
    for unit, words in (("epoch", "epochs?"), ("step", "global[_ ]?step|steps?|iters?|iterations?"))
)
# Such a line names what was done before, in whichever way the program counts.
_RESUMES = re.compile(r"\b(?:resum|restor|load|continu|restart|start(?:ing|ed)? (?:from|after|at))", re.IGNORECASE)
_MOST_CHARACTERS = 2_000


@dataclass
class LogLines:
    """Reads the lines of one program.

    Attributes:
        metric: Name of the metric to look for; empty: none.
        began: Steps that were done when the program was started, in the units that are reported here.
        unit: What the program counts, `epoch` or `step`; empty: not seen yet. Epochs count once it printed any.
        first: Number of the program's first step: 1, or 0 if the first one that it printed had been done already.
    """

    metric: str = ""
    began: int = 0
    unit: str = ""
    first: int = 1

    def report_of(self, line: str) -> dict[str, float | int]:
        """What a line reports: `step`, and the metric by its name, as in a line of JSON; empty: nothing."""
        line = line[:_MOST_CHARACTERS]
        found: dict[str, float | int] = {}
        if self.began and not self.unit and _RESUMES.search(line):
            return found
        for unit, pattern in _UNITS:
            match = pattern.search(line)
            if match is not None:
                if unit == "epoch" or self.unit != "epoch":
                    number = int(match[1])
                    if unit != self.unit:
                        self.unit, self.first = unit, 0 if number == self.began else 1
                    found["step"] = number + 1 - self.first
                break
        if found and self.metric:
            match = re.search(rf"(?<![\w.]){re.escape(self.metric)}\s*[:=]?\s*({_NUMBER})(?![\w.])", line)
            if match is not None:
                found[self.metric] = float(match[1])
        return found
