"""State of one job as its controller knows it, a class a kind: progress, machines, time on each, and warnings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

from typing_extensions import TypedDict

from ebbtide.controller.kinds.divergence import Divergence, DivergenceRecord
from ebbtide.controller.kinds.task_ranges import TaskRanges
from ebbtide.jobs.job import Coupling
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease
from ebbtide.storage.checkpoints.whole import Part

# Real seconds of training after which a warning about it is given, if its machine was not revoked before.
WARNED_AFTER_S = 60.0
# Real seconds of silence after which an agent is asked, doubled each time, up to a limit.
_SILENT_S, _MOST_SILENT_S = 60.0, 1800.0
# Above this many values of a trial's metric, only some are kept.
_MOST_METRICS = 20_000


_Machine = TypeVar("_Machine", "Member", "ArrayMachine", "Worker")


def trial_id_of(run: str, job_id: int, rank: int = 0) -> str:
    """The id under which a machine of a job reports and saves.

    Args:
        run: Id of the run.
        job_id: Id of the job in the run.
        rank: Rank of the machine among those that train as one.
    """
    return f"{run}-{job_id:03d}" + (f"-r{rank}" if rank else "")


def silent_s(asked: int) -> float:
    """Real seconds of silence after which an agent that was asked so many times is asked again."""
    return min(_SILENT_S * 2.0 ** min(asked, 10), _MOST_SILENT_S)


@dataclass(frozen=True)
class Member:
    """Machine that trains a job, alone or as one with others, during one assignment.

    Attributes:
        rank: Rank among the machines that train the job, from 0.
        lease_id: Id of the machine's lease.
        ended: How the assignment ended there: the value of an `Ending`, or `LOST`; empty: its agent still has it.
        saved: Pairs of step and number of the checkpoints that it has stored, the oldest first.
        resume: Parts of the checkpoint that it resumes from; None: its agent takes the newest of its trial.
    """

    rank: int
    lease_id: int
    ended: str = ""
    saved: tuple[tuple[int, int], ...] = ()
    resume: tuple[Part, ...] | None = None


@dataclass(frozen=True)
class ArrayMachine:
    """Machine that does tasks of an array, independently of others, until it has left.

    Attributes:
        lease_id: Id of the machine's lease.
        attempt: Number of its assignment.
        began_s: When it was given its assignment, by the cloud's clock.
        tasks: Numbers of the tasks that it was handed and that have not ended.
        done: Number of tasks that it has done.
        leaving: Whether its agent was ordered to leave.
    """

    lease_id: int
    attempt: int
    began_s: float
    tasks: tuple[int, ...] = ()
    done: int = 0
    leaving: bool = False


@dataclass(frozen=True)
class Worker:
    """Machine that works for the head of a cluster until it has left.

    Attributes:
        rank: Number of the head's assignment that it was told of.
        lease_id: Id of the machine's lease.
        attempt: Number of its own assignment.
        began_s: When it was given its assignment, by the cloud's clock.
        leaving: Whether its agent was ordered to leave.
    """

    rank: int
    lease_id: int
    attempt: int
    began_s: float
    leaving: bool = False


# How an assignment ended on a machine that ended before its agent had left it.
LOST = "lost"


@dataclass(frozen=True)
class TaskState:
    """Progress of an array.

    Attributes:
        waiting: Tasks that no machine has been handed.
        done: Number of tasks whose results are stored.
        failures: Number of failures of a task, by the task's number as text.
        failed: Numbers of the tasks that are not retried.
        measured: Number of tasks whose duration is known.
        spent_s: Real seconds that those tasks took.
    """

    waiting: TaskRanges
    done: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    failed: tuple[int, ...] = ()
    measured: int = 0
    spent_s: float = 0.0

    @property
    def mean_s(self) -> float:
        """Mean real seconds of a task; infinite: none is known."""
        return self.spent_s / self.measured if self.measured else math.inf


@dataclass(eq=False)
class JobState:
    """State of a job, with what all kinds have in common.

    Mappings and lists are replaced, never mutated, so that `trial_stamp` sees changes; metrics are only added.

    Attributes:
        progress: Progress of the job, which is updated in place.
        trial_id: Id of the trial, the same on every machine.
        assigned: Leases that the policy allows it to run on.
        attempt: Number of the current assignment, counted from 1.
        stopping: Whether it counts as finished once the agent has left it.
        ended: Whether it counts as finished.
        failures: Failures since a step was last stored; one that was killed counts half.
        milestones: Steps at which the policy wants an event.
        problem: Why it failed, in one line; empty: it has not.
        tail: The last lines that its program printed when it failed.
        stretches: Its time on machines before the present one, in order.
        began_s: When it was ordered onto its present machines, by the cloud's clock; NaN: it is on none.
        began_epoch_s: The same in seconds since 1970 by the controller's clock.
        has_saved: Whether it has stored a checkpoint from its present machine.
        metrics: Values of the metric by step.
    """

    progress: JobProgress
    trial_id: str
    assigned: Sequence[Lease] = ()
    attempt: int = 0
    stopping: bool = False
    ended: bool = False
    failures: float = 0.0
    milestones: Sequence[int] = ()
    problem: str = ""
    tail: Sequence[str] = ()
    stretches: Sequence[Stretch] = ()
    began_s: float = math.nan
    began_epoch_s: float = math.nan
    has_saved: bool = False
    metrics: dict[int, float] = field(default_factory=dict)

    # The kind of its machines.
    machine: ClassVar[type[Any]]

    @property
    def share(self) -> float:
        """The share of a machine that it fills."""
        return self.progress.job.share


@dataclass(eq=False)
class TrialState(JobState):
    """The training of one job.

    Machines that train as one get their assignments together, with the same number, and all leave before the next
    assignment.

    Attributes:
        members: Machines of the current assignment, or of the last one, by rank.
        leaving: Whether the agents were ordered to leave it.
        alone: Whether the agents were told that one of the machines is gone.
        failure: The report of the first program that failed in this assignment, as plain values; None: none has.
        savers: Ranks whose machines have stored a checkpoint at some time.
        from_one: Failures by number of the checkpoint that was resumed from, as text.
        aside: Numbers of checkpoints that it must not resume from.
        best: Highest step that was ever stored.
        fields: Names of numbers that its program reports, as far as known.
        warnings: Warnings for its user, each given once.
        began_number: Number of the checkpoint that it resumed from there; 0: none.
        began_step: Resume step on its present machine.
        lost_above: Steps above the newest known checkpoint that were last counted as lost.
        stored_number: Number of the newest checkpoint that is known to be stored; 0: none is. For a gang's
            checkpoint, the number of its first part.
        best_stored: Best value of the metric with which a checkpoint is stored; NaN: there is none.
        best_stored_step: Step of that checkpoint.
        resumed: Number of the last assignment whose resume step is known; 0: none is.
        divergence: Whether its metric has stopped being finite.
    """

    machine: ClassVar[type[Member]] = Member

    members: Sequence[Member] = ()
    leaving: bool = False
    alone: bool = False
    failure: Mapping[str, Any] | None = None
    savers: Sequence[int] = ()
    from_one: Mapping[str, int] = field(default_factory=dict)
    aside: Sequence[int] = ()
    best: float = 0.0
    fields: Sequence[str] = ()
    warnings: Sequence[str] = ()
    began_number: int = 0
    began_step: float = 0.0
    lost_above: float = 0.0
    stored_number: int = 0
    best_stored: float = math.nan
    best_stored_step: int = 0
    resumed: int = 0
    divergence: Divergence = field(default_factory=Divergence)

    @property
    def present(self) -> list[Member]:
        """The machines whose agents have the job now."""
        return [member for member in self.members if not member.ended]

    @property
    def is_gang(self) -> bool:
        """True if several machines train the job as one, or may."""
        job = self.progress.job
        return job.coupling is Coupling.GANG and job.most_machines > 1

    def id_of(self, rank: int) -> str:
        """The id under which the machine of a rank reports and saves."""
        return self.trial_id if rank == 0 else f"{self.trial_id}-r{rank}"

    @property
    def stored_parts(self) -> dict[str, int]:
        """Numbers of the parts of a gang's newest checkpoint that are known to be stored, by the id of each."""
        step = int(self.progress.steps_saved)
        numbers = {self.id_of(each.rank): dict(each.saved).get(step, 0) for each in self.members}
        known = {own: number for own, number in numbers.items() if number}
        first = self.id_of(min(self.savers, default=0))
        return known or ({first: self.stored_number} if self.stored_number else {})

    def put(self, member: Member) -> None:
        """Replace the member of the same rank."""
        self.members = tuple(member if each.rank == member.rank else each for each in self.members)


@dataclass(eq=False)
class ClusterState(TrialState):
    """A program on a cluster, whose head is trained like any job on one machine.

    Attributes:
        workers: Machines that work for the head.
        worker_attempt: Number of the last assignment of a worker.
        worker_failures: Number of workers that have failed since the last one that worked.
    """

    workers: Sequence[Worker] = ()
    worker_attempt: int = 0
    worker_failures: int = 0


@dataclass(eq=False)
class ArrayState(JobState):
    """An array, whose machines work independently, each with its own assignment.

    Attributes:
        tasks: Progress of its tasks.
        members: Machines that do tasks, or are about to leave.
    """

    machine: ClassVar[type[ArrayMachine]] = ArrayMachine

    tasks: TaskState = TaskState(TaskRanges())
    members: Sequence[ArrayMachine] = ()


@dataclass(frozen=True)
class Stretch:
    """A training's time on one machine, from the order to train until it left, was revoked or ended.

    Attributes:
        lease_id: Id of the machine's lease.
        duration_s: Duration in seconds by the cloud's clock.
        number_from: Number of the checkpoint that it resumed from; 0: it started from the beginning.
        step_from: Resume step; 0: from the beginning.
        step_done: Step that it reached there, as the program reported.
        step_kept: Highest of those steps in a checkpoint that was resumed from later, or still can be.
        has_saved: Whether a checkpoint was stored in this time.
        is_final: Whether the training finished there.
        attempt: Number of the assignment, which all machines that train as one have in common.
    """

    lease_id: int
    duration_s: float
    number_from: int
    step_from: float
    step_done: float
    step_kept: float
    has_saved: bool
    is_final: bool = False
    attempt: int = 0

    @property
    def kept_share(self) -> float:
        """Share of the time whose work was kept, 0 to 1. A program that reports no steps keeps all or nothing."""
        if self.is_final:
            return 1.0
        done = self.step_done - self.step_from
        if done <= 0:
            return 1.0 if self.has_saved else 0.0
        return min(max((self.step_kept - self.step_from) / done, 0.0), 1.0)

    @property
    def kept_s(self) -> float:
        """Seconds whose work was kept."""
        return self.kept_share * self.duration_s

    @property
    def lost_s(self) -> float:
        """Seconds whose work was thrown away."""
        return self.duration_s - self.kept_s


def resumed(before: Sequence[Stretch], step: float, number: int) -> list[Stretch]:
    """The same stretches after the training has resumed, which shows what was kept.

    Args:
        before: All stretches of the training so far, in order.
        step: Resume step of the training; 0: from the beginning.
        number: Number of the checkpoint resumed from; 0: it starts from the beginning, so all before is lost.
    """
    if number == 0:
        return [replace(stretch, step_kept=stretch.step_from, has_saved=False) for stretch in before]
    newest = max((stretch.attempt for stretch in before), default=0)
    return [
        # A checkpoint may have been stored without a report, because its machine was revoked.
        replace(
            each, step_kept=min(step, max(each.step_done, each.step_kept)), has_saved=number > each.number_from
        )
        if each.attempt == newest
        else replace(each, step_kept=min(each.step_kept, step))
        for each in before
    ]


class StretchRecord(TypedDict):
    """A `Stretch` as plain values, by the names of its fields."""

    lease_id: int
    duration_s: float
    number_from: int
    step_from: float
    step_done: float
    step_kept: float
    has_saved: bool
    is_final: bool
    attempt: int


class MemberRecord(TypedDict):
    """A `Member`, `ArrayMachine` or `Worker` as plain values, by the names of the fields of all."""

    rank: int
    lease_id: int
    ended: str
    saved: list[list[int]]
    resume: list[list[Any]] | None
    attempt: int
    tasks: list[int]
    done: int
    leaving: bool
    began_s: float


class TaskStateRecord(TypedDict):
    """A `TaskState` as plain values, by the names of its fields."""

    waiting: list[list[int]]
    done: int
    failures: dict[str, int]
    failed: list[int]
    measured: int
    spent_s: float


class TrialRecord(TypedDict):
    """State of a job as plain values, with the fields of all kinds: leases by id, metrics by step."""

    assigned: list[int]
    members: list[MemberRecord]
    attempt: int
    leaving: bool
    alone: bool
    failure: dict[str, Any] | None
    savers: list[int]
    stopping: bool
    ended: bool
    failures: float
    from_one: dict[str, int]
    aside: list[int]
    best: float
    metrics: list[tuple[int, float]]
    milestones: list[float]
    problem: str
    tail: list[str]
    fields: list[str]
    warnings: list[str]
    stretches: list[StretchRecord]
    began_s: float
    began_epoch_s: float
    began_number: int
    began_step: float
    has_saved: bool
    lost_above: float
    stored_number: int
    best_stored: float
    best_stored_step: int
    resumed: int
    divergence: DivergenceRecord
    tasks: TaskStateRecord | None
    workers: list[MemberRecord]
    worker_attempt: int
    worker_failures: int
    share: float


def trial_values(trial: JobState) -> TrialRecord:
    """A job as plain values, for the journal; its progress is in the engine's snapshot."""
    return {**values_without_metrics(trial), "metrics": list(trial.metrics.items())}  # type: ignore[typeddict-item]


def note_metric(trial: TrialState, step: int, value: float) -> None:
    """Note the value of a trial's metric at a step; once there are very many, skip steps close to the last one.

    Args:
        trial: The trial.
        step: The step at which it was measured.
        value: Its value.
    """
    metrics = trial.metrics
    is_near = len(metrics) >= _MOST_METRICS and step - next(reversed(metrics)) < step / _MOST_METRICS
    if not is_near or step >= trial.progress.job.steps:
        metrics.setdefault(step, value)


def values_without_metrics(trial: JobState) -> dict[str, Any]:
    """Return `trial_values` without the metrics, which are by far the largest part and only ever added to."""
    return {name: _plain(name, getattr(trial, name, absent)) for name, absent in _ABSENT.items()}


def _plain(name: str, value: Any) -> Any:
    match name:
        case "assigned":
            return [lease.lease_id for lease in value]
        case "members" | "workers":
            return list(map(_member_values, value))
        case "stretches":
            return encode_stretches(value)
        case "divergence":
            return asdict(value)
        case "tasks":
            return None if value is None else _task_values(value)
    return dict(value) if isinstance(value, Mapping) else _lists(value)


def _lists(value: Any) -> Any:
    return list(map(_lists, value)) if isinstance(value, list | tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _task_values(tasks: TaskState) -> TaskStateRecord:
    own = {name: _lists(value) for name, value in vars(tasks).items()}
    own |= {"waiting": _lists(tasks.waiting.ranges), "failures": dict(tasks.failures)}
    return own  # type: ignore[return-value]


def _tasks_of(kept: TaskStateRecord) -> TaskState:
    own = {name: _tuples(value) for name, value in kept.items()}
    return TaskState(**own | {"waiting": TaskRanges(_tuples(kept["waiting"])), "failures": dict(kept["failures"])})


def _member_values(machine: Member | ArrayMachine | Worker) -> MemberRecord:
    names = MemberRecord.__annotations__
    return {name: _lists(getattr(machine, name, _NO_MACHINE.get(name))) for name in names}  # type: ignore[return-value]


def _members_of(kind: type[_Machine], kept: Sequence[MemberRecord]) -> tuple[_Machine, ...]:
    names = [each.name for each in fields(kind)]
    return tuple(kind(**{name: _tuples(each[name]) for name in names}) for each in kept)  # type: ignore[literal-required]


def leases_on(trial: TrialRecord) -> list[int]:
    """Ids of the leases whose agents have a trial now, by rank."""
    return [each["lease_id"] for each in [*trial["members"], *trial["workers"]] if not each["ended"]]


def present_s(trial: TrialRecord, now_s: float) -> dict[int, float]:
    """Seconds for which the machines that have a trial now have had it, by lease id.

    Args:
        trial: The controller's state of the trial.
        now_s: Time by the cloud's clock.
    """
    present = [each for each in [*trial["members"], *trial["workers"]] if not each["ended"]]
    began = [each["began_s"] for each in present]
    # Machines that train as one begin together.
    begins = [trial["began_s"] if math.isnan(own_s) else own_s for own_s in began]
    return {each["lease_id"]: max(now_s - at_s, 0.0) for each, at_s in zip(present, begins, strict=True)}


# Value of each field of a machine's record that its kind has not.
_NO_MACHINE = {
    "rank": 0,
    "ended": "",
    "saved": (),
    "resume": None,
    "attempt": 0,
    "tasks": (),
    "done": 0,
    "leaving": False,
    "began_s": math.nan,
}


def _defaults(kind: type[JobState]) -> dict[str, Any]:
    return {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(kind)
    }


# Value of each field of a record, without metrics, of which a kind of job has none.
_ABSENT = {
    name: (_defaults(ArrayState) | _defaults(ClusterState) | {"tasks": None, "share": 1.0})[name]
    for name in TrialRecord.__annotations__
    if name != "metrics"
}


_STAMPS: dict[type[JobState], Callable[[JobState], Any]] = {
    kind: attrgetter(*sorted({each.name for each in fields(kind)} & _ABSENT.keys()))
    for kind in (TrialState, ClusterState, ArrayState)
}


def trial_stamp(trial: JobState) -> Any:
    """A value that changes whenever `values_without_metrics` does."""
    return _STAMPS[type(trial)](trial)


def restore_trial(trial: JobState, kept: TrialRecord, leases: Mapping[int, Lease]) -> None:
    """Restore a new job from its values.

    Args:
        trial: The state of the same job, which has not begun.
        kept: Plain values that `trial_values` gave.
        leases: The run's leases by lease id.
    """
    for name in {each.name for each in fields(trial)} & TrialRecord.__annotations__.keys():
        value = kept[name]  # type: ignore[literal-required]
        match name:
            case "assigned":
                value = [leases[lease_id] for lease_id in value]
            case "members":
                value = _members_of(trial.machine, value)
            case "workers":
                value = _members_of(Worker, value)
            case "metrics":
                value = dict(value)
            case "stretches":
                value = decode_stretches(value)
            case "divergence":
                value = Divergence(**value)
            case "tasks":
                value = _tasks_of(value)
        setattr(trial, name, value)


def encode_stretches(stretches: Sequence[Stretch]) -> list[StretchRecord]:
    """The stretches as plain values, for the journal."""
    return [StretchRecord(**vars(stretch)) for stretch in stretches]  # type: ignore[typeddict-item]


def decode_stretches(kept: Sequence[StretchRecord]) -> list[Stretch]:
    """Decode what `encode_stretches` gave."""
    return [Stretch(**one) for one in kept]


# First words of the warning of a checkpoint that storage refuses.
UNSAVED = "its newest checkpoint is not stored"


def warnings_of(trial: TrialState, metric: str | None, *, is_over: bool = False) -> list[str]:
    """Warnings about a training that has run for a while, whose machine was revoked, or that is over.

    They say what its user needs but it does not do: report its metric, and save checkpoints.

    Args:
        trial: The training that is looked at.
        metric: Name of the metric that trials are compared by; None: there is none.
        is_over: Whether it has ended, so that saving no longer matters.

    Returns:
        One sentence per warning, without the trial's id.
    """
    found = []
    if metric is not None and not trial.metrics:
        found.append(_no_metric(metric, trial.fields))
    # A task just begins again, and the head of a cluster is best placed on an on-demand machine.
    is_saved_for = trial.progress.job.coupling is Coupling.GANG
    is_refused = any(warning.startswith(UNSAVED) for warning in trial.warnings)
    if is_saved_for and not trial.progress.checkpoints and not is_over and not is_refused:
        found.append(
            "it has saved nothing: when its machine is revoked it starts from the beginning; name the folder in "
            "which it saves with --checkpoints, let it write into EBBTIDE_CHECKPOINT_DIR, or use ebbtide.trial"
        )
    return found


def _no_metric(metric: str, fields: Sequence[str]) -> str:
    if not fields:
        return (
            f"metric {metric!r} was never reported: the program prints no line of JSON with numbers, and no "
            f'words such as `step 120 {metric} 0.31`; for example {{"step": 120, "{metric}": 0.31}}'
        )
    if metric in fields:
        return (
            f"metric {metric!r} was never reported as a finite number: the program reports it as nan or infinity"
        )
    near = get_close_matches(metric, fields, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"metric {metric!r} was never reported; the program reports: {', '.join(sorted(fields))}{hint}"
