"""Running a job or a sweep by a policy, and what one does to a run: `run`, `resume`, `stop`, `status`.

`ebbtide run` and `eb.run` are the same: both write the run down by `begin`, and its controller runs it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from ebbtide._utc import Time, to_epoch_s
from ebbtide.engine.engine import run_policy
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError, unknown_name
from ebbtide.forecasts.spells.models import SpellModels
from ebbtide.jobs.job import Job
from ebbtide.jobs.reading import read_sweep, read_work
from ebbtide.jobs.single import sweep_of
from ebbtide.jobs.sweep import Sweep
from ebbtide.live.clouds.ec2.settings import Ec2Settings
from ebbtide.live.fetching import Fetched, fetch_trial
from ebbtide.live.journal import Journal
from ebbtide.live.local_run import SPEED, LocalMarket, begin_local, generated_market
from ebbtide.live.phase import OVER, StopRequest, controller_pid, phase_of, request_stop, state_now
from ebbtide.live.runs import run_live
from ebbtide.live.settings import RUNS, RunFolder, find_run
from ebbtide.live.standing import RunStanding, standing_of
from ebbtide.market.billing import Billing, billing_preset
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.generator import generate_prices
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.choice import DEFAULT, default_policy, policy_for, within_budget
from ebbtide.policies.registry import POLICIES
from ebbtide.policies.registry import policy as policy_named
from ebbtide.simulation.replay import ReplayProvider
from ebbtide.simulation.replayed_market import ReplayedMarket
from ebbtide.simulation.start_delay import StartDelay

PROVIDERS = ("local", "ec2", "replay")

# Models of capacity, in the run's folder.
_SPELLS = "spells.json"
# A file there: its policy was given as an object that its name does not lead to.
_OBJECT = "policy-is-an-object"
# Real seconds between looks at a run that another process controls.
_LOOK_S = 0.2
# Decides for a job that is only replayed: the default of one training without a deadline.
_ONE_JOB = "reactive"

Work = Job | Sweep | Sequence[Job] | str | Path


class RunOptions(TypedDict, total=False):
    """What `run` may be given beside job, policy and provider; each has a default.

    Attributes:
        prices: The price history that `local` and `replay` go through; by default a generated one.
        start: Time in the prices at which the run begins; by default a quarter into them.
        billing: Billing preset of spot leases, by name; by default the job's own, else `ec2-second`. `replay`
            takes a `Billing` as well.
        seed: Seed of the policy's random numbers and of generated prices; by default 0.
        catalogue: Instance types and list prices, kept with the run; by default those that ship with Ebbtide.
        spells: Models of how long capacity lasts, or the path of their file, for policies that meet deadlines.
        delay: For `replay`: how many seconds machines take to start.
        speed: For `local`: market seconds in a real second; by default 30.
        folder: For `local` and `ec2`: the folder of the code, in which the program runs; by default the folder of
            the job's file, else the working directory.
        runs: Folder in which runs are kept; by default `.ebbtide/runs`.
        store: For `local`: where checkpoints go, a folder or s3://bucket/prefix; by default the run's folder.
        machines: For `ec2`, required: settings of its machines, or the path of their file.
    """

    prices: PriceHistory | None
    start: Time | None
    billing: str | Billing | None
    seed: int
    catalogue: Catalogue | None
    spells: SpellModels | str | Path | None
    delay: StartDelay | None
    speed: float
    folder: str | Path
    runs: str | Path
    store: str
    machines: Ec2Settings | str | Path | None


class Run:
    """A live run: controlled by this process or by another, or over.

    Attributes:
        id: Name of the run, as `ebbtide status` lists it.
        folder: Path of the folder in which it is kept.
    """

    def __init__(self, folder: RunFolder, policy: Policy | None = None) -> None:
        self.id, self.folder = folder.path.name, folder.path
        self._kept, self._policy = folder, policy
        self._thread: threading.Thread | None = None
        self._begun = threading.Event()
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self.status().state}>"

    @property
    def kept(self) -> RunFolder:
        """The run's folder, with its settings, journal and logs."""
        return self._kept

    @property
    def policy(self) -> Policy:
        """The policy that decides.

        Raises:
            InputError: It was given as an object to another process, and no name leads to it.
        """
        if self._policy is None:
            self._policy = _policy_again(self._kept)
        return self._policy

    def start(self) -> Run:
        """Start its controller in a thread of this process, which goes on when the calling code has ended.

        Raises:
            InputError: It has a controller already.
        """
        pid = controller_pid(self.folder)
        if pid is not None or (self._thread is not None and self._thread.is_alive()):
            raise InputError(
                f"run {self.id} has a controller already (pid {pid}); `ebbtide status {self.id}` shows it"
            )
        policy = self.policy
        self._begun.clear()
        self._outcome = self._error = None
        self._thread = threading.Thread(target=self._control, args=(policy,), name=f"ebbtide {self.id}")
        self._thread.start()
        return self

    def status(self) -> RunStanding:
        """Its state, trials, machines and money, as its controller last wrote them down."""
        return standing_of(self._kept, self._kept.catalogue)

    def logs(self, trial: int = 0) -> str:
        """What a trial's program has printed so far, on all machines; empty: nothing yet.

        Args:
            trial: Number of the trial; a single job is trial 0.

        Raises:
            InputError: There is no such trial.
        """
        path = self._kept.log_of(self._trial_id(trial))
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def fetch(self, trial: int = 0, into: str | Path | None = None) -> Fetched:
        """Bring a trial's newest complete checkpoint, its outputs and its log here, each checked by its checksum.

        Args:
            trial: Number of the trial; a single job is trial 0.
            into: Folder below which a folder of the trial is made; by default one named by the run.

        Raises:
            InputError: The trial has stored nothing, or something else lies in that place.
        """
        return fetch_trial(self._kept, self._trial_id(trial), Path(into or self.id))

    def stop(self) -> None:
        """Ask its controller to save everything and give its machines back; `wait` returns when it has.

        The run can be resumed.

        Raises:
            InputError: No controller has the run.
        """
        # What is asked before a controller begins, it forgets.
        while self._thread is not None and self._thread.is_alive() and not self._begun.wait(_LOOK_S):
            pass
        if controller_pid(self.folder) is None:
            state, _ = state_now(self._kept, phase_of(Journal(self._kept.journal, read_only=True)))
            hint = "there is nothing to stop" if state in OVER else f"`ebbtide down {self.id}` ends its machines"
            raise InputError(f"run {self.id} has no controller ({state}); {hint}")
        request_stop(self.folder, StopRequest.STOP)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until its controller has ended; Ctrl-C meanwhile stops the run.

        Args:
            timeout_s: Real seconds to wait at most; None: for as long as it takes.

        Returns:
            Whether it has ended.
        """
        until_s = time.monotonic() + timeout_s if timeout_s is not None else None
        try:
            while self._is_controlled():
                left_s = _LOOK_S if until_s is None else min(until_s - time.monotonic(), _LOOK_S)
                if left_s <= 0:
                    return False
                if self._thread is not None:
                    self._thread.join(left_s)
                else:
                    time.sleep(left_s)
        except KeyboardInterrupt:
            with suppress(InputError):
                self.stop()
            raise
        return True

    def result(self, timeout_s: float | None = None) -> Outcome:
        """Wait for the end, and say how it ended: cost, revocations, every charge and event.

        Args:
            timeout_s: Real seconds to wait at most; None: for as long as it takes.

        Raises:
            TimeoutError: It has not ended by then.
            InputError: Another process controlled it: `status` has what is known; or an input was wrong.
            EbbtideError: What ended the controller.
        """
        if self._thread is None:
            raise InputError(f"run {self.id} was not started by this handle; its status() says how it ended")
        if not self.wait(timeout_s):
            raise TimeoutError(f"run {self.id} has not ended within {timeout_s:g} s")
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome

    def _is_controlled(self) -> bool:
        if self._thread is not None:
            return self._thread.is_alive()
        return controller_pid(self.folder) is not None

    def _control(self, policy: Policy) -> None:
        try:
            self._outcome = run_live(self._kept, policy, lambda *_: self._begun.set())
        except BaseException as error:
            self._error = error
        finally:
            self._begun.set()

    def _trial_id(self, trial: int) -> str:
        trials = len(Sweep.model_validate(self._kept.settings.sweep).trials())
        if not 0 <= trial < trials:
            raise InputError(f"run {self.id} has trials 0 to {trials - 1}, not {trial}")
        return f"{self.id}-{trial:03d}"


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
    provider: Literal["local", "ec2"] = "local",
    **options: Unpack[RunOptions],
) -> Run: ...


def run(
    job: Work, policy: str | Policy = DEFAULT, provider: str = "local", **options: Unpack[RunOptions]
) -> Run | Outcome:
    """Run a job or a sweep by a policy: rent, train, save before machines are revoked, go on elsewhere.

        run = eb.run(eb.Job(command="python train.py"), policy="default", provider="local")
        print(run.status())
        print(run.result())

    Args:
        job: A `Job`, a `Sweep`, or the path of a file that describes one; for `replay` also several jobs. For
            `local` and `ec2` it needs a command.
        policy: Decides what to rent: an object, or a name as `eb.policy` has it; `default`: the one that suits.
        provider: `local`: processes on this machine, revoked by a market that is replayed; `ec2`: machines of EC2;
            `replay`: simulated training in no time.
        **options: What else may be given, by name: see `RunOptions`.

    Returns:
        For `local` and `ec2` a handle, at once: its controller runs in a thread of this process. For `replay` what
        came of it.

    Raises:
        InputError: An unknown provider, policy or preset, a start outside the prices, a job without a command, or
            one that no machine of these prices can run.
    """
    if provider not in PROVIDERS:
        raise unknown_name("provider", provider, PROVIDERS)
    if hasattr(job, "decide"):
        raise InputError("the job comes first, then the policy: write `eb.run(job, policy)`")
    if provider == "replay":
        return _replayed(job, policy, options)
    sweep, folder = _program_of(job, options)
    return begin(sweep, folder, policy, provider, options).start()


def resume(run: str | None = None, *, runs: str | Path = RUNS, policy: Policy | None = None) -> Run:
    """Go on with a run that was stopped, or whose controller was killed.

    Args:
        run: Name of the run; None or `latest`: the newest.
        runs: Folder in which runs are kept.
        policy: Decides from now on; by default the policy with which the run was started.

    Raises:
        InputError: There is no such run, it has a controller already, or its policy was an object that has to be
            given again.
    """
    folder = find_run(Path(runs), run)
    sweep = Sweep.model_validate(folder.settings.sweep)
    return Run(folder, None if policy is None else within_budget(sweep, policy)).start()


def stop(run: str | None = None, *, runs: str | Path = RUNS) -> Run:
    """Ask a run to save everything and give its machines back; its `wait` returns when it has.

    Args:
        run: Name of the run; None or `latest`: the newest.
        runs: Folder in which runs are kept.

    Raises:
        InputError: There is no such run, or no controller has it.
    """
    found = Run(find_run(Path(runs), run))
    found.stop()
    return found


def status(run: str | None = None, *, runs: str | Path = RUNS) -> RunStanding:
    """A run's state, trials, machines and money.

    Args:
        run: Name of the run; None or `latest`: the newest.
        runs: Folder in which runs are kept.

    Raises:
        InputError: There is no such run.
    """
    return Run(find_run(Path(runs), run)).status()


def begin(
    sweep: Sweep, folder: Path, policy: str | Policy, provider: str, options: RunOptions | None = None
) -> Run:
    """Write down a new live run; `Run.start` or `runs.run_live` runs it.

    Args:
        sweep: What is trained; one job is a sweep of one trial.
        folder: Folder of the code, in which its program runs.
        policy: Decides, by name or as an object; never beyond the sweep's budget.
        provider: Name of the provider, `local` or `ec2`.
        options: What else may be given, by name: see `RunOptions`.

    Raises:
        InputError: The policy or a preset is unknown, the program is not there, or no market has what is asked
            for.
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
    spells = _spells(options)
    if isinstance(policy, str):
        name = default_policy(sweep) if policy == DEFAULT else policy
        decides = policy_for(sweep, name, spells)
    else:
        name, decides = policy.name, within_budget(sweep, policy)
    if provider == "ec2":
        from ebbtide.live.ec2_run import begin_ec2

        machines = options.get("machines")
        if machines is None:
            raise InputError("--provider ec2 needs --machines EC2.yaml, as examples/live/ec2.yaml has it")
        settings = machines if isinstance(machines, Ec2Settings) else Ec2Settings.read(machines)
        kept = begin_ec2(sweep, folder, runs, settings, policy=name, seed=seed, catalogue=catalogue)
    else:
        prices, start = options.get("prices"), options.get("start")
        kept = begin_local(
            sweep,
            folder,
            runs,
            LocalMarket(
                generated_market(sweep, seed, catalogue) if prices is None else prices,
                None if start is None else to_epoch_s(start),
                options.get("speed", SPEED),
            ),
            policy=name,
            seed=seed,
            store=options.get("store", ""),
            catalogue=catalogue,
        )
    if spells is not None:
        # Beside the run, so that it goes on with the same models.
        spells.write(kept.path / _SPELLS)
    if not isinstance(policy, str) and not _is_named(policy):
        (kept.path / _OBJECT).touch()
    return Run(kept, decides)


def _is_named(policy: Policy) -> bool:
    """Whether the registry has the very same policy under its name."""
    return policy.name in POLICIES and POLICIES[policy.name]() == policy


def _policy_again(folder: RunFolder) -> Policy:
    """The policy of a run that goes on."""
    settings = folder.settings
    if (folder.path / _OBJECT).exists():
        raise InputError(
            f"policy {settings.policy} of run {settings.run} was given as an object: give it again, "
            "`eb.resume(run, policy=...)`"
        )
    spells = folder.path / _SPELLS
    models = SpellModels.read(spells) if spells.exists() else None
    return policy_for(Sweep.model_validate(settings.sweep), settings.policy, models)


def _spells(options: RunOptions) -> SpellModels | None:
    given = options.get("spells")
    return SpellModels.read(Path(given)) if isinstance(given, str | Path) else given


def _program_of(job: Work, options: RunOptions) -> tuple[Sweep, Path]:
    """What is to be trained, and the folder of its code."""
    catalogue = options.get("catalogue") or default_catalogue()
    folder = Path(options.get("folder", Path.cwd()))
    if isinstance(job, str | Path):
        sweep = read_sweep(job, catalogue, to_run=True)
        return sweep, Path(options.get("folder", Path(job).parent))
    if isinstance(job, Sweep):
        sweep = job
    elif isinstance(job, Job):
        sweep = sweep_of(job)
    else:
        raise InputError(f"{len(job)} jobs; a live run is one job, or a sweep")
    if sweep.command is None and sweep.entry_point is None:
        raise InputError(f"{sweep.name} has no command to run", field="command")
    sweep.check_types(catalogue)
    return sweep, folder


def _replayed(job: Work, policy: str | Policy, options: RunOptions) -> Outcome:
    """One run in simulated time, with its timeline recorded."""
    catalogue = options.get("catalogue") or default_catalogue()
    seed, prices = options.get("seed", 0), options.get("prices")
    sweep, jobs = _work_of(job, catalogue)
    if prices is None:
        prices = generate_prices(seed=seed) if sweep is None else generated_market(sweep, seed, catalogue)
    elif sweep is not None:
        prices = sweep.allowed(prices, catalogue)
    billing = options.get("billing") or ("ec2-second" if sweep is None else sweep.billing)
    rule = billing_preset(billing) if isinstance(billing, str) else billing
    if isinstance(policy, str):
        if sweep is None:
            decides = policy_named(_ONE_JOB if policy == DEFAULT else policy)
        else:
            decides = policy_for(sweep, policy, _spells(options))
    else:
        decides = policy if sweep is None else within_budget(sweep, policy)
    for each in jobs:
        _check_rate(each, prices, catalogue)
    start = options.get("start")
    start_s = to_epoch_s(start) if start is not None else prices.start_s + (prices.end_s - prices.start_s) // 4
    market = ReplayedMarket(prices, start_s, rule, delay=options.get("delay"))
    provider = ReplayProvider(market, catalogue=catalogue)
    return run_policy(decides, jobs, provider, rule, catalogue=catalogue, seed=seed, record=True)


def _work_of(job: Any, catalogue: Catalogue) -> tuple[Sweep | None, tuple[Job, ...]]:
    """The jobs to replay, and the sweep that they come from; None: jobs that any machine may do."""
    if isinstance(job, str | Path):
        work = read_work(job, catalogue)
        return work.sweep, work.jobs
    if isinstance(job, Sweep):
        return job, job.jobs()
    if isinstance(job, Job):
        job.check_replayable()
        return (None if job.command is None else sweep_of(job)), (job,)
    jobs = tuple(job)
    if not jobs:
        raise InputError("no job to run; give one or more")
    return None, jobs


def _check_rate(job: Job, prices: PriceHistory, catalogue: Catalogue) -> None:
    rates = [job.steps_per_s(market.cloud, market.instance_type, catalogue) for market in prices]
    if not max(rates) > 0:
        here = ", ".join(sorted({market.instance_type for market in prices}))
        raise InputError(f"job {job.name} has no rate for any instance type of these prices ({here})")
