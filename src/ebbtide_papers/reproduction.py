"""Reproductions of papers: each claim with the paper's figure, ours, and whether it holds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ebbtide._files import write_text
from ebbtide._json import json_text
from ebbtide.errors import InputError

# The reason of a row without a figure that gives none of its own.
_UNDEFINED = "the figure is not defined on these files"


@dataclass(frozen=True)
class Row:
    """One claim of a paper and our result. A row without a figure never holds, and says why there is none.

    Attributes:
        id: Short name of the claim.
        claim: The claim in words.
        paper: The paper's figure; None: it gives none.
        ours: Our figure; None (also given as NaN or infinity): it could not be worked out here.
        unit: Unit of both figures: `fraction`, `ratio`, `USD`...
        holds: Whether the claim holds by the rule in `note`.
        note: The rule, and why our figure differs where it does.
        missing: Why there is no figure; empty where there is one.
    """

    id: str
    claim: str
    paper: float | None
    ours: float | None
    unit: str
    holds: bool
    note: str
    missing: str = ""

    def __post_init__(self) -> None:
        """Without a figure: nothing holds, and there is a reason; with one, there is none."""
        known = self.ours is not None and math.isfinite(self.ours)
        settled = {
            "ours": float(self.ours) if known and self.ours is not None else None,
            "holds": known and bool(self.holds),
            "missing": "" if known else self.missing or _UNDEFINED,
        }
        for name, value in settled.items():
            object.__setattr__(self, name, value)

    @classmethod
    def without(cls, row_id: str, claim: str, paper: float | None, unit: str, missing: str) -> Row:
        """A row without a figure, for this reason."""
        return cls(row_id, claim, paper, None, unit, False, f"not worked out: {missing}", missing)


@dataclass(frozen=True)
class Reproduction:
    """All claims of a paper and our results.

    Attributes:
        name: Name of the system.
        inputs: SHA-256 of each input file, by file name.
        seed: Seed of all random numbers.
        rows: One row for each claim.
        tables: Further figures, by name, in plain values.
    """

    name: str
    inputs: dict[str, str]
    seed: int
    rows: tuple[Row, ...]
    tables: dict[str, Any]

    def to_json(self) -> str:
        """The reproduction as JSON: the same bytes for the same inputs."""
        content = {
            "name": self.name,
            "inputs": self.inputs,
            "seed": self.seed,
            "rows": [asdict(row) for row in self.rows],
            "tables": self.tables,
        }
        return json_text(content)

    def write(self, path: str | Path) -> None:
        """Write `to_json` to a file, atomically."""
        write_text(path, self.to_json())


def is_missing(row: Mapping[str, Any]) -> bool:
    """Whether a row, as JSON has it, is without a figure."""
    return row["ours"] is None


def counted(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many of the rows, as JSON has them, hold, and how many could not be worked out: `12 of 15, ...`."""
    unknown = sum(map(is_missing, rows))
    hold = sum(bool(row["holds"]) and not is_missing(row) for row in rows)
    return f"{hold} of {len(rows)}" + (f", {unknown} could not be worked out here" if unknown else "")


def require_any(rows: Sequence[Row]) -> None:
    """Refuse a reproduction in which no row has a figure.

    Raises:
        InputError: With the reasons.
    """
    if all(row.ours is None for row in rows):
        raise InputError("no claim can be worked out: " + "; ".join(dict.fromkeys(row.missing for row in rows)))


def ratio(ours: float, theirs: float) -> float:
    """One figure over another; NaN where that is not defined."""
    return ours / theirs if math.isfinite(ours) and math.isfinite(theirs) and theirs else math.nan


def sha256_of(paths: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of each file, by file name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
