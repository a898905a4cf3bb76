"""The model bundle as a flow: a manifest over all that was trained, and a tracked run of its versions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task

from ebbtide.base.input_files import read_json
from ebbtide.forecasts.bundle import (
    EARLYCURVE,
    HAZARD,
    PRICE_CHAINS,
    REVPRED,
    SPEEDS,
    SPELLS,
    BundlePart,
    ModelBundle,
    part_of,
    write_manifest,
)
from ebbtide.tracking.tracking import log_bundle
from flows.parameters import Tracking

# The report of each stage that trains a part: its training window and its scores.
_REPORTS = {
    "revpred": (REVPRED, "revpred.json"),
    "earlycurve": (EARLYCURVE, "earlycurve.json"),
    "price-chains": (PRICE_CHAINS, "price-chains.json"),
    "spells": (SPELLS, "spells.json"),
    "hazard": (HAZARD, "hazard.json"),
    "speeds": (SPEEDS, "speeds.json"),
}


@task(persist_result=False)
def collect(folder: Path, reports: Path, data: Mapping[str, Path]) -> dict[str, BundlePart]:
    """What the manifest says of each part that is there."""
    found = {}
    for name, (path, report) in _REPORTS.items():
        if not (folder / path).exists():
            continue
        told: dict[str, Any] = read_json(reports / report) if (reports / report).exists() else {}
        window = told.get("trained")
        found[name] = part_of(
            folder,
            path,
            window_s=None if window is None else (window["from"], window["until"]),
            data=[data[name]] if name in data else (),
            scores=told.get("scores", {}),
        )
    return found


@task(retries=2, retry_delay_seconds=2, persist_result=False)
def track(found: ModelBundle, tracking: Tracking) -> None:
    """Log the versions and scores of all parts."""
    log_bundle(found, uri=tracking.uri, artifacts=tracking.artifacts)


@flow(name="bundle")
def bundle(tracking: Tracking, folder: Path, reports: Path, prices: Path, capacity: Path, curves: Path) -> None:
    """Collect, write and track.

    Args:
        tracking: Where runs are tracked.
        folder: The bundle's folder, with the trained parts.
        reports: Folder with the reports of the stages that trained them.
        prices: The price file that models were trained on.
        capacity: The file of probes that spell models were fitted to.
        curves: The file of learning curves that EarlyCurve was calibrated on.
    """
    data = {
        "revpred": prices,
        "price-chains": prices,
        "spells": capacity,
        "hazard": capacity,
        "earlycurve": curves,
    }
    track(write_manifest(folder, collect(folder, reports, data)), tracking)
