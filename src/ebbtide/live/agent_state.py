"""What the controller knows of one job's training: its state, its time on each machine, and warnings about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from operator import attrgetter
from typing import Any, TypedDict

from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease

# Real seconds of training after which a warning about it is given, if its machine was not revoked before.
WARNED_AFTER_S = 60.0


@dataclass(eq=False)
class Trial:
    """The training of one job, as its controller knows it.

    Mappings and lists are replaced, never changed, so that `trial_stamp` sees it; metrics are only added.

    Attributes:
        progress: Progress of the job, which is updated in place.
        trial_id: Id of the trial, the same on every machine.
        assigned: Leases that the policy allows it to run on.
        on: Id of the lease whose agent trains it; None: no agent does.
        attempt: Number of the assignment in force, counted from 1.
        leaving: Whether the agent was ordered to leave it.
        stopping: Whether it counts as finished once the agent has left it.
        ended: Whether it counts as finished.
        failures: Failures since a step was last stored; one that was killed counts half.
        from_one: Failures by number of the checkpoint that was resumed from, as text.
        aside: Numbers of checkpoints that it must not resume from.
        best: Highest step that was ever stored.
        metrics: Values of the metric by step.
        milestones: Steps at which the policy wants an event.
        problem: Why it failed, in one line; empty: it has not.
        tail: The last lines that its program printed when it failed.
        fields: Names of numbers that its program reports, as far as known.
        warnings: Warnings for its user, each given once.
        stretches: Its time on machines before the present one, in order.
        began_s: When it was ordered onto its present machine, by the cloud's clock; NaN: it is on none.
        began_epoch_s: The same in seconds since 1970 by the controller's clock.
        began_number: Number of the checkpoint that it resumed from there; 0: none.
        began_step: Resume step on its present machine.
        has_saved: Whether it has stored a checkpoint from its present machine.
        lost_above: Steps above the newest known checkpoint that were last counted as lost.
        heard_s: When its agent last said something of it or was last asked, by the controller's monotonic clock.
        asked: How often its agent was asked since it last said something.
        stored_number: Number of the newest checkpoint that is known to be stored; 0: none is.
        resumed: Number of the last assignment whose resume step is known; 0: none is.
    """

    progress: JobProgress
    trial_id: str
    assigned: Sequence[Lease] = ()
    on: int | None = None
    attempt: int = 0
    leaving: bool = False
    stopping: bool = False
    ended: bool = False
    failures: float = 0.0
    from_one: Mapping[str, int] = field(default_factory=dict)
    aside: Sequence[int] = ()
    best: float = 0.0
    metrics: dict[int, float] = field(default_factory=dict)
    milestones: Sequence[int] = ()
    problem: str = ""
    tail: Sequence[str] = ()
    fields: Sequence[str] = ()
    warnings: Sequence[str] = ()
    stretches: Sequence[Stretch] = ()
    began_s: float = math.nan
    began_epoch_s: float = math.nan
    began_number: int = 0
    began_step: float = 0.0
    has_saved: bool = False
    lost_above: float = 0.0
    heard_s: float = -math.inf
    asked: int = 0
    stored_number: int = 0
    resumed: int = 0


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
    """

    lease_id: int
    duration_s: float
    number_from: int
    step_from: float
    step_done: float
    step_kept: float
    has_saved: bool
    is_final: bool = False

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
    found = [replace(stretch, step_kept=min(stretch.step_kept, step)) for stretch in before[:-1]]
    return [
        *found,
        *(
            # A checkpoint may have been stored without a report, because its machine was revoked.
            replace(
                last, step_kept=min(step, max(last.step_done, last.step_kept)), has_saved=number > last.number_from
            )
            for last in before[-1:]
        ),
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


class TrialRecord(TypedDict):
    """A `Trial` as plain values, by the names of its fields: leases by id, metrics as pairs of step and value."""

    assigned: list[int]
    on: int | None
    attempt: int
    leaving: bool
    stopping: bool
    ended: bool
    failures: float
    from_one: dict[str, int]
    aside: list[int]
    best: float
    metrics: list[tuple[int, float]]
    milestones: list[int]
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
    resumed: int


def trial_values(trial: Trial) -> TrialRecord:
    """A trial as plain values, for the journal; its progress is in the engine's snapshot."""
    return {**values_without_metrics(trial), "metrics": list(trial.metrics.items())}  # type: ignore[typeddict-item]


def values_without_metrics(trial: Trial) -> dict[str, Any]:
    """What `trial_values` gives without the metrics, which are only added, and by far the most."""
    return {
        "assigned": [lease.lease_id for lease in trial.assigned],
        "on": trial.on,
        "attempt": trial.attempt,
        "leaving": trial.leaving,
        "stopping": trial.stopping,
        "ended": trial.ended,
        "failures": trial.failures,
        "from_one": dict(trial.from_one),
        "aside": list(trial.aside),
        "best": trial.best,
        "milestones": list(trial.milestones),
        "problem": trial.problem,
        "tail": list(trial.tail),
        "fields": list(trial.fields),
        "warnings": list(trial.warnings),
        "stretches": encode_stretches(trial.stretches),
        "began_s": trial.began_s,
        "began_epoch_s": trial.began_epoch_s,
        "began_number": trial.began_number,
        "began_step": trial.began_step,
        "has_saved": trial.has_saved,
        "lost_above": trial.lost_above,
        "stored_number": trial.stored_number,
        "resumed": trial.resumed,
    }


_LINKED = frozenset({"assigned", "metrics", "stretches"})

# Differs, between two looks, whenever `values_without_metrics` does.
trial_stamp: Callable[[Trial], Any] = attrgetter(*sorted(TrialRecord.__annotations__.keys() - {"metrics"}))


def restore_trial(trial: Trial, kept: TrialRecord, leases: Mapping[int, Lease]) -> None:
    """Bring a new trial to where its values were taken.

    Args:
        trial: A trial of the same job that has not begun.
        kept: Plain values that `trial_values` gave.
        leases: The run's leases by lease id.
    """
    for name in TrialRecord.__annotations__.keys() - _LINKED:
        setattr(trial, name, kept[name])  # type: ignore[literal-required]
    trial.assigned = [leases[lease_id] for lease_id in kept["assigned"]]
    trial.metrics = dict(kept["metrics"])
    trial.stretches = decode_stretches(kept["stretches"])


def encode_stretches(stretches: Sequence[Stretch]) -> list[StretchRecord]:
    """The stretches as plain values, for the journal."""
    return [StretchRecord(**vars(stretch)) for stretch in stretches]  # type: ignore[typeddict-item]


def decode_stretches(kept: Sequence[StretchRecord]) -> list[Stretch]:
    """Decode what `encode_stretches` gave."""
    return [Stretch(**one) for one in kept]


def warnings_of(trial: Trial, metric: str | None, *, is_over: bool = False) -> list[str]:
    """Warnings about a training that has run for a while, whose machine was revoked, or that is over.

    They say what it does not do although its user needs it: report its metric, and save checkpoints.

    Args:
        trial: The training that is looked at.
        metric: Name of the metric that trials are compared by; None: there is none.
        is_over: Whether it is at its end, where saving no longer matters.

    Returns:
        One sentence a warning, without the trial's id.
    """
    found = []
    if metric is not None and not trial.metrics:
        found.append(_no_metric(metric, trial.fields))
    if not trial.progress.checkpoints and not is_over:
        found.append(
            "it has saved nothing: when its machine is revoked it starts from the beginning; name the folder in "
            "which it saves with --checkpoints, let it write into EBBTIDE_CHECKPOINT_DIR, or use ebbtide.trial"
        )
    return found


def _no_metric(metric: str, fields: Sequence[str]) -> str:
    if not fields:
        return (
            f"metric {metric!r} was never reported: the program prints no line of JSON with numbers, "
            f'for example {{"step": 120, "{metric}": 0.31}}'
        )
    near = get_close_matches(metric, fields, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"metric {metric!r} was never reported; the program reports: {', '.join(sorted(fields))}{hint}"
