"""Parquet files: opened only when they fit in memory, and price tables among them checked against the schema."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ebbtide.base.input_files import existing_file
from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import MARKET_FIELDS
from ebbtide.market.sources.validation import checked

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.parquet

_GIB = 1 << 30

# The first bytes of every Parquet file.
_MAGIC = b"PAR1"

# Records of availability hold a count for every tick in a column of this name.
_LISTS = ("data",)


def read_parquet(path: str | Path, catalogue: Catalogue | None = None) -> pd.DataFrame:
    """Read a clean price table.

    Raises:
        InputError: As `load_prices`, or `validation.checked` finds something wrong.
    """
    return checked(load_prices(path), path, catalogue)


def load_prices(path: str | Path) -> pd.DataFrame:
    """Read a table of prices without checks; names of markets stay dictionary-encoded to save memory.

    Raises:
        InputError: As `load_parquet`.
    """
    if Path(path).is_dir():
        raise InputError(
            "is a folder; prices are read from one Parquet file, which "
            "`ebbtide ingest FOLDER --into prices.parquet` makes of a folder",
            file=path,
        )
    with existing_file(path).open("rb") as file:
        head = file.read(4)
    if head not in (b"", _MAGIC):
        raise InputError(
            "is not a readable Parquet file; `ebbtide ingest FILE --into prices.parquet` makes one of CSV, JSON "
            "and other forms of prices",
            file=path,
        )
    return load_parquet(path, categories=MARKET_FIELDS)


def parquet_columns(path: str | Path) -> frozenset[str]:
    """The names of a Parquet file's columns; the same errors as `load_parquet`."""
    import pyarrow.parquet

    with _as_input_error(path):
        return frozenset(pyarrow.parquet.read_schema(existing_file(path)).names)


def load_parquet(
    path: str | Path, *, lists: Collection[str] = _LISTS, categories: Collection[str] = ()
) -> pd.DataFrame:
    """Read a Parquet file without checks of its values, if it fits in a quarter of this machine's memory.

    Args:
        path: Path of the Parquet file.
        lists: Columns that may hold lists; all others hold single values.
        categories: Columns of text that are read as categories.

    Raises:
        InputError: The file is missing, not Parquet, or too large; or a column holds lists or records, or has
            the name of another.
    """
    import pyarrow.parquet

    existing_file(path)
    with _as_input_error(path), pyarrow.parquet.ParquetFile(path) as probe:
        schema, metadata = probe.schema_arrow, probe.metadata
        _check_columns(schema, path, lists)
        rows = metadata.num_rows
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        _check_fits(rows * 8 * len(schema) + sum(group.total_byte_size for group in groups), rows, path)
    # Text is read dictionary-encoded first, to learn how large it would be with one value per row.
    text = [field.name for field in schema if _is_text(field.type)]
    with _as_input_error(path), pyarrow.parquet.ParquetFile(path, read_dictionary=text) as file:
        table = file.read()
        spread = math.fsum(_spread_bytes(table[name]) for name in text if name not in categories)
        _check_fits(table.nbytes + int(spread), rows, path)
        for number, field in enumerate(schema):
            if field.name in text and field.name not in categories:
                table = table.set_column(number, field, table.column(number).cast(field.type))
        frame: pd.DataFrame = table.to_pandas()
        return frame


def _check_columns(schema: pyarrow.Schema, path: str | Path, lists: Collection[str]) -> None:
    import pyarrow.parquet

    names = schema.names
    for field in schema:
        if names.count(field.name) > 1:
            raise InputError("two columns have this name", file=path, field=field.name)
        if pyarrow.types.is_binary(field.type) or pyarrow.types.is_large_binary(field.type):
            raise InputError("holds bytes, not text", file=path, field=field.name)
        if pyarrow.types.is_nested(field.type) and field.name not in lists:
            raise InputError(
                f"holds {field.type} in each row; single values are needed", file=path, field=field.name
            )


def _check_fits(size_bytes: int, rows: int, path: str | Path) -> None:
    limit = max(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4, _GIB)
    if size_bytes > limit:
        raise InputError(
            f"holds {rows:,} rows, {size_bytes / _GIB:.0f} GiB in memory, of which {limit / _GIB:.1f} GiB may be "
            "used here; split it by market or by time",
            file=path,
        )


def _is_text(kind: pyarrow.DataType) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind))


def _spread_bytes(column: pyarrow.ChunkedArray) -> int:
    """Upper bound on the bytes of a dictionary-encoded column once every row holds its own value."""
    import pyarrow.compute

    longest = 0
    for chunk in column.chunks:
        if isinstance(chunk, pyarrow.DictionaryArray) and len(chunk.dictionary):
            lengths = pyarrow.compute.binary_length(chunk.dictionary)
            longest = max(longest, pyarrow.compute.max(lengths).as_py() or 0)
    return longest * len(column)


@contextmanager
def _as_input_error(path: str | Path) -> Iterator[None]:
    """Raise `InputError` for whatever cannot be read."""
    import pyarrow.parquet

    try:
        yield
    except (OSError, pyarrow.ArrowException, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        reason = "holds nothing" if Path(path).is_file() and not Path(path).stat().st_size else str(error)
        raise InputError(f"is not a readable Parquet file: {reason}", file=path) from None
