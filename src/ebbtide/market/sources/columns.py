"""Roles of the columns of a table: by their names, and where these say nothing by what their cells look like."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ebbtide.errors import InputError
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

# Names that people choose in `--query`. Each can mean something else, so the cells have to look like it as well.
_OTHER_NAMES: Mapping[str, Sequence[str]] = {
    "timestamp": ("date", "when", "ts", "t", "d", "utc", "start", "starttime", "since", "from", "at", "effective"),
    "zone": ("place", "location", "zonename", "where", "z"),
    "instance_type": ("type", "instance", "machine", "machinetype", "size", "sku", "kind", "name", "vm", "t", "i"),
    "product": ("description", "desc", "platform", "system", "operatingsystem", "d", "o", "p"),
    "price": (
        "usd",
        "spot",
        "cost",
        "rate",
        "hourly",
        "usdperhour",
        "priceusd",
        "priceperhour",
        "spotpriceusd",
        "p",
    ),
}

# Rows by which columns are recognised.
_TRIED = 50

_TIME = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?|\d{8}T\d{4,6}.*|1\d{9}(?:\d{3})?")
_TYPE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")
_NUMBER = re.compile(r"[+-]?\$?[\d.,]+(?:[eE][+-]?\d+)?")
_PRODUCT = re.compile(r".*(?:linux|windows).*", re.IGNORECASE)

# What the cells of a role look like; of several the first counts.
LOOKS: Mapping[str, Callable[[str], bool]] = {
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
_ORDER_NAMES = ("datetime", "instance_type", "os", "region", "price")


@dataclass(frozen=True)
class FileCells:
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
        return [name for name in self.columns if role_of(name) is None and name not in self.names.values()]


# What people write behind a name, as far as it says what is taken for granted.
_UNIT = re.compile(
    r"\s*[(\[]\s*(?:utc|(?:usd|us\$|\$)(?:\s*(?:/|per)\s*(?:h|hr|hour))?)\s*[)\]]\s*$", re.IGNORECASE
)


def role_of(name: str) -> str | None:
    """The role of a column by its name; None: it has none."""
    plain = plain_name(name)
    return next((role for role, names in ROLES.items() if plain in names), None)


def plain_name(name: str) -> str:
    """A name without case, blanks, underscores, hyphens, and a unit such as `(USD/h)` behind it."""
    return re.sub(r"[\s_-]+", "", _UNIT.sub("", name)).casefold()


def is_column_name(cell: str) -> bool:
    """Return whether a cell holds a column name, a usual one or another that people choose."""
    return role_of(cell) is not None or any(plain_name(cell) in names for names in _OTHER_NAMES.values())


def named_by_people(columns: Mapping[str, Iterable[object]]) -> dict[str, str]:
    """Names of columns by the roles that no column has by its own name, where name and cells leave one choice.

    Args:
        columns: Cells by the names of their columns; the first ones are looked at.
    """
    found: dict[str, str] = {}
    taken = {role_of(name) for name in columns}
    for role, names in _OTHER_NAMES.items():
        if role in taken:
            continue
        fitting = [name for name, cells in columns.items() if plain_name(name) in names and _all_look(cells, role)]
        if len(fitting) == 1:
            found[role] = fitting[0]
    # A column of two roles has none.
    chosen = list(found.values())
    return {role: name for role, name in found.items() if chosen.count(name) == 1}


def _all_look(cells: Iterable[object], role: str) -> bool:
    looks = [LOOKS[each] for each in (role, "zone_id") if each == role or role == "zone"]
    tried = [str(cell).strip() for _, cell in zip(range(_TRIED), cells, strict=False) if cell is not None]
    given = [cell for cell in tried if cell not in ("", "<NA>", "nan")]
    return bool(given) and all(any(look(cell) for look in looks) for cell in given)


def table_without_names(cells: pd.DataFrame, path: str | Path) -> FileCells:
    """The table of rows without names of columns: each role is the column whose cells look like it.

    Columns of a time, a zone, a type and a price are a table without the product.

    Raises:
        InputError: There are no rows, two columns may have one role, or a role has no column.
    """
    import pandas as pd

    if cells.empty:
        raise InputError("holds no rows", file=path)
    first = [str(cell).strip() for cell in cells.iloc[0].fillna("")]
    found: dict[str, list[int]] = {}
    for place in range(len(cells.columns)):
        column = [str(cell).strip() for cell in cells.iloc[:_TRIED, place].dropna()]
        role = next((role for role, look in LOOKS.items() if sum(map(look, column)) * 2 > len(column)), None)
        if role is not None:
            found.setdefault(role, []).append(place)
    if "zone_id" in found:
        found.setdefault("zone", found["zone_id"])
    twice = next((role for role in _NEEDED if len(found.get(role, ())) > 1), None)
    needed = ", ".join(_ORDER_NAMES)
    if twice is not None:
        raise InputError(
            f"has no header, and {len(found[twice])} columns that may be the {twice.replace('_', ' ')}; write "
            f"a first line with {needed}",
            file=path,
            row=1,
        )
    if all(role in found for role in _NEEDED if role != "product"):
        places = {role: found[role][0] for role in _NEEDED if role in found}
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
    labels = dict(zip(_ORDER, _ORDER_NAMES, strict=True))
    return FileCells(named.mask(named == ""), {role: labels[role] for role in places})
