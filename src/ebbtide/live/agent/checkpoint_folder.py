"""Where a program finds the folder into which it writes its checkpoints by itself."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path, PurePosixPath


def linked_view(source: Path, place: Path, leave_out: Container[str] = ()) -> Path:
    """A folder whose entries are links to those of another: what is written beside them stays out of that."""
    place.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        link = place / entry.name
        if entry.name not in leave_out and not link.is_symlink():
            link.symlink_to(entry)
    return place


def link_checkpoints(runs_in: Path, checkpoints: str, folder: Path) -> None:
    """Make a folder below the one that a program runs in the one that checkpoints are restored to and stored from.

    What the user has there from elsewhere is not seen: a run begins from nothing, or resumes from its own.

    Args:
        runs_in: The program's folder, its own; links in it are replaced where they are in the way, files are not.
        checkpoints: Below it.
        folder: Where checkpoints are.

    Raises:
        OSError: A file is in the way.
    """
    *above, last = PurePosixPath(checkpoints).parts
    place = runs_in
    for name in above:
        place /= name
        if place.is_symlink():
            source = place.resolve()
            place.unlink()
            linked_view(source, place)
        place.mkdir(exist_ok=True)
    link = place / last
    if link.is_symlink():
        link.unlink()
    elif link.is_dir():
        # A copy of the user's: it may not be empty.
        link.rename(place / f".{last}.before")
    link.symlink_to(folder, target_is_directory=True)
