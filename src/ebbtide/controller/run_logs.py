"""Logs of a run's trials: one file for what each program prints, of which the newest part is kept."""

from __future__ import annotations

from pathlib import Path

from ebbtide.base.files import private

# A longer log is renamed to the older part, which replaces the previous one.
_MOST_BYTES = 32 << 20


def append_line(path: Path, line: str) -> None:
    """Append a line to a log, of which at most two parts are kept: this file, and before it `older_part`.

    Raises:
        OSError: It cannot be written.
    """
    with open(path, "a", encoding="utf-8", opener=private) as log:
        log.write(line + "\n")
        size_bytes = log.tell()
    if size_bytes > _MOST_BYTES:
        path.replace(older_part(path))
        with open(path, "a", encoding="utf-8", opener=private) as log:
            log.write(f"ebbtide: earlier lines are in {older_part(path)}, and those before them are gone\n")


def older_part(path: Path) -> Path:
    """Path of the older part of a log; the file may not exist."""
    return path.with_name(f"{path.name}.1")
