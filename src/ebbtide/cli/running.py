"""`ebbtide run`: live trainings and sweeps."""

from __future__ import annotations

import importlib
import math
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ebbtide.backtesting.summary import models_note
from ebbtide.base.cores import usable_cores
from ebbtide.base.utc import HOUR_S, to_epoch_s
from ebbtide.cli.asking import confirm
from ebbtide.cli.live_console import run_in_foreground
from ebbtide.cli.live_table import policy_words
from ebbtide.cli.option_groups import grouped
from ebbtide.cli.options import (
    InstanceTypesOption,
    Models,
    ModelsOption,
    Source,
    SpellsOption,
    catalogue_with,
    terminal,
)
from ebbtide.cli.run_arguments import RunInput, TrainingOptions, is_told_where_to_save, wanted_from
from ebbtide.cli.runs import RunsOption
from ebbtide.clouds.settings import RENTED, RUNS, RunFolder
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.kinds.measured_speed import speed_text
from ebbtide.controller.progress_news import show
from ebbtide.errors import InputError, JournalError
from ebbtide.forecasts.bundle import DEFAULT_BUNDLE, ModelBundle
from ebbtide.jobs.job_list import JobList, OneJob, Runnable
from ebbtide.market.catalogue import default_catalogue
from ebbtide.policies.for_job import asked_policy, deadline_remarks, policy_summary
from ebbtide.policies.parameters import assignments
from ebbtide.policies.registry import ASK_MODELS, DEFAULT, POLICIES
from ebbtide.replay.generated_markets import MarketKind
from ebbtide.runs.collected_speeds import CollectedSpeeds, rates_of
from ebbtide.runs.run import RunOptions, begin, check_provider
from ebbtide.runs.run import run as run_once
from ebbtide.runs.start_local import GENERATED_DAYS, SPEED, LocalMarket, generated_market

# Fields that name a program, in a job's file or in a list of jobs.
_PROGRAM = re.compile(r"(jobs\.\d+\.)?(command|spark|dask)")


@dataclass(frozen=True)
class RentingOptions:
    """Options for the provider of machines, and for the policy."""

    provider: Annotated[
        str,
        typer.Option(
            help="local: processes here, revoked by a replayed market; ec2; gcp; skypilot; several; or replay."
        ),
    ] = "local"
    machines: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.yaml",
            help="For all but local and replay: settings of machines, as examples/live/ec2.yaml.",
        ),
    ] = None
    policy: Annotated[
        str,
        typer.Option(
            help="The policy that decides: a name, FILE.yaml of parameters, or your own as FILE.py:CLASS; by "
            "default that of the file, or one that suits, which is printed."
        ),
    ] = DEFAULT
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A parameter of the policy, as theta=0.5; may be given again."
        ),
    ] = None
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Rent without asking; only at a terminal is it asked at all.")
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be rented and what it would cost, and end.")
    ] = False


@dataclass(frozen=True)
class ReplayedSource(Source):
    """The market to replay, its start and its speed."""

    prices: Annotated[Path | None, typer.Option(help="A Parquet file of prices to replay.")] = None
    availability: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A Parquet record of capacity, beside --prices."),
    ] = None
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="Start in the prices; by default after a quarter.")
    ] = None
    speed: Annotated[float, typer.Option(min=1.0, help="Market seconds per real second, for local.")] = SPEED
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0


@dataclass(frozen=True)
class Kept:
    """Options for storing and tracking a run and its checkpoints, and for the models that it uses."""

    store: Annotated[
        str, typer.Option(help="Storage of checkpoints: a folder or s3://bucket/prefix; by default the run's.")
    ] = ""
    track: Annotated[
        str, typer.Option(metavar="URI", help="Track each trial in MLflow: sqlite:///FILE or http://HOST.")
    ] = ""
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Keep its journal in Postgres, postgresql://HOST/DATABASE; by default of EBBTIDE_JOURNAL.",
        ),
    ] = None
    spells: SpellsOption = None
    models: ModelsOption = None
    runs: RunsOption = RUNS


@dataclass(frozen=True)
class Paid:
    """Options for the owner and the purpose of a run, and for the team whose limits it keeps."""

    team: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Limits over all runs of a team; by default the file of EBBTIDE_TEAM."),
    ] = None
    owner: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who pays for it, in cost reports and on its machines.")
    ] = None
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="NAME=VALUE", help="What it is for; may be given again."),
    ] = None

    def as_options(self) -> dict[str, Any]:
        """Return these options as fields of `RunOptions`.

        Raises:
            InputError: A tag is not of the form NAME=VALUE.
        """
        pairs = [tag.partition("=") for tag in self.tags or ()]
        wrong = next((tag for tag, (_, equals, _) in zip(self.tags or (), pairs, strict=True) if not equals), None)
        if wrong is not None:
            raise InputError(f"{wrong!r} is no tag; write it as project=vision", field="--tag")
        return {"team": self.team, "owner": self.owner, "tags": {name: value for name, _, value in pairs}}


@grouped
def run_command(
    *,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE.yaml | -- COMMAND...",
            help="A job, a sweep or several jobs, as in examples/live; or, after --, the command.",
        ),
    ],
    training: TrainingOptions,
    rented: RentingOptions,
    source: ReplayedSource,
    kept: Kept,
    paid: Paid,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Train one or several jobs, or a sweep: rent machines, save before they are revoked, continue on others.

        ebbtide run -- python train.py --epochs 10
        ebbtide run --checkpoints ckpt -- python examples/live/plain.py --epochs 10
        ebbtide run examples/live/sweep.yaml --provider local --generate 20

    Ctrl-C stops: everything is saved, machines are released, and `ebbtide resume` continues.
    """
    provider = rented.provider
    check_provider(provider)
    catalogue = catalogue_with(instance_types)
    wanted = wanted_from(words, training, catalogue)
    sweep = wanted.sweep
    chosen, parameters = asked_policy(sweep, rented.policy, assignments(rented.parameters or ()))
    options: RunOptions = {
        "start": source.start,
        "seed": source.seed,
        "catalogue": catalogue,
        "spells": kept.spells,
        "speed": source.speed,
        "runs": kept.runs,
        "store": kept.store,
        "journal": kept.journal,
        "machines": rented.machines,
        "parameters": parameters,
        **paid.as_options(),  # type: ignore[typeddict-item]
    }
    generates = source.prices is None and source.generate is None and provider == "local"
    if generates:
        if source.availability is not None:
            raise InputError("--availability is of markets whose prices are given; give --prices FILE, too")
        options["kind"] = source.kind
    elif provider not in RENTED:
        history = source.history(source.seed, catalogue)
        options["prices"] = history
        options["availability"] = source.capacity(history, source.seed, source.availability)
    models = _models(kept.models, provider, chosen, sweep, options)
    options["models"] = models
    if models is not None:
        typer.echo(models_note(models.versions))
    confirm(sweep, provider, options, dry_run=rented.dry_run, yes=rented.yes)
    if provider == "replay":
        terminal().print(f"{run_once(sweep, chosen, 'replay', **options)}; a replay: nothing was rented or paid")
        return
    if kept.track:
        # Import now, so that the command fails before a run begins if MLflow is not installed.
        importlib.import_module("ebbtide.tracking.live_tracking")
    show()
    try:
        started = begin(sweep, wanted.folder, chosen, provider, options)
    except InputError as error:
        # Only this function knows the file that names a missing program.
        if wanted.file is None or error.file is not None or not _PROGRAM.fullmatch(error.field or ""):
            raise
        raise InputError(error.problem, file=wanted.file, field=error.field) from None
    if generates:
        typer.echo(
            f"no prices are named: {GENERATED_DAYS:g} days of a market are generated "
            f"(--kind {source.kind} --seed {source.seed})"
        )
    _print_policy(wanted, chosen, parameters)
    for remark in deadline_remarks([started.policy], sweep):
        typer.echo(remark, err=True)
    try:
        run_in_foreground(started.kept, started.policy, sweep, kept.track)
    finally:
        _print_speed(started.kept, sweep)


def _models(
    named: str | None, provider: str, policy: str, sweep: Runnable, options: RunOptions
) -> ModelBundle | None:
    """Read the named bundle, else the default one if the policy uses models; None: no bundle is used."""
    if named is None and policy in POLICIES and policy not in ASK_MODELS and not sweep.is_list:
        return None
    if named is not None or provider in RENTED or not DEFAULT_BUNDLE.exists():
        return Models(named).bundle(time.time())
    prices, start = options.get("prices"), options.get("start")
    catalogue = options.get("catalogue") or default_catalogue()
    market = (
        generated_market(sweep, options["seed"], catalogue, kind=MarketKind(options["kind"]))
        if prices is None
        else LocalMarket(prices)
    )
    if start is not None:
        market = replace(market, start_s=to_epoch_s(start))
    return Models().bundle(market.begins_s)


def _print_policy(wanted: RunInput, policy: str, parameters: Mapping[str, Any]) -> None:
    if wanted.sweep.is_list:
        _print_list(wanted.sweep, wanted.folder, policy_words(policy, parameters))
        return
    sweep = wanted.sweep
    summary = policy_summary(policy)
    named = policy_words(policy, parameters)
    typer.echo(f"{sweep.name}: {sweep.in_words}; policy {named} decides{': ' * bool(summary)}{summary}")
    if sweep.checkpoints is not None:
        typer.echo(f"files it writes into {sweep.checkpoints} are stored as its checkpoints, and restored there")
    if not is_told_where_to_save(sweep, wanted.folder):
        typer.echo(
            "its program does not know where to save: name the folder in which it saves and from which it resumes "
            "with --checkpoints; else it starts from zero whenever its machine is revoked"
        )
    if sweep.asked:
        typer.echo(f"each of its machines has {sweep.asked}")
    if not sweep.is_measured:
        typer.echo("its speed is not known: it is measured while it runs")


def _print_list(listed: JobList, folder: Path, policy: str) -> None:
    typer.echo(f"{listed.name}: {listed.in_words}; policy {policy} decides, where a job names none")
    for job in listed.listed:
        after = f" after {', '.join(job.needs)}" if job.needs else ""
        own = f"; policy {policy_words(job.policy.name, job.policy.parameters)}" if job.policy is not None else ""
        saves = is_told_where_to_save(job.work, folder)
        typer.echo(f"  {job.name}{after}{own}{'' if saves else '; its program does not know where to save'}")


def _print_speed(folder: RunFolder, work: Runnable) -> None:
    """Print the measured speed of each job in the form that job files for `plan` and `compare` need."""
    # The end of the run, and any problem with its journal, has been reported already.
    with suppress(JournalError):
        for sweep in work.parts:
            _print_speed_of(folder, sweep, work)


def _print_speed_of(folder: RunFolder, sweep: OneJob, work: Runnable) -> None:
    kept = journal_of(folder, read_only=True).run(decisions=False)
    rates = rates_of([folder], sweep.name)
    if kept is None or rates == CollectedSpeeds():
        return
    if work.is_list:
        typer.echo(f"job {sweep.name}:")
    if rates.other_steps_per_hour_per_vcpu is not None:
        rate, cores = rates.other_steps_per_hour_per_vcpu, usable_cores()
        typer.echo(
            f"measured {speed_text(rate * cores / HOUR_S)} on this machine of {cores} cores; rented machines are "
            "measured when they train. As a first estimate for `ebbtide plan` and `compare` write"
        )
        typer.echo(f"  other_steps_per_hour_per_vcpu: {rate:.4g}")
    else:
        known = rates.steps_per_hour.items()
        measured = ", ".join(f"{speed_text(rate / HOUR_S)} on {name}" for name, rate in known)
        typer.echo(f"measured {measured}; for `ebbtide plan` and `compare` write")
        typer.echo(f"  steps_per_hour: {{{', '.join(f'{name}: {rate:g}' for name, rate in known)}}}")
    jobs = [job for number, job in enumerate(kept["engine"]["jobs"]) if work.part_of(number)[0] is sweep]
    done = max(job["steps_done"] for job in jobs)
    # The total number of steps is known only if all trainings have finished.
    if sweep.steps is None and done >= 1 and all(not math.isnan(job["finished_s"]) for job in jobs):
        typer.echo(f"  steps: {done:g}")
