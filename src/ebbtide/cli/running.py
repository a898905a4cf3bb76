"""`ebbtide run`, `status`, `logs`, `stop`, `resume`, `down`: sweeps for real."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live

from ebbtide.cli.live_table import run_table
from ebbtide.cli.options import (
    GenerateOption,
    InstanceTypesOption,
    SpellsOption,
    catalogue_with,
    prices_from,
    terminal,
)
from ebbtide.errors import InputError, unknown_name
from ebbtide.execution.ec2.settings import Ec2Settings
from ebbtide.execution.engine_snapshot import snapshot
from ebbtide.execution.live.journal import Journal
from ebbtide.execution.live.local import SPEED, begin_local
from ebbtide.execution.live.providers import end_machines, run_live
from ebbtide.execution.live.settings import RUNS, RunFolder, find_run
from ebbtide.execution.run import run as run_once
from ebbtide.experiments.planning import policy_of
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.spell_models import SpellModels
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.registry import policy as policy_named
from ebbtide.workloads.sweep import Sweep

if TYPE_CHECKING:
    from ebbtide.execution.agents import AgentProvider
    from ebbtide.execution.engine import Engine
    from ebbtide.policies.protocol import Policy

_PROVIDERS = ("local", "ec2", "replay")
_TABLE_EVERY_S = 0.5
_FOLLOW_EVERY_S = 0.3

RunArgument = Annotated[str | None, typer.Argument(metavar="RUN", help="A run's id; else the newest.")]
RunsOption = Annotated[Path, typer.Option("--runs", metavar="FOLDER", help="Where runs are kept.")]

# Models of availability, in the run's folder.
_SPELLS = "spells.json"


def run_command(
    sweep: Annotated[
        Path, typer.Argument(metavar="SWEEP.yaml", help="The sweep, as examples/live/sweep.yaml has it.")
    ],
    provider: Annotated[
        str, typer.Option(help="local: processes here, taken by a replayed market; ec2; or replay.")
    ] = "local",
    machines: Annotated[
        Path | None,
        typer.Option(metavar="EC2.yaml", help="For ec2: what machines are, as examples/live/ec2.yaml has it."),
    ] = None,
    policy: Annotated[str, typer.Option(help="Who decides.")] = "spottune",
    prices: Annotated[Path | None, typer.Option(help="A Parquet file of prices to replay.")] = None,
    generate: GenerateOption = None,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="Begin then; else a quarter into the prices.")
    ] = None,
    speed: Annotated[float, typer.Option(min=1.0, help="Market seconds in a real one, for local.")] = SPEED,
    seed: Annotated[int, typer.Option(help="Of all chance.")] = 0,
    store: Annotated[
        str, typer.Option(help="For checkpoints: a folder or s3://bucket/prefix; else the run's.")
    ] = "",
    track: Annotated[
        str, typer.Option(metavar="URI", help="Track each trial in MLflow: sqlite:///FILE or http://HOST.")
    ] = "",
    spells: SpellsOption = None,
    runs: RunsOption = RUNS,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Train a sweep: rent, train, save before machines are taken, move on.

        ebbtide run examples/live/sweep.yaml --provider local --generate 20

    Ctrl-C stops: everything is saved and given back, and `ebbtide resume` goes on.
    """
    if provider not in _PROVIDERS:
        raise unknown_name("provider", provider, _PROVIDERS)
    catalogue = catalogue_with(instance_types)
    wanted = Sweep.read(sweep, catalogue)
    jobs = wanted.jobs()
    decides = _policy(wanted, policy, spells)
    if provider == "ec2":
        if machines is None:
            raise InputError("--provider ec2 needs --machines EC2.yaml, as examples/live/ec2.yaml has it")
        from ebbtide.execution.live.ec2 import begin_ec2

        settings = Ec2Settings.read(machines)
        folder = begin_ec2(wanted, sweep.parent, runs, settings, policy=policy, seed=seed)
        _keep(spells, folder)
        _go(folder, decides, wanted, track)
        return
    history = wanted.allowed(prices_from(prices, generate, seed, catalogue))
    if provider == "replay":
        outcome = run_once(
            decides, jobs, prices=history, start=start, billing=wanted.billing, seed=seed, catalogue=catalogue
        )
        terminal().print(str(outcome))
        return
    from ebbtide.utc import to_epoch_s

    start_s = to_epoch_s(start) if start else None
    folder = begin_local(
        wanted,
        sweep.parent,
        runs,
        policy=policy,
        prices=history,
        start_s=start_s,
        speed=speed,
        seed=seed,
        store=store,
    )
    _keep(spells, folder)
    _go(folder, decides, wanted, track)


def resume_command(run: RunArgument = None, runs: RunsOption = RUNS) -> None:
    """Go on with a run that was stopped, or whose controller was killed."""
    folder = find_run(runs, run)
    settings = folder.settings
    wanted = Sweep.model_validate(settings.sweep)
    kept = folder.path / _SPELLS
    _go(folder, _policy(wanted, settings.policy, kept if kept.exists() else None), wanted)


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


def _keep(spells: Path | None, folder: RunFolder) -> None:
    """Beside the run, so that it goes on with the same models."""
    if spells:
        SpellModels.read(spells).write(folder.path / _SPELLS)


def _policy(sweep: Sweep, name: str, spells: Path | None = None) -> Policy:
    """By name; SpotTune as the sweep wants it. Never beyond its budget."""
    if name == "spottune":
        return policy_of(sweep, SpellModels.read(spells) if spells else None)
    found = policy_named(name)
    return found if sweep.budget_usd is None else WithinBudget(found, sweep.budget_usd)


def _go(folder: RunFolder, policy: Policy, sweep: Sweep, track: str = "") -> None:
    """Run it in the foreground, with a table that is alive; Ctrl-C stops it."""
    run, catalogue = folder.path.name, default_catalogue()
    if track:
        from ebbtide.experiments.live_tracking import begin_tracking

        # Programs run elsewhere: what is a path is to be one from everywhere.
        file = track.removeprefix("sqlite:///")
        uri = track if file == track else f"sqlite:///{Path(file).resolve()}"
        begin_tracking(folder, uri, folder.path / "mlflow")
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
