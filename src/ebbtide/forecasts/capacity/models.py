"""Spell models of markets: stored in a file, fitted to probes of a file or of one's own runs, or the default."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebbtide.base.files import write_text
from ebbtide.base.input_files import read_json
from ebbtide.base.json_values import misfit
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import (
    AGE_BINS_S,
    PARTS_OF_DAY,
    SpellModel,
    fit_spells,
    spells_of,
    spells_of_probes,
)
from ebbtide.forecasts.capacity.records import kind_of, read_records
from ebbtide.forecasts.capacity.zone_types import ZoneTypes, zone_types
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.market.price_store import PriceStore
from ebbtide.market.signals import Signal, SignalKind
from ebbtide.market.sources.cells import parsed_times
from ebbtide.market.sources.parquet import load_parquet
from ebbtide.market.sources.stored import is_price_store

if TYPE_CHECKING:
    import pandas as pd

# Columns of a table of probes: whether a machine was available at a time.
PROBE_COLUMNS = ("timestamp", "cloud", "region", "zone", "instance_type", "available")


# Probes further apart than this multiple of their median interval leave a gap in the record.
_MAX_INTERVALS = 3.0


@dataclass(frozen=True)
class SpellModels:
    """Models by market, and one for all other markets.

    Attributes:
        otherwise: Model of markets without one of their own.
        by_market: Model of each market, by `str(market)`.
        of_several: Model of when a market has so many machines at once, by their number and `str(market)`.
        types: Models of types of zones, where a zone that nobody has watched is one of them; None: not told apart.
    """

    otherwise: SpellModel
    by_market: Mapping[str, SpellModel] = field(default_factory=dict)
    of_several: Mapping[int, Mapping[str, SpellModel]] = field(default_factory=dict)
    types: ZoneTypes | None = None

    def of(self, market: Market, machines: int = 1) -> SpellModel:
        """The model of when a market has so many machines: that of the next larger number that has one."""
        name = str(market)
        for number in sorted(self.of_several):
            if number >= machines > 1 and name in self.of_several[number]:
                return self.of_several[number][name]
        return self.by_market.get(name, self.otherwise)

    def write(self, path: Path) -> None:
        """Write the models to a JSON file, atomically."""
        content = {
            "age_bins_s": AGE_BINS_S.tolist(),
            "otherwise": _plain(self.otherwise),
            "markets": {name: _plain(model) for name, model in sorted(self.by_market.items())},
        }
        if self.types is not None:
            pairs = zip(self.types.models, self.types.weights, strict=True)
            content["types"] = [{"weight": weight} | _plain(model) for model, weight in pairs]
        if self.of_several:
            content["of_several"] = {
                str(number): {name: _plain(model) for name, model in sorted(models.items())}
                for number, models in sorted(self.of_several.items())
            }
        write_text(path, json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> SpellModels:
        """Read what `write` wrote.

        Raises:
            InputError: The file is missing or is not a file of spell models.
        """
        return cls._parsed(read_json(path), str(path))

    @classmethod
    def _parsed(cls, content: Any, file: str) -> SpellModels:
        try:
            if content["age_bins_s"] != AGE_BINS_S.tolist():
                raise InputError("has other bins of age than this version; fit it again", file=file)
            markets = {name: _model(row) for name, row in content["markets"].items()}
            rows = content.get("types")
            types = rows and ZoneTypes(tuple(map(_model, rows)), tuple(float(row["weight"]) for row in rows))
            several = {
                int(number): {name: _model(row) for name, row in models.items()}
                for number, models in content.get("of_several", {}).items()
            }
            return cls(_model(content["otherwise"]), markets, several, types or None)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"is not a file of spell models: {misfit(error)}", file=file) from None


@cache
def default_spell_models() -> SpellModels:
    """The default model of any zone: fitted to all single-node records of 2022 and 2023 (Wu et al., NSDI 2024).

    Made with `ebbtide availability fit RECORDS --pooled --out src/ebbtide/forecasts/capacity/data/spells.json`.
    """
    content = json.loads((resources.files("ebbtide.forecasts.capacity") / "data" / "spells.json").read_text())
    return SpellModels._parsed(content, "spells.json")


def fit_market_spells(probes: pd.DataFrame, file: Path | None = None) -> SpellModels:
    """Fit a model to each probed market, partially pooled with the others, and one to all of them.

    Args:
        probes: One row per probe: timestamp, cloud, region, zone, instance_type and available (0 or 1), as
            `probes_of` makes them from a run.
        file: File that error messages name.

    Raises:
        InputError: A column is missing, or there is no spell whose beginning is known.
    """
    markets = probed_markets(probes, file)
    seen = {
        str(market): spells_of_probes(times_s, available, longest_gap_s)
        for market, (times_s, available, longest_gap_s) in markets.items()
    }
    names = list(seen)
    pooled = fit_spells(None, list(seen.values()))
    each = {name: fit_spells(seen[name], [seen[other] for other in names if other != name]) for name in names}
    return SpellModels(pooled, each, types=zone_types(list(each.values())))


def probed_markets(
    probes: pd.DataFrame, file: Path | None = None
) -> dict[Market, tuple[Floats, np.ndarray, float]]:
    """The probes of each market that has two or more, by time.

    Args:
        probes: One row per probe; see `fit_market_spells`.
        file: File that error messages name.

    Returns:
        Times in seconds since 1970, shape (n,); whether there was capacity, shape (n,); and the longest time
        between two probes of one spell, seconds.

    Raises:
        InputError: A column is missing.
    """
    missing = [name for name in PROBE_COLUMNS if name not in probes]
    if missing:
        raise InputError(f"has no column {missing[0]!r}; needs {', '.join(PROBE_COLUMNS)}", file=file)
    times = parsed_times(probes["timestamp"], str(file or "probes"), "timestamp")
    table = probes.assign(time_s=times.astype("int64").to_numpy() / 1e6)
    found = {}
    for key, rows in table.groupby(["cloud", "region", "zone", "instance_type"], observed=True):
        rows = rows.sort_values("time_s", kind="stable").drop_duplicates("time_s", keep="last")
        if len(rows) < 2:
            continue
        times_s = rows["time_s"].to_numpy(dtype=np.float64)
        longest_gap_s = _MAX_INTERVALS * float(np.median(np.diff(times_s)))
        found[Market(*map(str, key))] = times_s, rows["available"].to_numpy() >= 1, longest_gap_s
    return found


def _plain(model: SpellModel) -> dict[str, Any]:
    return {"per_hour": model.per_hour.tolist(), "by_part": model.by_part.tolist()}


def _model(row: Mapping[str, Any]) -> SpellModel:
    per_hour, by_part = np.array(row["per_hour"], dtype=float), np.array(row["by_part"], dtype=float)
    if per_hour.shape != (2, len(AGE_BINS_S)) or by_part.shape != (2, PARTS_OF_DAY):
        raise ValueError("a model has a hazard for each kind of spell and bin of age")
    if not (per_hour > 0).all() or not (by_part > 0).all() or not np.isfinite(per_hour).all():
        raise ValueError("hazards are positive numbers")
    return SpellModel(per_hour, by_part)


def probes_of(leases: Sequence[Lease], until_s: float, every_s: float = 600.0) -> pd.DataFrame:
    """Probes from a run's spot leases: requests granted or refused, machines held or revoked.

    A market without a request for a while has a gap, across which `fit_market_spells` counts no spell.

    Args:
        leases: Leases of a run, as in its outcome.
        until_s: When the run ended, seconds since 1970.
        every_s: Seconds between two probes while a machine is held.

    Returns:
        One row per probe, sorted by market and time: timestamp, cloud, region, zone, instance_type, available (0
        or 1).

    Raises:
        InputError: `every_s` is not positive.
    """
    import pandas as pd

    if not every_s > 0:
        raise InputError(f"every_s is {every_s}; it must be positive")
    rows = []
    for lease in leases:
        if lease.on_demand:
            continue
        market = lease.market
        if lease.state is LeaseState.FAILED:
            seen = [(lease.requested_s, 0)]
        elif not lease.is_charged:
            continue
        else:
            end_s = until_s if math.isnan(lease.ended_s) else lease.ended_s
            seen = [(float(time_s), 1) for time_s in np.arange(lease.started_s, end_s, every_s)]
            if lease.state is LeaseState.REVOKED:
                seen.append((end_s, 0))
        where = (market.cloud, market.region, market.zone, market.instance_type)
        rows += [(pd.Timestamp(time_s, unit="s", tz="UTC"), *where, up) for time_s, up in seen]
    table = pd.DataFrame(rows, columns=list(PROBE_COLUMNS))
    keys = ["cloud", "region", "zone", "instance_type", "timestamp"]
    # With a machine held and a refusal at one time in one market, the market counts as available.
    table = table.sort_values([*keys, "available"], kind="stable")
    return table.drop_duplicates(keys, keep="last", ignore_index=True)


def probes_of_store(store: PriceStore) -> pd.DataFrame:
    """Probes from the capacity that live sources told: whether a market had a machine, each time it was asked.

    Args:
        store: A price store that `ebbtide watch` has kept.

    Returns:
        One row per probe, sorted by source, market and time, with the columns `PROBE_COLUMNS`.

    Raises:
        InputError: No source told capacity.
    """
    import pandas as pd

    rows: list[tuple[Any, ...]] = []
    looks_s = store.looks_s()
    for source, signals in store.signals(SignalKind.CAPACITY).items():
        times_s = np.array(looks_s[source])
        by_market: dict[Market, list[Signal]] = {}
        for signal in signals:
            by_market.setdefault(signal.market, []).append(signal)
        for market, own in by_market.items():
            begins_s = np.array([signal.time_s for signal in own])
            # Only changes are stored: at each request the last one held.
            held = np.searchsorted(begins_s, times_s, side="right") - 1
            where = (market.cloud, market.region, market.zone, market.instance_type)
            rows += [
                (pd.Timestamp(time_s, unit="s", tz="UTC"), *where, int(own[place].value >= 1.0))
                for time_s, place in zip(times_s.tolist(), held.tolist(), strict=True)
                if place >= 0
            ]
    if not rows:
        raise InputError("no source told capacity; mithril and vast do", file=store.path)
    return pd.DataFrame(rows, columns=list(PROBE_COLUMNS))


def fit_file(path: Path) -> SpellModels:
    """Fit a model per market to probes, capacity rounds or a price store; one pooled model to ticks without times.

    Rounds tell how many machines there were: there is a model of 2, 4, 8 machines and so on at once, too.

    Raises:
        InputError: The file cannot be read, or is none of these.
    """
    if is_price_store(path):
        return fit_market_spells(probes_of_store(PriceStore(path)), path)
    kind = kind_of(path)
    if kind == "ticks":
        records = read_records(path, 0.0)
        spells = [spells_of(record.available, record.gap_s) for record in records]
        each = [fit_spells(one, spells[:place] + spells[place + 1 :]) for place, one in enumerate(spells)]
        return SpellModels(fit_spells(None, spells), types=zone_types(each))
    frame = load_parquet(path)
    if kind == "rounds":
        several = {
            number: fit_market_spells(frame.assign(available=(frame["launched"] >= number).astype(int)), path)
            for number in _numbers(int(frame["launched"].max()))
        }
        found = fit_market_spells(frame.assign(available=(frame["launched"] > 0).astype(int)), path)
        return replace(found, of_several={number: models.by_market for number, models in several.items()})
    if "available" not in frame:
        raise InputError(
            "has no availability: a table of probes has timestamp, cloud, region, zone, instance_type and "
            "available",
            file=path,
        )
    return fit_market_spells(frame, path)


def _numbers(most: int) -> list[int]:
    """Numbers of machines that have a model of their own: powers of two, and the largest."""
    return sorted({most, *(2**power for power in range(1, most.bit_length()))} - {0, 1})
