"""Parquet files of the price schema: what Ebbtide writes and what it backtests on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow
import pyarrow.parquet

from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.sources.validation import checked


def read_parquet(path: str | Path, catalogue: Catalogue | None = None) -> pd.DataFrame:
    """Read a clean price table.

    Raises:
        InputError: The file is missing or not Parquet, or `validation.checked` finds something wrong.
    """
    return checked(load_parquet(path), path, catalogue)


def parquet_columns(path: str | Path) -> frozenset[str]:
    """The names of a Parquet file's columns; the same errors as `load_parquet`."""
    with _told(path):
        return frozenset(pyarrow.parquet.read_schema(path).names)


def load_parquet(path: str | Path) -> pd.DataFrame:
    """Read a Parquet file as it is.

    Raises:
        InputError: The file is missing or not Parquet.
    """
    with _told(path):
        frame: pd.DataFrame = pyarrow.parquet.read_table(path).to_pandas()
        return frame


@contextmanager
def _told(path: str | Path) -> Iterator[None]:
    """Whatever cannot be read is told as an error of the input."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("there is no such file", file=path) from None
    except (OSError, pyarrow.ArrowException) as error:
        reason = "holds nothing" if Path(path).is_file() and not Path(path).stat().st_size else str(error)
        raise InputError(f"is not a readable Parquet file: {reason}", file=path) from None
