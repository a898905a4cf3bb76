"""Notes beside the table of a Parquet file: what rows alone do not tell, such as when a record ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbtide.base.files import replacing
from ebbtide.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_KEY = b"ebbtide"


def write_with_notes(path: str | Path, frame: pd.DataFrame, notes: dict[str, Any]) -> None:
    """Write a table and notes, plain values of JSON, as one Parquet file, atomically."""
    import pyarrow.parquet

    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    noted = {**(table.schema.metadata or {}), _KEY: json.dumps(notes).encode()}
    with replacing(path) as temporary:
        pyarrow.parquet.write_table(table.replace_schema_metadata(noted), temporary, compression="zstd")


def notes_of(path: str | Path) -> dict[str, Any]:
    """The notes of a Parquet file; empty if it has none, as files of other programs.

    Raises:
        InputError: The notes are not what `write_with_notes` writes.
    """
    import pyarrow.parquet

    found = (pyarrow.parquet.read_schema(path).metadata or {}).get(_KEY)
    if found is None:
        return {}
    try:
        notes = json.loads(found)
    except ValueError:
        notes = None
    if not isinstance(notes, dict):
        raise InputError(
            "has notes of Ebbtide that are not readable; write the table anew without them", file=path
        )
    return notes
