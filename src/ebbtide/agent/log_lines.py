"""How far a training is, from lines that it prints for people, such as `epoch 3/10 loss 0.12`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
# The larger unit first: within an epoch, steps begin anew.
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
        metric: The name of its metric; empty: none is looked for.
        began: Steps that were done when the program was started, as this tells them.
        unit: In which it counts, `epoch` or `step`; empty: none was seen. Once it has shown epochs, those count.
        first: The number of its first step: 1, or 0 where the first one printed had been done already.
    """

    metric: str = ""
    began: int = 0
    unit: str = ""
    first: int = 1

    def told(self, line: str) -> dict[str, float | int]:
        """What a line tells, as a program that reports JSON would: `step`, and the metric; empty: nothing."""
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
