"""Reproductions of papers: each claim with the paper's figure, ours, and whether it holds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ebbtide._files import write_text
from ebbtide._json import json_text


@dataclass(frozen=True)
class Row:
    """One claim of a paper and our result.

    Attributes:
        id: Short name of the claim.
        claim: The claim in words.
        paper: The paper's figure; None: it gives none.
        ours: Our figure; None: it is not defined here.
        unit: Unit of both figures: `fraction`, `ratio`, `USD`...
        holds: Whether the claim holds by the rule in `note`.
        note: The rule, and why our figure differs where it does.
    """

    id: str
    claim: str
    paper: float | None
    ours: float | None
    unit: str
    holds: bool
    note: str


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


def sha256_of(paths: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of each file, by file name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
