"""Runs a job or a sweep with a policy: `run`, and `begin`, which only creates a live run.

`ebbtide run` and `eb.run` do the same: both create the run by `begin`, and its controller runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from ebbtide.base.utc import Time, to_epoch_s
from ebbtide.clouds.machines import MachineSettings
from ebbtide.clouds.providers import EACH_CLOUDS, Machines, machines_of, with_billing
from ebbtide.clouds.settings import RENTED, RUNS, NewRun, RunFolder
from ebbtide.controller.journal.address import journal_address
from ebbtide.controller.journal.journal import check_database, reserve
from ebbtide.controller.kinds.assignments import secrets_of
from ebbtide.controller.team.team import Team, accounting_of
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError, unknown_name
from ebbtide.forecasts.bundle import ModelBundle
from ebbtide.forecasts.capacity.models import SpellModels
from ebbtide.forecasts.champions import read_models
from ebbtide.jobs.job import Job, jobs_of
from ebbtide.jobs.job_files import read_runnable, read_work
from ebbtide.jobs.job_list import JobList, ListedJob, Runnable
from ebbtide.jobs.one_training import sweep_of
from ebbtide.market.availability import Availability
from ebbtide.market.billing import Billing, billing_preset
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.api.protocol import Policy, check_fits, checked_policy
from ebbtide.policies.for_job import asked_policy, policy_for, policy_with, within_budget
from ebbtide.policies.registry import DEFAULT
from ebbtide.policies.registry import policy as policy_named
from ebbtide.replay.generated_markets import MarketKind
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import StartDelay
from ebbtide.replay.starts import work_s
from ebbtide.runs.handle import Run, keep_policy
from ebbtide.runs.start_local import SPEED, LocalMarket, begin_local, generated_market

PROVIDERS = ("local", *RENTED, "replay")
# The provider that users of other tools mean.
_MEANT = {
    **dict.fromkeys(("aws", "amazon"), "ec2"),
    **dict.fromkeys(("google", "gce", "gcloud"), "gcp"),
    **dict.fromkeys(("azure", "kubernetes", "k8s", "lambda", "runpod", "nebius", "sky"), "skypilot"),
}

# Default policy for a job that is only replayed: that of one training without a deadline.
_ONE_JOB = "reactive"

Work = Job | Runnable | Sequence[Job] | str | Path


class RunOptions(TypedDict, total=False):
    """Options of `run` besides job, policy and provider; each is optional unless noted as required.

    Attributes:
        prices: The price history that `local` and `replay` replay; by default a generated one.
        availability: For `local` and `replay`: capacity of the markets that have a record, or the path of its
            file; all others always have machines. Generated prices of today have their own.
        kind: The kind of market to generate if no prices are given: `today`, `gpu` or `auction`.
        start: Time in the prices at which the run begins; by default a quarter into them.
        billing: Billing preset of spot leases, by name; by default the job's own, else that of the cloud; with
            several clouds or replayed prices, that of each cloud. `replay` takes a `Billing` as well.
        seed: Seed of the policy's random numbers and of generated prices; by default 0.
        catalogue: Instance types and list prices, kept with the run; by default those that ship with Ebbtide.
        spells: Models of how long capacity lasts, or the path of their file, for policies that meet deadlines.
        models: The bundle of trained models that the policy uses, the path of its folder, or `champion` for the
            one in the MLflow registry; kept with the run. A bundle trained on prices later than the start is
            refused.
        delay: For `replay`: how many seconds machines take to start.
        speed: For `local`: market seconds in a real second; by default 30.
        folder: For all but `replay`: the folder of the code, in which the program runs; by default the folder of
            the job's file, else the working directory.
        runs: Folder in which runs are kept; by default `.ebbtide/runs`.
        store: For `local`: storage for checkpoints, a folder or s3://bucket/prefix; by default the run's folder.
        machines: For `ec2`, `gcp` and `several`, required: settings of machines, for `several` by provider, or
            the path of their file.
        parameters: Parameters that differ from the defaults, by name, if the policy is given by name.
        owner: For all but `replay`: who pays for the run, in cost reports; by default, with a team, the user here.
        tags: For all but `replay`: tags of the run and of its machines, value by name.
        team: For all but `replay`: limits over all runs of a team, or the path of their file; by default the file
            that the environment variable EBBTIDE_TEAM names, if any.
        journal: For all but `replay`: the database for the run's journal, postgresql://HOST/DATABASE, by default
            that in the environment variable EBBTIDE_JOURNAL, if any; empty: a file in the run's folder.
        name: For all but `replay`: name of the run, which no other run there may have; by default the name of the
            job or sweep with the time.
    """

    prices: PriceHistory | None
    availability: Availability | str | Path | None
    kind: str
    start: Time | None
    billing: str | Billing | None
    seed: int
    catalogue: Catalogue | None
    spells: SpellModels | str | Path | None
    models: ModelBundle | str | Path | None
    delay: StartDelay | None
    speed: float
    folder: str | Path
    runs: str | Path
    store: str
    machines: MachineSettings | Machines | str | Path | None
    parameters: Mapping[str, Any] | None
    owner: str | None
    tags: Mapping[str, str] | None
    team: Team | str | Path | None
    journal: str | None
    name: str


@overload
def run(
    job: Work, policy: str | Policy = DEFAULT, *, provider: Literal["replay"], **options: Unpack[RunOptions]
) -> Outcome: ...


@overload
def run(
    job: Work, policy: str | Policy, provider: Literal["replay"], **options: Unpack[RunOptions]
) -> Outcome: ...


@overload
def run(
    job: Work,
    policy: str | Policy = DEFAULT,
    provider: Literal["local", "ec2", "gcp", "skypilot", "several"] = "local",
    **options: Unpack[RunOptions],
) -> Run: ...


def run(
    job: Work, policy: str | Policy = DEFAULT, provider: str = "local", **options: Unpack[RunOptions]
) -> Run | Outcome:
    """Run a job or a sweep with a policy: rent, train, save before machines are revoked, go on elsewhere.

        run = eb.run(eb.Job(command="python train.py"), policy="default", provider="local")
        print(run.status())
        print(run.result())

    Args:
        job: A `Job`, a `Sweep`, several jobs, or the path of a file that describes one or several. For all but
            `replay` each needs a command.
        policy: Decides what to rent: an object, or a name that `eb.policy` takes; `default`: the one that suits.
        provider: `local`: processes on this machine, revoked by a replayed market; `ec2`: machines of EC2; `gcp`:
            machines of Google Cloud; `several`: machines of both at once; `skypilot`: machines of whatever cloud
            SkyPilot rents from; `replay`: simulated training in no time.
        **options: Further options, by name: see `RunOptions`.

    Returns:
        For `replay`, the outcome; otherwise a handle, without waiting: the run's controller is a thread of this
        process.

    Raises:
        InputError: An unknown provider, policy or preset, a start outside the prices, a job without a command, or
            one that no machine of these prices can run.
    """
    check_provider(provider)
    if hasattr(job, "decide"):
        raise InputError("the job comes first, then the policy: write `eb.run(job, policy)`")
    if provider == "replay":
        return _replayed(job, policy, options)
    sweep, folder = _program_of(job, options)
    return begin(sweep, folder, policy, provider, options).start()


def begin(
    sweep: Runnable, folder: Path, policy: str | Policy, provider: str, options: RunOptions | None = None
) -> Run:
    """Create a new live run; `Run.start` or `runs.by_provider.run_live` runs it.

    Args:
        sweep: A sweep (a single job is a sweep of one trial), or a list of jobs.
        folder: Folder of the code, in which its program runs.
        policy: Decides, by name or as an object; never beyond the sweep's budget.
        provider: Name of the provider: any but `replay`.
        options: Further options, by name: see `RunOptions`.

    Raises:
        InputError: The policy or a preset is unknown, the policy does not suit the work, the program does not
            exist, no market has what the work asks for, or the start is outside the prices.
        JournalError: The database of its journal cannot be used, or does not answer.
    """
    options = options or {}
    catalogue = options.get("catalogue") or default_catalogue()
    seed = options.get("seed", 0)
    runs = Path(options.get("runs", RUNS))
    billing = options.get("billing")
    if billing is not None:
        if not isinstance(billing, str):
            raise InputError("billing of a live run is a preset's name", field="billing")
        billing_preset(billing)
        sweep = sweep.model_copy(update={"billing": billing})
    sweep = with_billing(sweep, provider)
    spells, models = _spells(options), read_models(options.get("models"))
    if isinstance(policy, str):
        # The run may be resumed from another folder.
        name, parameters = asked_policy(sweep, policy, options.get("parameters"))
        decides = policy_with(sweep, name, parameters, spells, models, catalogue)
    else:
        if options.get("parameters"):
            raise InputError("parameters are for a policy that is named; set the fields of the one that is given")
        name, parameters = checked_policy(policy).name, {}
        decides = within_budget(sweep, policy)
    # Nothing is created or rented if a secret is missing.
    secrets_of(sweep)
    # Checked here, before the engine does, so that a run that cannot begin leaves nothing behind.
    check_fits(decides, sweep.live_jobs(catalogue))
    accounting = accounting_of(options.get("owner"), options.get("tags"), options.get("team"))
    journal = journal_address(options.get("journal"))
    check_database(journal)

    def keep(kept: RunFolder) -> None:
        reserve(kept, journal)
        keep_policy(kept, policy, spells, models)
        accounting.keep(kept)

    new = NewRun(runs, options.get("name", ""), keep, journal)
    if provider in RENTED:
        from ebbtide.runs.start_rented import begin_rented

        kept = begin_rented(
            sweep,
            folder,
            new,
            _labelled(machines_of(provider, options.get("machines")), accounting.labels),
            policy=name,
            parameters=parameters,
            seed=seed,
            catalogue=catalogue,
        )
    else:
        market = _market_of(sweep, catalogue, models, options)
        if models is not None:
            models.check_unseen([market.begins_s])
        kept = begin_local(
            sweep,
            folder,
            new,
            market,
            policy=name,
            parameters=parameters,
            seed=seed,
            store=options.get("store", ""),
            catalogue=catalogue,
        )
    return Run(kept, decides)


def check_provider(provider: str, valid: Sequence[str] = PROVIDERS) -> None:
    """Check the name of a provider.

    Raises:
        InputError: There is none of this name; the message has the one that is meant.
    """
    if provider in valid:
        return
    if meant := _MEANT.get(provider.lower()):
        raise InputError(f"unknown provider {provider!r}: write {meant}")
    raise unknown_name("provider", provider, valid)


def _labelled(machines: Machines, labels: Mapping[str, str]) -> Machines:
    """The settings of machines, with these labels added to their own."""
    return {name: one.model_copy(update={"labels": {**one.labels, **labels}}) for name, one in machines.items()}


def local_market(work: Runnable, options: RunOptions) -> LocalMarket:
    """The market that `local` and `replay` would replay with some options.

    Raises:
        InputError: The options do not fit together, or no market can be generated.
    """
    catalogue = options.get("catalogue") or default_catalogue()
    return _market_of(work, catalogue, read_models(options.get("models")), options)


def _market_of(
    work: Runnable | None, catalogue: Catalogue, models: ModelBundle | None, options: RunOptions
) -> LocalMarket:
    """The market that `local` and `replay` replay.

    Raises:
        InputError: The options do not fit together, or no market can be generated.
    """
    prices, given, start = options.get("prices"), options.get("availability"), options.get("start")
    if prices is None:
        if given is not None:
            raise InputError("a record of capacity is of markets whose prices are given; give prices, too")
        market = generated_market(work, options.get("seed", 0), catalogue, models, _kind_of(options))
    else:
        if "kind" in options:
            raise InputError("a kind is of a generated market; it says nothing beside prices", field="kind")
        capacity = Availability.read(given) if isinstance(given, str | Path) else given
        market = LocalMarket(prices, availability=capacity)
    start_s = None if start is None else to_epoch_s(start)
    return replace(market, start_s=start_s, speed=options.get("speed", SPEED))


def _kind_of(options: RunOptions) -> MarketKind:
    named = options.get("kind", MarketKind.TODAY)
    if named not in list(MarketKind):
        raise unknown_name("kind of market", str(named), list(MarketKind))
    return MarketKind(named)


def _spells(options: RunOptions) -> SpellModels | None:
    given = options.get("spells")
    return SpellModels.read(Path(given)) if isinstance(given, str | Path) else given


def _program_of(job: Work, options: RunOptions) -> tuple[Runnable, Path]:
    """Return the work to run, and the folder of its code."""
    catalogue = options.get("catalogue") or default_catalogue()
    folder = Path(options.get("folder", Path.cwd()))
    if isinstance(job, str | Path):
        return read_runnable(job, catalogue, to_run=True), Path(options.get("folder", Path(job).parent))
    work: Runnable = job if isinstance(job, Runnable) else _runnable_of(jobs_of(job))
    for sweep in work.parts:
        if sweep.command is None and sweep.entry_point is None:
            raise InputError(f"{sweep.name} has no command to run", field="command")
    work.check_types(catalogue)
    return work, folder


def _runnable_of(jobs: Sequence[Job]) -> Runnable:
    """A sweep of one trial for one job; for several, a list of such sweeps, which run side by side."""
    if len(jobs) == 1:
        return sweep_of(jobs[0])
    limited = next((job for job in jobs if job.budget_usd is not None), None)
    if limited is not None:
        raise InputError(
            f"budget_usd of job {limited.name} would hold for all {len(jobs)}; a file with `jobs` has one for all",
            field="budget_usd",
        )
    return JobList(
        name=f"{jobs[0].name}-and-{len(jobs) - 1}-more",
        listed=tuple(ListedJob(work=sweep_of(job)) for job in jobs),
    )


def _replayed(job: Work, policy: str | Policy, options: RunOptions) -> Outcome:
    """Replay one run in simulated time, and record its timeline."""
    catalogue = options.get("catalogue") or default_catalogue()
    seed = options.get("seed", 0)
    sweep, jobs = _work_of(job, catalogue)
    sweep = None if sweep is None else with_billing(sweep, "replay")
    models = read_models(options.get("models"))
    market = _market_of(sweep, catalogue, models, options)
    prices = market.prices if sweep is None else sweep.allowed(market.prices, catalogue)
    billing = options.get("billing") or (EACH_CLOUDS if sweep is None else sweep.billing)
    rule = billing_preset(billing) if isinstance(billing, str) else billing
    if isinstance(policy, str):
        if sweep is None:
            decides = policy_named(_ONE_JOB if policy == DEFAULT else policy, models, options.get("parameters"))
        else:
            decides = policy_for(sweep, policy, _spells(options), models, options.get("parameters"), catalogue)
    else:
        decides = policy if sweep is None else within_budget(sweep, policy)
    for each in jobs:
        # Refuse a job without a rate here. A job longer than the record may still end in time on several machines.
        work_s(each, prices, catalogue)
    delay = options.get("delay") or StartDelay()
    goals = Goals.of(sweep)
    scenario = Scenario(
        jobs, prices, rule, market.availability, delay=delay, catalogue=catalogue, seed=seed, goals=goals
    )
    start_s = market.begins_s
    if models is not None:
        models.check_unseen([start_s])
    return scenario.run(decides, start_s, record=True)


def _work_of(job: Any, catalogue: Catalogue) -> tuple[Runnable | None, tuple[Job, ...]]:
    """The sweep or list that jobs come from, None if any machine may run them; and the jobs to replay."""
    if isinstance(job, str | Path):
        work = read_work(job, catalogue)
        return work.sweep, work.jobs
    if isinstance(job, Runnable):
        return job, job.jobs(catalogue)
    jobs = jobs_of(job)
    for each in jobs:
        each.check_replayable()
    is_program = len(jobs) == 1 and jobs[0].command is not None
    return (sweep_of(jobs[0]) if is_program else None), jobs
