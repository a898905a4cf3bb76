"""`ebbtide run` and `resume`: sweeps for real."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ebbtide.cli.foreground import run_in_foreground
from ebbtide.cli.options import (
    GenerateOption,
    InstanceTypesOption,
    SpellsOption,
    catalogue_with,
    prices_from,
    terminal,
)
from ebbtide.cli.runs import RunArgument, RunsOption
from ebbtide.errors import InputError, unknown_name
from ebbtide.execution.ec2.settings import Ec2Settings
from ebbtide.execution.live.local import SPEED, begin_local
from ebbtide.execution.live.settings import RUNS, RunFolder, find_run
from ebbtide.execution.run import run as run_once
from ebbtide.experiments.planning import policy_of
from ebbtide.market.spell_models import SpellModels
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.protocol import Policy
from ebbtide.policies.registry import policy as policy_named
from ebbtide.workloads.sweep import Sweep

_PROVIDERS = ("local", "ec2", "replay")

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
        run_in_foreground(folder, decides, wanted, track)
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
    run_in_foreground(folder, decides, wanted, track)


def resume_command(run: RunArgument = None, runs: RunsOption = RUNS) -> None:
    """Go on with a run that was stopped, or whose controller was killed."""
    folder = find_run(runs, run)
    settings = folder.settings
    wanted = Sweep.model_validate(settings.sweep)
    kept = folder.path / _SPELLS
    run_in_foreground(folder, _policy(wanted, settings.policy, kept if kept.exists() else None), wanted)


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


