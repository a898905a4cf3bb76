"""CSV files as tables of text: no cell is converted before its column is known."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd

from ebbtide._input_files import read_text
from ebbtide.errors import InputError

# Three months of a region are about 100 MiB.
_MAX_BYTES = 2 << 30


def read_csv_text(path: str | Path, *, header: bool = True) -> pd.DataFrame:
    """The cells of a CSV file as text; blank ones are missing values.

    Args:
        path: Path of the CSV file.
        header: Whether the first line names the columns; if not, they are numbered from 0.

    Raises:
        InputError: The file cannot be read (`input_files.read_text`), holds nothing, or has a row with more cells
            than its first.
    """
    text = read_text(path, max_bytes=_MAX_BYTES)
    if not text.strip():
        raise InputError("holds nothing", file=path)
    try:
        # Without index_col=False, one cell too many in a row would shift all columns by one.
        table = pd.read_csv(
            io.StringIO(text), dtype="string", skipinitialspace=True, header=0 if header else None, index_col=False
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
        raise InputError(f"is not a CSV file: {error}", file=path) from None
    return table
