"""Reproductions of papers: each claim with the paper's figure, ours, and whether it holds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ebbtide.base.files import write_text
from ebbtide.base.json_values import json_text
from ebbtide.errors import InputError

# Figures this close to a limit are on it.
_ROUNDING = 1e-9

# Number of reasons that an error names.
_NAMED = 2

# The reason of a row without a figure that gives none of its own.
_UNDEFINED = "the figure is not defined on these files"


@dataclass(frozen=True)
class Tolerance:
    """The figures with which a claim holds.

    Attributes:
        text: The rule in words.
        least: Least figure; None: there is none.
        most: Highest figure; None: there is none.
    """

    text: str
    least: float | None = None
    most: float | None = None

    def holds(self, figure: float) -> bool:
        """Return whether a figure is within the tolerance."""
        above = self.least is None or figure >= self.least - _ROUNDING
        return above and (self.most is None or figure <= self.most + _ROUNDING)


def at_least(least: float, why: str = "") -> Tolerance:
    """From a figure on."""
    return Tolerance(_with(f"at least {least:.3g}", why), least=least)


def at_most(most: float, why: str = "") -> Tolerance:
    """Up to a figure."""
    return Tolerance(_with(f"at most {most:.3g}", why), most=most)


def around(paper: float, share: float) -> Tolerance:
    """Not further from the paper's figure than a share of it."""
    least, most = paper * (1.0 - share), paper * (1.0 + share)
    return Tolerance(f"within {share:.0%} of the paper's ({least:.3g} to {most:.3g})", least, most)


def half_the_effect(paper: float, *, none: float = 0.0) -> Tolerance:
    """At least half of the paper's effect, and no limit to more of it.

    Args:
        paper: The paper's figure.
        none: The figure if there were no effect.
    """
    half = none + 0.5 * (paper - none)
    if paper > none:
        return at_least(half, "half of the paper's effect")
    return at_most(half, "half of the paper's effect")


def half_to_twice_the_effect(paper: float, *, none: float = 0.0) -> Tolerance:
    """Between half and twice the paper's effect; see `half_the_effect`."""
    least, most = sorted((none + 0.5 * (paper - none), none + 2.0 * (paper - none)))
    return Tolerance(f"half to twice the paper's effect ({least:.3g} to {most:.3g})", least, most)


def _with(rule: str, why: str) -> str:
    return f"{rule}: {why}" if why else rule


@dataclass(frozen=True)
class ClaimRow:
    """Claim of a paper and our result. A row without a figure never holds, and says why there is none.

    Attributes:
        id: Short name of the claim.
        claim: The claim in words.
        paper: The paper's figure; None: it gives none.
        ours: Our figure; None (also given as NaN or infinity): it could not be worked out here.
        unit: Unit of both figures: `fraction`, `ratio`, `USD`...
        tolerance: Our figures with which the claim holds.
        note: Further remarks, and why our figure may differ.
        missing: Reason why there is no figure; empty where there is one.
        fitted: Whether the simulation was fitted to the paper's figure, so that this is no independent test.
    """

    id: str
    claim: str
    paper: float | None
    ours: float | None
    unit: str
    tolerance: Tolerance
    note: str = ""
    missing: str = ""
    fitted: bool = False

    def __post_init__(self) -> None:
        """Without a figure there is a reason; with one, there is none."""
        known = self.ours is not None and math.isfinite(self.ours)
        ours = float(self.ours) if known and self.ours is not None else None
        object.__setattr__(self, "ours", ours)
        object.__setattr__(self, "missing", "" if known else self.missing or _UNDEFINED)

    @property
    def holds(self) -> bool:
        """True if there is a figure, and it is within the tolerance."""
        return self.ours is not None and self.tolerance.holds(self.ours)

    def plain(self) -> dict[str, Any]:
        """The row in plain values, as in JSON."""
        return {**asdict(self), "holds": self.holds}


@dataclass(frozen=True)
class PaperClaim:
    """A claim without our figure; attributes as those of `ClaimRow`."""

    text: str
    paper: float | None
    unit: str
    tolerance: Tolerance
    note: str = ""
    fitted: bool = False

    def row(self, row_id: str, ours: float | None, *, note: str = "", missing: str = "") -> ClaimRow:
        """The row with our figure, or with why there is none; a note is added to the claim's own."""
        notes = "; ".join(part for part in (note, self.note) if part)
        return ClaimRow(
            row_id, self.text, self.paper, ours, self.unit, self.tolerance, notes, missing, self.fitted
        )


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
    rows: tuple[ClaimRow, ...]
    tables: dict[str, Any]

    def to_json(self) -> str:
        """The reproduction as JSON: the same bytes for the same inputs."""
        content = {
            "name": self.name,
            "inputs": self.inputs,
            "seed": self.seed,
            "rows": [row.plain() for row in self.rows],
            "tables": self.tables,
        }
        return json_text(content)

    def write(self, path: str | Path) -> None:
        """Write `to_json` to a file, atomically."""
        write_text(path, self.to_json())


def is_missing(row: Mapping[str, Any]) -> bool:
    """Return whether a row, as JSON has it, is without a figure."""
    return row["ours"] is None


def counted(rows: Sequence[Mapping[str, Any]]) -> str:
    """Count the rows (as in JSON) that hold, and those that could not be worked out: `12 of 15, ...`."""
    unknown = sum(map(is_missing, rows))
    hold = sum(bool(row["holds"]) and not is_missing(row) for row in rows)
    return f"{hold} of {len(rows)}" + (f", {unknown} could not be worked out here" if unknown else "")


def require_any(rows: Sequence[ClaimRow]) -> None:
    """Refuse a reproduction in which no row has a figure.

    Raises:
        InputError: With the reasons.
    """
    if any(row.ours is not None for row in rows):
        return
    reasons = list(dict.fromkeys(row.missing for row in rows))
    more = f"; and {len(reasons) - _NAMED} more reasons" if len(reasons) > _NAMED else ""
    raise InputError(f"no claim can be worked out: {'; '.join(reasons[:_NAMED])}{more}")


def ratio(ours: float, theirs: float) -> float:
    """Divide one figure by another; NaN where that is not defined."""
    return ours / theirs if math.isfinite(ours) and math.isfinite(theirs) and theirs else math.nan


def sha256_of(paths: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of each file, by file name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
