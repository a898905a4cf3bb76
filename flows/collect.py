"""Collection of new batches of prices and of measured speeds, into folders that are inputs of stages.

`dvc repro` finds by itself which stages depend on them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

from prefect import flow, task

from ebbtide.base.files import only_one, write_text
from ebbtide.base.input_files import read_json
from ebbtide.forecasts.bundle import speeds_of
from ebbtide.market.ingestion import BatchRules, BatchVerdict, fetch_since, judged, read_source, unknown_rows
from ebbtide.market.prices import PriceHistory
from ebbtide.market.sources.ec2_api import fetch_prices
from ebbtide.runs.collected_speeds import speeds_of_runs
from flows.dvc_process import STATE
from flows.ingest import accepted_batches, number_of
from flows.parameters import Nightly

PRICES = Path("data/prices.parquet")
ACCEPTED, SET_ASIDE = Path("pipelines/inputs/batches"), Path("data/set-aside")
SPEEDS = Path("pipelines/inputs/speeds") / "runs.json"


@task(retries=3, retry_delay_seconds=[10, 60, 300], timeout_seconds=1800, persist_result=False)
def fetch(regions: list[str], instance_types: list[str], known: PriceHistory | None, incoming: Path) -> None:
    """Fetch prices from EC2 since shortly before the newest known ones, as a batch that is then checked."""
    if not regions:
        return
    since = fetch_since(known, instance_types)
    frame = unknown_rows(fetch_prices(regions, instance_types=instance_types, since=since), known)
    if len(frame):
        newest = frame["timestamp"].max()
        PriceHistory.from_frame(frame).write(incoming / f"ec2-{newest:%Y%m%dT%H%M%S}.parquet")


@task(task_run_name="judge-{file.name}", timeout_seconds=1800, persist_result=False)
def judge(file: Path, known: PriceHistory | None, rules: BatchRules, known_until_s: float) -> BatchVerdict:
    """Check one batch against the known prices and the rules."""
    return judged(file, known, rules, known_until_s=known_until_s)


@task(persist_result=False)
def sort_out(verdicts: Sequence[BatchVerdict]) -> None:
    """Move good batches to those that the pipeline reads, numbered as they came; set bad ones aside and say why.

    The pipeline reads batches in the order of their names, so that a later batch corrects an earlier one. One that
    was accepted before is not accepted again.
    """
    for verdict in verdicts:
        if not verdict.file.exists():
            continue  # a run that was killed has moved it already
        folder = SET_ASIDE if verdict.problem else ACCEPTED
        folder.mkdir(parents=True, exist_ok=True)
        digest, suffix = _digest(verdict.file), "".join(verdict.file.suffixes)
        if verdict.problem:
            write_text(folder / f"{digest}{suffix}.txt", f"{verdict.file.name}: {verdict.problem}\n")
            os.replace(verdict.file, folder / f"{digest}{suffix}")
        elif any(f"-{digest}" in file.name for file in accepted_batches(folder)):
            verdict.file.unlink()
        else:
            number = max(map(number_of, accepted_batches(folder)), default=0) + 1
            os.replace(verdict.file, folder / f"{number:06d}-{digest}{suffix}")


@task(persist_result=False)
def collect_speeds(runs: Path) -> None:
    """Keep the speeds that runs have measured, also of jobs whose runs are gone."""
    kept = speeds_of(read_json(SPEEDS), SPEEDS) if SPEEDS.exists() else {}
    found = {name: rates.to_dict() for name, rates in speeds_of_runs(runs).items()}
    if found:
        write_text(SPEEDS, json.dumps(kept | found, indent=2, sort_keys=True) + "\n")


@flow(name="collect")
def collect(parameters: Nightly) -> list[BatchVerdict]:
    """Check the batches that have come, and move them; collect the speeds that runs have measured.

    Args:
        parameters: Folder of batches, rules, regions of EC2, and the folder of runs.

    Returns:
        A verdict on each batch.

    Raises:
        InputError: A nightly run is under way, which collects them itself.
    """
    STATE.mkdir(parents=True, exist_ok=True)
    with only_one(STATE / "lock", "nightly run or collection"):
        verdicts = check_batches(parameters)
        sort_out(verdicts)
        collect_speeds(parameters.runs)
    return verdicts


def check_batches(parameters: Nightly) -> list[BatchVerdict]:
    """Fetch from EC2 where regions are named, and check all batches that have come; none is moved."""
    known = PriceHistory.read(PRICES) if PRICES.exists() else None
    parameters.incoming.mkdir(parents=True, exist_ok=True)
    fetch(parameters.regions, parameters.instance_types, known, parameters.incoming)
    verdicts: list[BatchVerdict] = []
    until_s = _accepted_until_s()
    for file in batches(parameters.incoming):
        # Those that come together may follow one another.
        verdicts.append(judge(file, known, parameters.rules, until_s))
        if not verdicts[-1].problem:
            until_s = max(until_s, verdicts[-1].ends_s)
    return verdicts


def _accepted_until_s() -> float:
    """End of the batches that were accepted since the prices were ingested, seconds since 1970."""
    ingested_s = PRICES.stat().st_mtime if PRICES.exists() else -math.inf
    new = [file for file in accepted_batches(ACCEPTED) if file.stat().st_ctime > ingested_s]
    return max((read_source(file)["timestamp"].max().timestamp() for file in new), default=-math.inf)


def batches(incoming: Path) -> list[Path]:
    """Files to check, in the order in which they were written; unfinished: a dot first, or .part at the end."""
    found = (
        file
        for file in incoming.iterdir()
        if file.is_file() and not file.name.startswith(".") and file.suffix != ".part"
    )
    return sorted(found, key=lambda file: (file.stat().st_mtime_ns, file.name))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:32]
