"""Rows of text as cells: CSV with any separator, EC2's command lines as text, tables, JSON and YAML.

A form is recognised by its content. Columns are found by their names, or, where they have none, by what their
cells look like; what is read is a table whose columns are named by their roles (`ROLES`).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ebbtide.base.input_files import json_error
from ebbtide.errors import InputError
from ebbtide.market.sources.columns import (
    LOOKS,
    ROLES,
    FileCells,
    is_column_name,
    named_by_people,
    plain_name,
    role_of,
    table_without_names,
)
from ebbtide.market.sources.contents import content_text

if TYPE_CHECKING:
    import pandas as pd

# The rows of EC2's command lines begin with one of these.
_MARKS = ("SPOTPRICEHISTORY", "SPOTINSTANCEPRICE")

_COMMENT = re.compile(r'^[ \t]*"?#.*(?:\n|\Z)', re.MULTILINE)
_LEAST_NAMES = 3


def without_comments(text: str) -> str:
    """A text without lines that begin with #, except one above all rows that names the columns."""
    found = _COMMENT.search(text)
    if found is None:
        return text
    top = re.match(r"\s*", text)
    position, header = top.end() if top else 0, ""
    while comment := _COMMENT.match(text, position):
        said = comment[0].strip().lstrip("#").strip(" \t")
        if sum(map(is_column_name, re.split(r"[\t;|,]", said.replace('"', "")))) >= _LEAST_NAMES:
            header = f"{said}\n"
        position = comment.end()
    rest = _COMMENT.sub("", text[position:])
    has_names = any(map(is_column_name, re.split(r"[\t;|,]", rest.partition("\n")[0].replace('"', ""))))
    return rest if has_names else header + rest


def table_of_text(text: str, path: str | Path) -> FileCells:
    """The table in rows of text.

    Raises:
        InputError: It holds nothing, a row has more cells than the first, or its columns are not recognised.
    """
    import pandas as pd

    text = without_comments(text)
    head = text[:65536]
    if any(line.lstrip().startswith(_MARKS) for line in head.splitlines()):
        return table_without_names(_marked_rows(text, path), path)
    if re.match(r"\s*(?:-{5,}|[+|][-+|=\s])", head):
        cells = pd.DataFrame(_drawn_rows(text), dtype="string")
    else:
        cells = cells_of(text, path)
    if cells.empty:
        raise InputError("holds no rows", file=path)
    names = [str(cell).strip() for cell in cells.iloc[0].fillna("")]
    if any(map(role_of, names)) or sum(map(is_column_name, names)) >= _LEAST_NAMES:
        return _named(cells.iloc[1:].reset_index(drop=True), names, path)
    return table_without_names(cells, path)


def cells_of(text: str, path: str | Path) -> pd.DataFrame:
    """The cells of a CSV text, its first line among them; the separator is the one that its first line has.

    Raises:
        InputError: It holds nothing, or a row has more cells than its first.
    """
    import pandas as pd

    if not text.strip():
        raise InputError("holds nothing", file=path)
    text = without_comments(text).lstrip("\r\n")
    said = re.match(r'"?sep=(.)"?\r?\n', text)
    first = text[said.end() if said else 0 :].partition("\n")[0]
    counts = {mark: re.sub(r'"[^"]*"', "", first).count(mark) for mark in "\t;|,"}
    separator = said[1] if said else max(counts, key=lambda mark: counts[mark]) if any(counts.values()) else ","
    try:
        return pd.read_csv(
            io.StringIO(text[said.end() :] if said else text),
            sep=separator,
            dtype="string",
            skipinitialspace=separator != "\t",
            header=None,
            index_col=False,
            quoting=csv.QUOTE_MINIMAL,
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
        hint = "; a price with a decimal comma is written with a point, as 0.1578" if separator == "," else ""
        problem = str(error).strip().removeprefix("Error tokenizing data. C error: ")
        raise InputError(f"is not a CSV file: {problem}{hint}", file=path) from None


def read_csv_text(path: str | Path) -> pd.DataFrame:
    """The cells of a CSV file as text, below the names of its columns; blank ones are missing values.

    Raises:
        InputError: The file cannot be read, holds nothing, has two columns of one name, or has a row with more
            cells than its first.
    """
    rows = cells_of(content_text(path), path)
    names = [str(name).strip() for name in rows.iloc[0].fillna("")]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InputError("two columns have this name", file=path, field=repeated or "(blank)")
    return rows.iloc[1:].set_axis(names, axis="columns").reset_index(drop=True)


def documents(text: str, path: str | Path) -> list[Any]:
    """All JSON documents of a text, one after the other: one, or one in each line.

    Raises:
        InputError: Something is not JSON, nests too deeply, or holds a number of thousands of digits.
    """
    decoder, found, position = json.JSONDecoder(), [], _after_blanks(text, 0)
    while position < len(text):
        try:
            document, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise json_error(error, path) from None
        found.append(document)
        position = _after_blanks(text, position)
    return found


def yaml_documents(text: str, path: str | Path) -> list[Any]:
    """All YAML documents of a text, every value as text.

    Raises:
        InputError: It is not YAML.
    """
    loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        return [document for document in yaml.load_all(text, loader) if document not in (None, "")]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise InputError(f"is not YAML: {getattr(error, 'problem', None) or error}{where}", file=path) from None


def table_of_records(records: Iterable[Any], path: str | Path) -> FileCells:
    """The table of records of names and values; names are as those of columns.

    Raises:
        InputError: There is none, or one is no record, or holds a list or record itself.
    """
    import pandas as pd

    records = list(records)
    if records and isinstance(records[0], list):
        return table_without_names(_cells_of_lists(records, path), path)
    samples: dict[str, list[Any]] = {}
    for record in records:
        for name in record if isinstance(record, Mapping) else ():
            samples.setdefault(str(name), []).append(record[name])
    roles: dict[str, str | None] = {name: role_of(name) for name in samples}
    roles |= {name: role for role, name in named_by_people(samples).items()}
    names: dict[str, str] = {}
    rows = []
    for number, record in enumerate(records, 1):
        if not isinstance(record, Mapping):
            raise InputError("entry is not a record of names and values", file=path, row=number)
        row: dict[str, tuple[int, Any]] = {}
        for name, value in record.items():
            role = roles[str(name)]
            if role is None:
                continue
            if isinstance(value, (Mapping, list)):
                raise InputError("is not a single value", file=path, row=number, field=str(name))
            rank = 0 if role_of(str(name)) is None else ROLES[role].index(plain_name(str(name)))
            # A name whose value is missing leaves its place to another, as zones do to their ids.
            is_missing = value is None or value == ""
            if role not in row or row[role][1] is None or (rank < row[role][0] and not is_missing):
                row[role] = rank, None if is_missing else value
                names.setdefault(role, str(name))
        rows.append({role: value for role, (_, value) in row.items()})
    if not rows:
        raise InputError("holds no prices", file=path)
    return FileCells(pd.DataFrame(rows, dtype="object"), names, list(roles))


def _cells_of_lists(rows: Sequence[Any], path: str | Path) -> pd.DataFrame:
    """The cells of rows that are lists of values, as `--query '...[AvailabilityZone, SpotPrice]'` makes them."""
    import pandas as pd

    for number, row in enumerate(rows, 1):
        if not isinstance(row, list) or any(isinstance(value, (Mapping, list)) for value in row):
            raise InputError("entry is not a list of values, as the first is", file=path, row=number)
        if len(row) != len(rows[0]):
            problem = f"entry has {len(row)} values, the first has {len(rows[0])}; every row needs the same ones"
            raise InputError(problem, file=path, row=number)
    return pd.DataFrame([[None if value is None else str(value) for value in row] for row in rows], dtype="string")


def table_of_frame(frame: pd.DataFrame) -> FileCells:
    """The table of a frame whose columns have names; of those with one role the first in `ROLES` counts."""
    return _chosen(frame, [str(name) for name in frame.columns])


def _marked_rows(text: str, path: str | Path) -> pd.DataFrame:
    """The rows of EC2's command lines, without the words that begin them and the tokens of further pages."""
    import pandas as pd

    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip().split("\t") if "\t" in line else _words(line)
        if not words or words[0] == "NEXTTOKEN":
            continue
        if words[0] not in _MARKS:
            raise InputError(f"line {number} begins with {words[0]!r:.40}, not with {_MARKS[0]}", file=path)
        rows.append([word.strip() or None for word in words[1:]])
    return pd.DataFrame(rows, dtype="string")


def _words(line: str) -> list[str]:
    """Words of a line whose tabs a terminal has made blanks: those that look like nothing else are the product."""
    words = line.split()
    others = [role for role in LOOKS if role != "product"]
    kept = [word for word in words[1:] if any(LOOKS[role](word) for role in others)]
    return [*words[:1], *kept, " ".join(word for word in words[1:] if word not in kept)]


def _drawn_rows(text: str) -> list[list[str]]:
    """The cells of a table drawn with lines, as `aws --output table` prints."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines() if "|" in line
    ]
    width = max((len(row) for row in rows), default=0)
    return [row for row in rows if len(row) == width and not all(re.fullmatch(r"[-+=]*", cell) for cell in row)]


def _named(cells: pd.DataFrame, names: Sequence[str], path: str | Path) -> FileCells:
    """The table of the rows below the names of its columns."""
    import pandas as pd

    repeated = next((name for name in names if name and names.count(name) > 1), None)
    if repeated is not None:
        raise InputError("two columns have this name", file=path, field=repeated)
    # Files that were joined one after the other have their header again.
    again = pd.Series(True, index=cells.index)
    for place, name in enumerate(names):
        again &= (
            cells.loc[again, cells.columns[place]]
            .fillna("")
            .str.strip()
            .eq(name)
            .reindex(cells.index, fill_value=False)
        )
    table = _chosen(cells[~again].reset_index(drop=True), names)
    named = pd.DataFrame({role: table.cells[role].str.strip() for role in table.cells})
    return FileCells(named.mask(named == ""), table.names, table.columns)


def _chosen(cells: pd.DataFrame, names: Sequence[str]) -> FileCells:
    import pandas as pd

    chosen: dict[str, int] = {}
    for role, known in ROLES.items():
        places = [place for name in known for place, given in enumerate(names) if plain_name(given) == name]
        if places:
            chosen[role] = places[0]
    others = {name: cells.iloc[:, place].dropna() for place, name in enumerate(names) if name}
    chosen |= {role: names.index(name) for role, name in named_by_people(others).items()}
    columns = pd.DataFrame({role: cells.iloc[:, place] for role, place in chosen.items()})
    labels = {role: names[place] for role, place in chosen.items()}
    return FileCells(columns, labels, [name for name in names if name])


def _after_blanks(text: str, position: int) -> int:
    """Position at which the next document begins. The rest is not copied: there may be one document per line."""
    found = re.compile(r"[\s,]*" if position else r"\s*").match(text, position)
    return found.end() if found else position


def each_page(document: Any, key: str) -> Iterator[Any]:
    """The documents within lists of pages: those that have a list of that name, and all others as they are."""
    if (
        isinstance(document, list)
        and document
        and all(isinstance(one, Mapping) and key in one for one in document)
    ):
        yield from document
    else:
        yield document
