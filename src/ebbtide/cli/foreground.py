"""A live run in the foreground: the controller with a table that is alive; Ctrl-C stops it."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.live import Live

from ebbtide.cli.live_table import run_table
from ebbtide.cli.options import terminal
from ebbtide.errors import InputError
from ebbtide.execution.engine_snapshot import snapshot
from ebbtide.execution.live.journal import Journal
from ebbtide.execution.live.providers import run_live
from ebbtide.execution.live.settings import RunFolder
from ebbtide.market.catalogue import default_catalogue
from ebbtide.policies.protocol import Policy
from ebbtide.workloads.sweep import Sweep

if TYPE_CHECKING:
    from ebbtide.execution.agents import AgentProvider
    from ebbtide.execution.engine import Engine

_TABLE_EVERY_S = 0.5


def run_in_foreground(folder: RunFolder, policy: Policy, sweep: Sweep, track: str = "") -> None:
    """Run it in the foreground, with a table that is alive; Ctrl-C stops it."""
    run, catalogue = folder.path.name, default_catalogue()
    if track:
        from ebbtide.experiments.live_tracking import begin_tracking

        # Programs run elsewhere: what is a path is to be one from everywhere.
        file = track.removeprefix("sqlite:///")
        uri = track if file == track else f"sqlite:///{Path(file).resolve()}"
        begin_tracking(folder, uri, folder.path / "mlflow")
    elif Journal(folder.journal).state("tracking") is not None:
        from ebbtide.experiments.live_tracking import resume_tracking

        resume_tracking(folder)
    typer.echo(f"run {run}")
    typer.echo(f"  ebbtide status {run}    ebbtide logs -f {run}    ebbtide stop {run}    ebbtide down {run}")
    journal = Journal(folder.journal)

    def stop(*_: object) -> None:
        journal.keep({"wish": "stop"})

    signal.signal(signal.SIGINT, stop)
    console = Console()
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        shown_s = 0.0

        def looked(engine: Engine, provider: AgentProvider) -> None:
            nonlocal shown_s
            if console.is_terminal and time.monotonic() - shown_s > _TABLE_EVERY_S:
                shown_s = time.monotonic()
                kept = {"engine": snapshot(engine), "provider": provider.snapshot()}
                live.update(run_table(run, sweep, kept, catalogue))

        outcome = run_live(folder, policy, looked)
    kept = journal.state("run")
    if journal.state("tracking") is not None:
        from ebbtide.experiments.live_tracking import end_tracking

        end_tracking(folder, outcome)
    terminal().print(run_table(run, sweep, kept, catalogue))
    if outcome.gave_up:
        typer.echo(f"{outcome.gave_up}; go on with `ebbtide resume {run}`")
    if not outcome.finished and not outcome.gave_up:
        raise InputError(
            f"run {run} did not finish: the record of prices is over; `ebbtide status {run}` shows more"
        )
