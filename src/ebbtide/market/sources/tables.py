"""Rows of text as cells: CSV with any separator, EC2's command lines as text, tables, JSON and YAML.

A form is recognised by its content. Columns are found by their names, or, where they have none, by what their
cells look like; what is read is a table whose columns are named by their roles (`ROLES`).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ebbtide._input_files import json_error
from ebbtide.errors import InputError
from ebbtide.market.sources.contents import content_text
from ebbtide.market.sources.regions import is_zone_id, is_zone_name

if TYPE_CHECKING:
    import pandas as pd

# By role: the names of its column, without case, blanks and underscores; the first that is there counts.
ROLES: Mapping[str, Sequence[str]] = {
    "timestamp": ("timestamp", "datetime", "time"),
    "cloud": ("cloud",),
    "region": ("region",),
    "zone": ("availabilityzone", "az", "zone", "availabilityzoneid", "azid", "zoneid"),
    "instance_type": ("instancetype",),
    "product": ("productdescription", "product", "os"),
    "price": ("spotprice", "price", "priceusdperhour"),
    "currency": ("currency", "currencycode"),
    # SpotLake's tables have these beside spot prices.
    "on_demand": ("ondemandprice",),
    "tier": ("instancetier",),
}

# The rows of EC2's command lines begin with one of these.
_MARKS = ("SPOTPRICEHISTORY", "SPOTINSTANCEPRICE")

# Rows by which the columns of a table without names are recognised.
_TRIED = 50

_TIME = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?|\d{8}T\d{4,6}.*|1\d{9}(?:\d{3})?")
_TYPE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")
_NUMBER = re.compile(r"[+-]?\$?[\d.,]+(?:[eE][+-]?\d+)?")
_PRODUCT = re.compile(r".*(?:linux|windows).*", re.IGNORECASE)


@dataclass(frozen=True)
class Table:
    """The cells of one file.

    Attributes:
        cells: Cells by role, one row a price; what is blank is missing.
        names: Names that the columns have in the file, by role.
        columns: Names of all columns in their order, those without a role among them; empty: they have none.
    """

    cells: pd.DataFrame
    names: Mapping[str, str]
    columns: Sequence[str] = field(default=())

    @property
    def extra(self) -> Sequence[str]:
        """Names of columns that have no role."""
        return [name for name in self.columns if _role(name) is None]


def table_of_text(text: str, path: str | Path) -> Table:
    """The table in rows of text.

    Raises:
        InputError: It holds nothing, a row has more cells than the first, or its columns are not recognised.
    """
    import pandas as pd

    head = text[:65536]
    if any(line.lstrip().startswith(_MARKS) for line in head.splitlines()):
        return _without_names(_marked_rows(text, path), path)
    if re.match(r"\s*(?:-{5,}|[+|][-+|=\s])", head):
        cells = pd.DataFrame(_drawn_rows(text), dtype="string")
    else:
        cells = cells_of(text, path)
    if cells.empty:
        raise InputError("holds no rows", file=path)
    names = [str(cell).strip() for cell in cells.iloc[0].fillna("")]
    if any(_role(name) for name in names):
        return _named(cells.iloc[1:].reset_index(drop=True), names, path)
    return _without_names(cells, path)


def cells_of(text: str, path: str | Path) -> pd.DataFrame:
    """The cells of a CSV text, its first line among them; the separator is the one that its first line has.

    Raises:
        InputError: It holds nothing, or a row has more cells than its first.
    """
    import pandas as pd

    if not text.strip():
        raise InputError("holds nothing", file=path)
    text = text.lstrip("\r\n")
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


def table_of_records(records: Iterable[Any], path: str | Path) -> Table:
    """The table of records of names and values; names are as those of columns.

    Raises:
        InputError: There is none, or one is no record, or holds a list or record itself.
    """
    import pandas as pd

    roles: dict[str, str | None] = {}
    names: dict[str, str] = {}
    rows = []
    for number, record in enumerate(records, 1):
        if not isinstance(record, Mapping):
            raise InputError("entry is not a record of names and values", file=path, row=number)
        row: dict[str, tuple[int, Any]] = {}
        for name, value in record.items():
            if name not in roles:
                roles[name] = _role(str(name))
            role = roles[name]
            if role is None:
                continue
            if isinstance(value, (Mapping, list)):
                raise InputError("is not a single value", file=path, row=number, field=str(name))
            rank = ROLES[role].index(_plain(str(name)))
            # A name whose value is missing leaves its place to another, as zones do to their ids.
            is_missing = value is None or value == ""
            if role not in row or row[role][1] is None or (rank < row[role][0] and not is_missing):
                row[role] = rank, None if is_missing else value
                names.setdefault(role, str(name))
        rows.append({role: value for role, (_, value) in row.items()})
    if not rows:
        raise InputError("holds no prices", file=path)
    return Table(pd.DataFrame(rows, dtype="object"), names, list(map(str, roles)))


def table_of_frame(frame: pd.DataFrame) -> Table:
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
    others = [role for role in _LOOKS if role != "product"]
    kept = [word for word in words[1:] if any(_looks(word, role) for role in others)]
    return [*words[:1], *kept, " ".join(word for word in words[1:] if word not in kept)]


def _drawn_rows(text: str) -> list[list[str]]:
    """The cells of a table drawn with lines, as `aws --output table` prints."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines() if "|" in line
    ]
    width = max((len(row) for row in rows), default=0)
    return [row for row in rows if len(row) == width and not all(re.fullmatch(r"[-+=]*", cell) for cell in row)]


def _named(cells: pd.DataFrame, names: Sequence[str], path: str | Path) -> Table:
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
    return Table(named.mask(named == ""), table.names, table.columns)


def _chosen(cells: pd.DataFrame, names: Sequence[str]) -> Table:
    import pandas as pd

    chosen: dict[str, int] = {}
    for role, known in ROLES.items():
        places = [place for name in known for place, given in enumerate(names) if _plain(given) == name]
        if places:
            chosen[role] = places[0]
    columns = pd.DataFrame({role: cells.iloc[:, place] for role, place in chosen.items()})
    labels = {role: names[place] for role, place in chosen.items()}
    return Table(columns, labels, [name for name in names if name])


def _looks(cell: str, role: str) -> bool:
    return _LOOKS[role](cell)


_LOOKS: Mapping[str, Callable[[str], bool]] = {
    "timestamp": lambda cell: bool(_TIME.fullmatch(cell)),
    "zone": is_zone_name,
    "zone_id": is_zone_id,
    "instance_type": lambda cell: bool(_TYPE.fullmatch(cell)),
    "product": lambda cell: bool(_PRODUCT.fullmatch(cell)),
    "price": lambda cell: bool(_NUMBER.fullmatch(cell)),
}

_NEEDED = ("timestamp", "zone", "instance_type", "product", "price")

# The documented order of columns without names.
_ORDER = ("timestamp", "instance_type", "product", "zone", "price")


def _without_names(cells: pd.DataFrame, path: str | Path) -> Table:
    """The table of rows without names of columns: each role is the column whose cells look like it."""
    import pandas as pd

    if cells.empty:
        raise InputError("holds no rows", file=path)
    first = [str(cell).strip() for cell in cells.iloc[0].fillna("")]
    found: dict[str, list[int]] = {}
    for place in range(len(cells.columns)):
        column = [str(cell).strip() for cell in cells.iloc[:_TRIED, place].dropna()]
        role = next(
            (role for role in _LOOKS if sum(_looks(cell, role) for cell in column) * 2 > len(column)), None
        )
        if role is not None:
            found.setdefault(role, []).append(place)
    if "zone_id" in found:
        found.setdefault("zone", found["zone_id"])
    twice = next((role for role in _NEEDED if len(found.get(role, ())) > 1), None)
    needed = "datetime, instance_type, os, region, price"
    if twice is not None:
        raise InputError(
            f"has no header, and {len(found[twice])} columns that may be the {twice.replace('_', ' ')}; write "
            f"a first line with {needed}",
            file=path,
            row=1,
        )
    if all(role in found for role in _NEEDED):
        places = {role: found[role][0] for role in _NEEDED}
    elif not any(character.isdigit() for character in "".join(first)):
        raise InputError(
            f"is in no format known: its first line is not recognised as a header: {', '.join(first)[:200]}; "
            f"needed are {needed}",
            file=path,
        )
    elif len(first) != len(_ORDER):
        raise InputError(f"has no header and {len(first)} columns; needed are {needed}", file=path, row=1)
    else:
        places = dict(zip(_ORDER, range(len(_ORDER)), strict=True))
    named = pd.DataFrame({role: cells.iloc[:, place].str.strip() for role, place in places.items()})
    labels = dict(zip(_ORDER, needed.split(", "), strict=True))
    return Table(named.mask(named == ""), labels)


def _role(name: str) -> str | None:
    """The role of a column by its name; None: it has none."""
    plain = _plain(name)
    return next((role for role, names in ROLES.items() if plain in names), None)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()


def _after_blanks(text: str, position: int) -> int:
    """Where the next document begins. The rest is not copied: there may be one document per line."""
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
