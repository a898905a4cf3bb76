"""Figures of a rehearsed interruption: how long saving takes, what is lost, and whether saving fits the notice.

All figures are computed from reports of the two machines' agents; nothing is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ebbtide.agent.protocol import Noticed, Report, Restored, Saved, Stepped
from ebbtide.agent.work import SavingTimes
from ebbtide.base.json_values import finite
from ebbtide.market.billing import billing_preset

# The billing preset of each cloud, which says how long its notices are.
CLOUDS = {"EC2": "ec2-second", "Google": "gcp-spot", "Azure": "azure-spot"}

_STEPS_HINT = (
    "report steps with `trial.steps` or `trial.epochs`, or print lines like "
    '`{"step": 120}` or `epoch 3/10` (docs/training.md)'
)
_SAVES_HINT = (
    "use `trial.steps` with `trial.keep`, or name the folder that the program saves into and resumes from with "
    "`--checkpoints` (docs/training.md)"
)


class Stopped(StrEnum):
    """Reason why a rehearsal ended."""

    RESUMED = "resumed"  # training went on after it resumed
    NO_STEP = "no step"  # the program reported no step within the time allowed
    FINISHED = "finished"  # the program ended before it was interrupted
    FAILED = "failed"  # the program failed
    NOT_RESUMED = "not resumed"  # it made no progress on the new machine
    NOT_SAVED = "not saved"  # it trained on there, and did not save again


@dataclass(frozen=True)
class Records:
    """Records of one rehearsal. Times are in seconds since 1970 by the clock of this machine.

    Attributes:
        notice_s: Length of the notice in seconds.
        first: Reports about the training from the machine that was revoked, in order.
        second: Reports about it from the machine on which it resumed, in order; empty: it never resumed.
        ordered_s: Time of the order to train on that machine; NaN: never.
        mttr_s: Mean seconds until a machine is revoked, as the job assumes; its interval between saves follows.
        stopped: Reason why the rehearsal ended.
        failure: Description of the program's failure; may be empty.
        failed_on: Number of the machine on which it failed, counted from 1; 0: it did not.
    """

    notice_s: float
    first: Sequence[Report]
    second: Sequence[Report]
    ordered_s: float
    mttr_s: float
    stopped: Stopped = Stopped.RESUMED
    failure: str = ""
    failed_on: int = 0


@dataclass(frozen=True)
class Rehearsal:
    """Figures of a rehearsal, each None if it is not known.

    Attributes:
        notice_s: Length of the notice in seconds.
        start_s: Seconds from the start of the program to the end of its first step.
        step_s: Mean seconds of a step before the notice.
        checkpoint_bytes: Size of the checkpoint in bytes.
        written_s: Seconds from the notice until the checkpoint was complete on the machine.
        stored_s: Seconds from the notice until the checkpoint was in storage.
        steps_at_notice: Number of steps done at the notice.
        steps_resumed: Step from which the training resumed.
        began_again_at: First step that the program reported after it resumed, if it had done that step before: it
            did not go on from its checkpoint.
        steps_lost: Number of complete steps that were lost with the notice.
        work_lost_s: Seconds of training in those steps.
        steps_lost_without: Number of steps that would have been lost without a notice at that moment.
        work_lost_without_s: Seconds of training in those steps.
        interval_s: Seconds between two saves while it trains, which is the most that is lost without a notice.
        restart_s: Seconds from the order to the new machine until its first step was done.
        problem: Why the interruption was not rehearsed as a whole, and what to do; empty: it was.
    """

    notice_s: float
    start_s: float | None = None
    step_s: float | None = None
    checkpoint_bytes: int | None = None
    written_s: float | None = None
    stored_s: float | None = None
    steps_at_notice: int | None = None
    steps_resumed: int | None = None
    began_again_at: int | None = None
    steps_lost: int | None = None
    work_lost_s: float | None = None
    steps_lost_without: int | None = None
    work_lost_without_s: float | None = None
    interval_s: float | None = None
    restart_s: float | None = None
    problem: str = ""

    @property
    def is_good(self) -> bool:
        """True if saving fits the notice, and at most the current step is lost."""
        # A program that saves by itself may have nothing new to save at the notice.
        fits = self.stored_s is None or self.stored_s <= self.notice_s
        return not self.problem and fits and self.steps_lost is not None and self.steps_lost <= 1

    @property
    def clouds(self) -> tuple[NoticeTime, ...]:
        """Notice of each cloud, compared with the time that saving takes; empty: that time is not known."""
        if self.stored_s is None:
            return ()
        return tuple(
            NoticeTime(name, billing_preset(preset).notice_s, self.stored_s) for name, preset in CLOUDS.items()
        )

    @property
    def verdict(self) -> str:
        """The result in a sentence that a user can act on."""
        if self.problem:
            return self.problem
        assert self.steps_lost is not None
        if self.began_again_at is not None:
            return (
                f"the program began again with step {self.began_again_at}, though the checkpoint of step "
                f"{self.steps_resumed} was in its folder: it did not find it, or did not use it; have it look for "
                "the newest checkpoint in that folder when it starts, and go on from there (docs/training.md)"
            )
        restart = "" if self.restart_s is None else f" and {self.restart_s:.1f} s to train again"
        if self.steps_lost > 1:
            work = "" if self.work_lost_s is None else f" ({self.work_lost_s:.1f} s of work)"
            return (
                f"{self.steps_lost} steps{work} are lost in spite of a notice of {self.notice_s:g} s: the program "
                "does not save when it is asked to, or saving takes longer; use `trial.steps` with `trial.keep`, "
                "save at SIGTERM, or save more often (docs/training.md)"
            )
        if self.stored_s is None:
            return (
                "the program saves as it trains, and had nothing to save at the notice: a revocation costs the "
                f"current step{restart}"
            )
        takes = f"saving takes {self.stored_s:.1f} s"
        # The rehearsed notice itself may be that of no cloud.
        short = [f"{one.cloud}'s notice of {one.notice_s:g} s" for one in self.clouds if not one.fits]
        if self.stored_s > self.notice_s:
            short = short or [f"the notice of {self.notice_s:g} s"]
        if short:
            lost = "" if self.interval_s is None else f"up to {self.interval_s:.0f} s of "
            return (
                f"{takes}: more than {' and '.join(short)}; a revocation there loses {lost}work since the last "
                "save: write a smaller checkpoint, or save to a faster disk or storage nearby"
            )
        shortest = min(self.clouds, key=lambda one: one.notice_s)
        return (
            f"{takes}, {shortest.used:.0%} of the shortest notice ({shortest.notice_s:g} s): a revocation with a "
            f"notice costs at most the current step{restart}"
        )

    def as_plain(self) -> dict[str, Any]:
        """Plain values for JSON; what is not known is null."""
        values = {
            **asdict(self),
            "is_good": self.is_good,
            "verdict": self.verdict,
            "clouds": [{**asdict(one), "used": one.used, "fits": one.fits} for one in self.clouds],
        }
        found: dict[str, Any] = finite(values)
        return found


@dataclass(frozen=True)
class NoticeTime:
    """Notice of one cloud, compared with the time that saving takes.

    Attributes:
        cloud: Name of the cloud, for people.
        notice_s: Length of its notice in seconds.
        stored_s: Seconds from the notice until the checkpoint is in storage.
    """

    cloud: str
    notice_s: float
    stored_s: float

    @property
    def used(self) -> float:
        """The share of the notice that is used; above 1: the notice is too short."""
        return self.stored_s / self.notice_s

    @property
    def fits(self) -> bool:
        """True if the notice is long enough to store the checkpoint."""
        return self.stored_s <= self.notice_s


def rehearsed(records: Records) -> Rehearsal:
    """The figures of a rehearsal, from its records."""
    first, second = records.first, records.second
    notices = [report.taken_at_s - records.notice_s for report in first if isinstance(report, Noticed)]
    noticed_s = notices[0] if notices else math.inf
    restored = _restored(first)
    began = 0 if restored is None else restored.step
    steps = [(report.step, report.told_s) for report in first if isinstance(report, Stepped)]
    before = [(step, told_s) for step, told_s in steps if told_s <= noticed_s]
    step_s = _step_s([one for one in before if one[0] > began])
    saves = [report for report in first if isinstance(report, Saved)]
    done = max((step for step, _ in before), default=began)
    reached = max([began, *(step for step, _ in steps), *(save.step for save in saves)])
    early = max((save.step for save in saves if save.stored_s <= noticed_s), default=began)
    last = next((save for save in reversed(saves) if save.stored_s > noticed_s), None)
    resumed = _restored(second)
    before_it = max((save.step for save in saves if resumed and save.step < resumed.step), default=began)
    at = None if resumed is None else _first_at(second, resumed.step)
    # The program may not know the exact step of a checkpoint; if it goes on from an older one, it did not find it.
    again = at if at is not None and at <= before_it + 1 else None
    went_on_from = None if resumed is None else resumed.step if at is None else max(at - 1, 0)
    lost = None if went_on_from is None or not notices else max(reached - went_on_from, 0)
    without = max(done - early, 0) if notices else None
    return Rehearsal(
        notice_s=records.notice_s,
        start_s=None if restored is None else _first_step_s(first, restored.told_s),
        step_s=step_s,
        checkpoint_bytes=saves[-1].size_bytes if saves else None,
        written_s=None if last is None else _known(max(last.written_s - noticed_s, 0.0)),
        stored_s=None if last is None else last.stored_s - noticed_s,
        steps_at_notice=done if notices else None,
        steps_resumed=None if resumed is None else resumed.step,
        began_again_at=again,
        steps_lost=lost,
        work_lost_s=_work_s(lost, step_s),
        steps_lost_without=without,
        work_lost_without_s=_work_s(without, step_s),
        interval_s=_interval_s(saves, records.mttr_s),
        restart_s=_first_step_s(second, records.ordered_s),
        problem=_problem(records, saves, resumed),
    )


def _first_at(reports: Sequence[Report], resumed: int) -> int | None:
    """The first step that a program reported after it had resumed, if it had done that step before.

    Args:
        reports: The reports from the machine on which it resumed.
        resumed: Step of the checkpoint that was put into its folder there.
    """
    first = next((report.at for report in reports if isinstance(report, Stepped) and report.at > 0), resumed)
    return first if first < resumed else None


def _problem(records: Records, saves: Sequence[Saved], resumed: Restored | None) -> str:
    match records.stopped:
        case Stopped.FAILED:
            what = f": {records.failure}" if records.failure else ""
            if records.failed_on > 1:
                return (
                    f"the program failed on the new machine, after its checkpoint was put into its folder{what}; "
                    "have it resume from a folder that was copied to another machine"
                )
            return f"the program failed{what}; let it run by itself first"
        case Stopped.NO_STEP:
            return f"the program never reported a step: {_STEPS_HINT}"
        case Stopped.FINISHED:
            return "the program was done before it could be interrupted: give a smaller `--after-s`, or more steps"
    if not saves:
        return f"the program made no checkpoint, so all its work is lost with its machine: {_SAVES_HINT}"
    if records.stopped is Stopped.NOT_RESUMED or resumed is None:
        return "training did not go on from its checkpoint on a new machine: see what the program printed there"
    if records.stopped is Stopped.NOT_SAVED:
        return (
            "the program resumed, and did not save again, though it saved before it was interrupted: see what it "
            "printed there; if it saves more rarely than that, give a larger `--patience-s`"
        )
    return ""


def _restored(reports: Sequence[Report]) -> Restored | None:
    return next((report for report in reports if isinstance(report, Restored)), None)


def _first_step_s(reports: Sequence[Report], since_s: float) -> float | None:
    """Seconds from a moment until the first step after the resume step was done."""
    restored = _restored(reports)
    began = 0 if restored is None else restored.step
    told_s = [report.told_s for report in reports if isinstance(report, Stepped) and report.step > began]
    return _known(told_s[0] - since_s) if told_s else None


def _step_s(steps: Sequence[tuple[int, float]]) -> float | None:
    """Mean seconds of a step between the first and the last reported one, from pairs of step and time."""
    if not steps or steps[-1][0] == steps[0][0]:
        return None
    # A step is reported again with its metrics, somewhat later.
    last_s = next(told_s for step, told_s in steps if step == steps[-1][0])
    return (last_s - steps[0][1]) / (steps[-1][0] - steps[0][0])


def _work_s(steps: int | None, step_s: float | None) -> float | None:
    if steps == 0:
        return 0.0
    return None if steps is None or step_s is None else steps * step_s


def _interval_s(saves: Sequence[Saved], mttr_s: float) -> float | None:
    """Seconds between two saves: by the agent's rule if the program saves when asked to, otherwise as observed."""
    times = SavingTimes()
    for save in saves:
        if math.isfinite(save.save_s):
            times.saved(save.save_s)
            times.uploaded(save.stored_s - save.written_s)
    if times.is_known:
        return times.interval_s(mttr_s)
    written_s = [save.written_s for save in saves if math.isfinite(save.written_s)]
    return (written_s[-1] - written_s[0]) / (len(written_s) - 1) if len(written_s) > 1 else None


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
