"""Tiled programs from YAML."""

from __future__ import annotations

from pathlib import Path

from ebbtide.errors import unknown_name
from ebbtide.jobs.parsing import read_mapping, validated
from ebbtide.live.tiled.gnmf import Gnmf
from ebbtide.live.tiled.rsvd import Rsvd

PROGRAMS: dict[str, type[Rsvd] | type[Gnmf]] = {"rsvd": Rsvd, "gnmf": Gnmf}


def read_program(path: str | Path) -> Rsvd | Gnmf:
    """Read a program: `program: rsvd` or `gnmf`, and its sizes.

    Raises:
        InputError: The file is missing, is not YAML, or a field is missing, unknown or out of range.
    """
    content = read_mapping(path, "program: a mapping with program, rows and columns is needed")
    kind = content.get("program")
    if kind not in PROGRAMS:
        raise unknown_name("program", str(kind), PROGRAMS)
    return validated(PROGRAMS[kind], content, path)
