"""`ebbtide status`, `logs`, `stop`, `down`: live runs that are under way or over."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ebbtide.cli.live_table import run_table
from ebbtide.cli.options import terminal
from ebbtide.execution.live.journal import Journal
from ebbtide.execution.live.providers import end_machines
from ebbtide.execution.live.settings import RUNS, find_run
from ebbtide.market.catalogue import default_catalogue
from ebbtide.workloads.sweep import Sweep

_FOLLOW_EVERY_S = 0.3

RunArgument = Annotated[str | None, typer.Argument(metavar="RUN", help="A run's id; else the newest.")]
RunsOption = Annotated[Path, typer.Option("--runs", metavar="FOLDER", help="Where runs are kept.")]


def status_command(run: RunArgument = None, runs: RunsOption = RUNS) -> None:
    """Trials, machines, and what a run has spent and saved."""
    folder = find_run(runs, run)
    journal = Journal(folder.journal)
    kept = journal.state("run")
    if kept is None:
        typer.echo(f"{folder.path.name} has not begun yet")
        return
    settings = folder.settings
    terminal().print(run_table(settings.run, Sweep.model_validate(settings.sweep), kept, default_catalogue()))
    ended = journal.state("outcome")
    if ended is not None:
        typer.echo("finished" if ended["finished"] else f"ended: {ended['gave_up'] or 'not finished'}")


def logs_command(
    run: RunArgument = None,
    trial: Annotated[int | None, typer.Option(min=0, help="Only this trial's.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as more is printed.")] = False,
    runs: RunsOption = RUNS,
) -> None:
    """What trials' programs printed."""
    folder = find_run(runs, run)
    journal = Journal(folder.journal)
    known: dict[int, int] = {}
    while True:
        over = journal.state("outcome") is not None
        for path in sorted((folder.path / "logs").glob("*.log")):
            number = int(path.stem.rpartition("-")[2])
            if trial in (None, number):
                content = path.read_text(encoding="utf-8")[known.get(number, 0) :]
                known[number] = known.get(number, 0) + len(content)
                for line in content.splitlines():
                    typer.echo(f"[{number}] {line}")
        if not follow or over:
            return
        time.sleep(_FOLLOW_EVERY_S)


def stop_command(run: RunArgument = None, runs: RunsOption = RUNS) -> None:
    """Have a run save everything, wait for uploads, and give its machines back; it can go on later."""
    folder = find_run(runs, run)
    Journal(folder.journal).keep({"wish": "stop"})
    typer.echo(f"{folder.path.name} is told to stop; `ebbtide status {folder.path.name}` shows how far it is")


def down_command(run: RunArgument = None, runs: RunsOption = RUNS) -> None:
    """End every machine of a run now, whatever it is at; checkpoints stay."""
    folder = find_run(runs, run)
    typer.echo(f"{end_machines(folder)} machines ended")
