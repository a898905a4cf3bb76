"""Spell models fitted to any table of availability."""

from __future__ import annotations

from pathlib import Path

from ebbtide.errors import InputError
from ebbtide.forecasts.spells.fitting import fit_spells, spells_of
from ebbtide.forecasts.spells.models import SpellModels, fit_market_spells
from ebbtide.forecasts.spells.tick_records import read_records
from ebbtide.forecasts.spells.zone_records import kind_of
from ebbtide.market.sources.parquet import load_parquet


def fit_file(path: Path) -> SpellModels:
    """Fit a model per market to probes or capacity rounds; to ticks, whose times are unknown, one pooled model.

    Raises:
        InputError: The file cannot be read, or is none of these.
    """
    kind = kind_of(path)
    if kind == "ticks":
        records = read_records(path, 0.0)
        return SpellModels(fit_spells(None, [spells_of(record.available, record.gap_s) for record in records]))
    frame = load_parquet(path)
    if kind == "rounds":
        frame = frame.assign(available=(frame["launched"] > 0).astype(int))
    elif "available" not in frame:
        raise InputError(
            "has no availability: a table of probes has timestamp, cloud, region, zone, instance_type and "
            "available",
            file=path,
        )
    return fit_market_spells(frame, path)
