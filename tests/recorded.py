"""Recorded answers of public APIs; tests/recordings/README.md says where they are from."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "recordings"


def recording(name: str) -> str:
    """The text of a recording."""
    return (FOLDER / name).read_text(encoding="utf-8")
