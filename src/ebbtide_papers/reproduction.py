"""Reproductions of papers: each claim with the paper's figure, ours, and whether it holds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ebbtide._files import write_text


@dataclass(frozen=True)
class Row:
    """One claim.

    Attributes:
        id: Short name.
        claim: In words.
        paper: The paper's figure, if it gives one.
        ours: What came out here; None: it is not defined here.
        unit: `fraction`, `ratio`, `USD`...
        holds: By the rule in `note`.
        note: The rule, and why ours differs where it does.
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
    """All claims of a paper.

    Attributes:
        name: Of the system.
        inputs: SHA-256 of each file that went in, by its name.
        seed: Of all chance.
        rows: The claims.
        tables: More figures, by name, in plain values.
    """

    name: str
    inputs: dict[str, str]
    seed: int
    rows: tuple[Row, ...]
    tables: dict[str, Any]

    def to_json(self) -> str:
        """The same bytes for the same inputs."""
        rows = [{**asdict(row), "ours": _finite(row.ours)} for row in self.rows]
        content = {
            "name": self.name,
            "inputs": self.inputs,
            "seed": self.seed,
            "rows": rows,
            "tables": self.tables,
        }
        return json.dumps(content, indent=2, allow_nan=False) + "\n"

    def write(self, path: str | Path) -> None:
        """Write `to_json` to a file, atomically."""
        write_text(path, self.to_json())


def sha256_of(paths: Sequence[Path]) -> dict[str, str]:
    """The digest of each file, by its name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
