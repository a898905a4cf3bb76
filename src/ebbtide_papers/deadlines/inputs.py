"""The input of `reproduce deadlines`: files or folders of recorded availability, capacity and prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.records import (
    TooShort,
    UnusableData,
    ZoneRecord,
    ZoneRecords,
    kind_of,
    read_records,
)
from ebbtide_papers.deadlines.study import DEADLINES_H
from ebbtide_papers.deadlines.zone_sets import read_capacity_rounds, read_probed_zones


@dataclass(frozen=True)
class DeadlineInputs:
    """Records of single zones and of sets of zones.

    Attributes:
        records: Records of single zones, long enough for the longest deadline.
        probed: Sets of zones with changing prices.
        rounds: Sets of zones by capacity: for one of the requested machines, and for all of them; with list
            prices, and with the recorded ones.
        files: All files that were read.
        left_out: Records in the files that cannot be studied, and why.
    """

    records: tuple[ZoneRecord, ...]
    probed: tuple[ZoneRecords, ...]
    rounds: tuple[tuple[ZoneRecords, ZoneRecords], ...]
    files: tuple[Path, ...]
    left_out: tuple[UnusableData, ...] = ()


def read_inputs(paths: Sequence[Path]) -> DeadlineInputs:
    """Read files, or all Parquet files of folders. Prices are also looked for beside a file that needs them.

    Raises:
        InputError: A file cannot be read, or no file contains availability.
    """
    files: list[Path] = []
    for path in paths:
        files += _tables_of(path) if path.is_dir() else [path]
    kinds = {path: kind_of(path) for path in dict.fromkeys(files)}
    beside = {
        other: kind_of(other)
        for path, kind in kinds.items()
        if kind in ("probes", "rounds")
        for other in _tables_of(path.parent)
        if other not in kinds
    }
    prices = [path for path, kind in {**kinds, **beside}.items() if kind == "prices"]
    catalogues = [path for path, kind in {**kinds, **beside}.items() if kind == "catalogue"]
    ticks, probes, rounds = ([path for path, kind in kinds.items() if kind == wanted] for wanted in _TOLD)
    if not (ticks or probes or rounds):
        raise InputError(
            f"{', '.join(map(str, paths))}: nothing there tells of availability; known are tables of ticks (zone, "
            "start, gap_seconds, data), probes (timestamp, zone, available) and rounds (launched of requested)"
        )
    left_out: list[UnusableData] = []
    sets = [one for path in probes for one in read_probed_zones(path, prices, left_out=left_out)]
    pairs = [pair for path in rounds for pair in read_capacity_rounds(path, catalogues, prices, left_out)]
    used = [*ticks, *probes, *rounds, *(prices if sets or pairs else []), *(catalogues if pairs else [])]
    records: list[ZoneRecord] = []
    for path in ticks:
        try:
            records += read_records(path, max(DEADLINES_H) + 1.0)
        except TooShort as error:
            left_out.append(UnusableData(None, str(error)))
    return DeadlineInputs(tuple(records), tuple(sets), tuple(pairs), tuple(used), tuple(left_out))


def _tables_of(folder: Path) -> list[Path]:
    """The Parquet files of a folder and of the folders in it."""
    return sorted([*folder.glob("*.parquet"), *folder.glob("*/*.parquet")])


_TOLD = ("ticks", "probes", "rounds")
