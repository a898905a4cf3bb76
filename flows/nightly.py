"""The nightly run: checks and adds new prices, brings the pipeline up to date, and reports what changed.

It is safe to run twice and after a crash: a batch is recognised by its content, the state of the pipeline is known
to DVC, and the next run repeats whatever a killed run left undone.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from prefect import flow, get_client, task, unmapped
from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact
from prefect.logging import get_run_logger

from ebbtide._files import only_one, write_text
from ebbtide.analysis.nightly import Night, costs_picture, keep_figures, kept_figures, read_figures
from ebbtide.analysis.promotion import champion_version
from ebbtide.analysis.tracking import PARENT, pipeline_run
from ebbtide.errors import InputError
from ebbtide.market.ingestion import BatchRules, Verdict, judged
from ebbtide.market.prices import PriceHistory
from ebbtide.market.sources.ec2_api import fetch_prices
from flows.parameters import parameters as section_of_params
from flows.task_runner import task_runner

PRICES = Path("data/prices.parquet")
ACCEPTED, SET_ASIDE = Path("data/accepted"), Path("data/set-aside")
STATE = Path("data/nightly")
REPORTS = Path("reports")
SUMMARY = REPORTS / "nightly.md"

_RAN = re.compile(r"^Running stage '([^']+)':?", re.MULTILINE)
_STAGES_S = 6 * 3600.0


@task(retries=3, retry_delay_seconds=[10, 60, 300], timeout_seconds=1800, persist_result=False)
def collect(regions: list[str], instance_types: list[str], known: PriceHistory | None, incoming: Path) -> None:
    """Fetch prices from EC2 that are newer than the known ones, as a batch that is then checked."""
    since: dict[str, float] = {}
    for market, series in (known or {}).items():
        since[market.region] = max(since.get(market.region, 0.0), float(series.times_s[-1]))
    if regions:
        frame = fetch_prices(regions, instance_types=instance_types, since=since)
        if len(frame):
            newest = frame["timestamp"].max()
            PriceHistory.from_frame(frame).write(incoming / f"ec2-{newest:%Y%m%dT%H%M%S}.parquet")


@task(task_run_name="judge-{file.name}", timeout_seconds=1800, persist_result=False)
def judge(file: Path, known: PriceHistory | None, rules: BatchRules) -> Verdict:
    """Check one batch against the known prices and the rules."""
    return judged(file, known, rules)


@task
def sort_out(verdicts: Sequence[Verdict]) -> None:
    """Move good batches to those that the pipeline reads, and set bad ones aside with the reason."""
    for verdict in verdicts:
        if not verdict.file.exists():
            continue  # a run that was killed has moved it already
        folder = SET_ASIDE if verdict.problem else ACCEPTED
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{_digest(verdict.file)}{''.join(verdict.file.suffixes)}"
        if verdict.problem:
            write_text(folder / f"{name}.txt", f"{verdict.file.name}: {verdict.problem}\n")
        os.replace(verdict.file, folder / name)


@task(retries=1, retry_delay_seconds=30, timeout_seconds=_STAGES_S)
def bring_up_to_date(targets: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Run `dvc repro`, ingestion first if batches were added since; returns the names of the stages that ran."""
    accepted = sorted(file.name for file in ACCEPTED.glob("*")) if ACCEPTED.exists() else []
    marker = STATE / "ingested.txt"
    known = marker.read_text(encoding="utf-8").split() if marker.exists() else []
    output = ""
    if accepted != known:
        output += _dvc("repro", "--force", "--single-item", "ingest", environment=environment)
    output += _dvc("repro", *targets, environment=environment)
    write_text(marker, "".join(f"{name}\n" for name in accepted))
    return tuple(dict.fromkeys(_RAN.findall(output)))


@task(retries=3, retry_delay_seconds=[5, 30, 120], timeout_seconds=1800)
def push() -> bool:
    """Run `dvc push` if a remote is set; returns whether it was run."""
    if not _dvc("remote", "list").strip():
        return False
    _dvc("push")
    return True


@task
def tell(night: Night) -> None:
    """Write the summary to a file, and summary, tables and figure as artifacts of Prefect."""
    write_text(SUMMARY, night.summary())
    create_markdown_artifact(night.summary(), key="nightly-summary", description="What the night has changed")
    create_table_artifact(night.rows(), key="nightly-figures", description="Models and policies, before and after")
    picture = base64.b64encode(costs_picture(night)).decode()
    create_image_artifact(
        image_url=f"data:image/png;base64,{picture}", key="nightly-picture", description="Costs, before and after"
    )
    costs = [
        {"job": job, "policy": name, "mean cost, USD": round(cost, 4)}
        for job, by_policy in night.after.costs.items()
        for name, cost in by_policy.items()
    ]
    create_table_artifact(costs, key="nightly-costs", description="What each policy costs on the newest prices")


@flow(name="nightly", validate_parameters=False, timeout_seconds=8 * 3600, task_runner=task_runner())
def nightly(parameters: Mapping[str, Any] | None = None, tracking: Mapping[str, Any] | None = None) -> str:
    """Run one night.

    Args:
        parameters: The `nightly` section of params.yaml by name; None: read from the file.
        tracking: The `tracking` section of params.yaml by name; None: read from the file.

    Returns:
        The summary as Markdown text.

    Raises:
        InputError: Another nightly run is under way, or a parameter is not what it should be.
    """
    parameters = section_of_params("nightly") if parameters is None else parameters
    tracking = section_of_params("tracking") if tracking is None else tracking
    STATE.mkdir(parents=True, exist_ok=True)
    with only_one(STATE / "lock", "nightly run"):
        _end_leftovers()
        return _night(parameters, tracking)


def _night(parameters: Mapping[str, Any], tracking: Mapping[str, Any]) -> str:
    incoming = Path(parameters["incoming"])
    incoming.mkdir(parents=True, exist_ok=True)
    try:
        rules = BatchRules(**parameters["rules"])
    except TypeError as error:
        raise InputError(str(error), file="params.yaml", field="nightly.rules") from None
    known = PriceHistory.read(PRICES) if PRICES.exists() else None
    collect(parameters["regions"], parameters["instance_types"], known, incoming)
    files = batches(incoming)
    verdicts = judge.map(files, known=unmapped(known), rules=unmapped(rules)).result() if files else []
    sort_out(verdicts)
    with pipeline_run("nightly", tracking, REPORTS) as parent:
        stages = bring_up_to_date(parameters["targets"], {**_server(), PARENT: parent})
        get_run_logger().info("stages run: %s", ", ".join(stages) or "none")
    pushed = push() if parameters["push"] else False
    before = kept_figures(STATE / "accepted.json")
    after = read_figures(REPORTS, champion_version(tracking["uri"]))
    points = PriceHistory.read(PRICES).change_points
    night = Night(
        [verdict for verdict in verdicts if not verdict.problem],
        [verdict for verdict in verdicts if verdict.problem],
        (known.change_points if known else 0, points),
        stages,
        before,
        after,
        pushed,
    )
    tell(night)
    keep_figures(after, STATE / "accepted.json")
    return night.summary()


def batches(incoming: Path) -> list[Path]:
    """Files to check, sorted by name; those still being written begin with a dot or end with .part."""
    return sorted(
        file
        for file in incoming.iterdir()
        if file.is_file() and not file.name.startswith(".") and file.suffix != ".part"
    )


def _dvc(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run DVC in a process group of its own, whose id is kept, so that the next run can end what is left of it.

    Raises:
        InputError: A stage or DVC itself failed.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "dvc", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **(environment or {}),
        },
        start_new_session=True,
    )
    write_text(STATE / "group", str(process.pid))
    try:
        output, _ = process.communicate()
    except BaseException:
        _end_group(process.pid)
        raise
    (STATE / "group").unlink(missing_ok=True)
    if process.returncode != 0:
        raise InputError(f"dvc {' '.join(arguments)} failed: {' | '.join(output.strip().splitlines()[-4:])}")
    return output


def _end_leftovers() -> None:
    """End DVC and stages that a killed run left running; they belong to it if they work in this folder."""
    marker = STATE / "group"
    if marker.exists():
        _end_group(int(marker.read_text(encoding="utf-8")))
        marker.unlink()


def _end_group(group: int) -> None:
    here = Path.cwd()
    ours = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and Path(process.cwd()) == here:
                ours.append(process)
        except (OSError, psutil.Error):
            continue
    for process in ours:
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(ours, timeout=10.0)


def _server() -> dict[str, str]:
    """The address of the Prefect server of this run, so that stages need not start one each."""
    with get_client(sync_client=True) as client:
        url = str(client.api_url)
    return {"PREFECT_API_URL": url} if url.startswith("http") else {}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:32]
