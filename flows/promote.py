"""Promotion as a flow: every part of the bundle is registered, and becomes champion if it saves money."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from prefect import flow, task, unmapped
from prefect.logging import get_run_logger

from ebbtide.base.files import write_text
from ebbtide.errors import unknown_name
from ebbtide.forecasts.bundle import MODEL_PARTS, BundlePart, ModelBundle
from ebbtide.forecasts.champions import bundle_of_versions, champion_versions, registry_client
from ebbtide.forecasts.learning_curves.curves import read_curves
from ebbtide.market.availability import Availability
from ebbtide.market.prices import PriceHistory
from ebbtide.market.sources.parquet import load_parquet
from ebbtide.tracking.model_registry import Registry
from ebbtide.tracking.model_trials import Setting, judge
from flows.parameters import Promote, Tracking
from flows.resumable import KEEP_RESULT, Item, inputs_digest, resumable
from flows.task_runner import task_runner

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


@task(task_run_name="register-{kind}", retries=2, retry_delay_seconds=2, persist_result=False)
def register(kind: str, bundle: ModelBundle, registry: Registry) -> str:
    """Register a part of the bundle, once for each content; returns its version number."""
    return registry.register(bundle, kind)


@task(task_run_name="judge-{item.name}", **KEEP_RESULT)
def compare(item: Item, reigning: ModelBundle, bundle: ModelBundle, setting: Setting) -> dict[str, Any]:
    """Run the policy that asks a kind of model with the champion and with the new version; returns the verdict."""
    with TemporaryDirectory(prefix="ebbtide-judging-") as folder:
        found = judge(item.name, reigning, bundle, setting, Path(folder))
    return {"promoted": found.verdict.is_promotion, **found.to_dict()}


@task(task_run_name="promote-{kind}", retries=2, retry_delay_seconds=2, persist_result=False)
def crown(kind: str, row: Mapping[str, Any], registry: Registry) -> None:
    """Make a version the champion."""
    registry.promote(kind, row["version"], row["reason"])


@flow(name="promote", task_runner=task_runner("processes"))
def promote(
    parameters: Promote,
    tracking: Tracking,
    bundle: Path,
    prices: Path,
    curves: Path,
    capacity: Path,
    into: Path,
) -> None:
    """Register all parts, compare them with the champions, keep the verdicts, and carry them out.

    All are compared with the champions at the beginning. A verdict is given once for the same models, data, jobs,
    parameters and code: what was killed after it was kept is carried out by the next run, with the same report.

    Args:
        parameters: What versions are compared on.
        tracking: Where runs are tracked.
        bundle: The folder of the model bundle.
        prices: The price file.
        curves: The file of learning curves.
        capacity: The file of probes of capacity.
        into: Where the report goes.

    Raises:
        InputError: There is no bundle, a job cannot be run, the workload has no curves, or a given start is within
            the days of training.
    """
    models = ModelBundle.read(bundle)
    registry = Registry(tracking.uri, tracking.artifacts)
    kinds = [kind for kind in MODEL_PARTS if kind in models.parts]
    numbers = {kind: register(kind, models, registry) for kind in kinds}
    before = champion_versions(registry_client(registry.uri))
    inputs = verdict_inputs(models, parameters, [prices, curves, capacity])
    report = registry.kept_verdicts(inputs)
    if report is None or not _still_holds(report, before):
        reigning = bundle_of_versions(before, registry.uri) if before else ModelBundle(bundle, {})
        setting = _setting(parameters, prices, curves, capacity)
        champions = {kind: part.version for kind, part in reigning.parts.items()}
        with resumable("promote", kinds, [inputs, champions]) as items:
            found = compare.map(items, unmapped(reigning), unmapped(models), unmapped(setting)).result()
            rows = {
                kind: _row(numbers[kind], reigning.parts.get(kind), models.parts[kind], verdict)
                for kind, verdict in zip(kinds, found, strict=True)
            }
            report = {"promoted": [kind for kind in kinds if rows[kind]["promoted"]], "kinds": rows}
            registry.keep_verdicts(inputs, report)
    for kind in report["promoted"]:
        crown(kind, report["kinds"][kind], registry)
    for kind, row in report["kinds"].items():
        get_run_logger().info("%s version %s %s", kind, row["version"], row["reason"])
    write_text(into, json.dumps(report, indent=2, allow_nan=False) + "\n")


def verdict_inputs(models: ModelBundle, parameters: Promote, data: Iterable[Path]) -> str:
    """Digest of everything that verdicts depend on beside the champions, jobs and code included."""
    versions = {kind: part.to_dict() for kind, part in models.parts.items() if kind in MODEL_PARTS}
    files = [*data, *parameters.jobs.by_kind().values()]
    return inputs_digest([versions, parameters.model_dump(mode="json")], files)


def _setting(parameters: Promote, prices: Path, curves: Path, capacity: Path) -> Setting:
    """What versions are compared on, from the section of params.yaml."""
    workload = parameters.curves
    known = read_curves(curves)
    chosen = tuple(curve for curve in known if curve.workload == workload)
    if not chosen:
        raise unknown_name("workload in promote.curves of params.yaml", workload, {one.workload for one in known})
    return Setting(
        PriceHistory.read(prices),
        parameters.starts,
        parameters.jobs.by_kind(),
        seed=parameters.seed,
        billing=parameters.billing,
        confidence=parameters.confidence,
        cookbook=parameters.cookbook.model_dump(),
        curves=chosen,
        availability=Availability.read(capacity) if len(load_parquet(capacity)) else None,
    )


def _row(
    version: str, champion: BundlePart | None, part: BundlePart, verdict: Mapping[str, Any]
) -> dict[str, Any]:
    """Row of the report for one kind; costs, misses and scores stand beside each other."""
    before = None if champion is None else champion.registry_version
    return {
        "version": version,
        "digest": part.version,
        "champion_before": before,
        "champion_after": version if verdict["promoted"] else before,
        **verdict,
        "scores": {
            "champion": None if champion is None else dict(champion.scores),
            "challenger": dict(part.scores),
        },
    }


def _still_holds(report: Mapping[str, Any], champions: Mapping[str, ModelVersion]) -> bool:
    """Whether the champions are those from which a kept report was made, or those that it made."""
    now = {kind: str(version.version) for kind, version in champions.items()}
    return all(
        now.get(kind) in (row["champion_before"], row["champion_after"]) for kind, row in report["kinds"].items()
    )
