"""Outcome of one run."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.base import html as html
from ebbtide.base.utc import HOUR_S
from ebbtide.engine.decisions import Decision
from ebbtide.engine.ledger import Ledger
from ebbtide.engine.timeline import Timeline
from ebbtide.jobs.job import UNKNOWN_STEPS
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease

# Of more jobs the table in a notebook has the first ones.
_MOST_ROWS = 30


@dataclass(frozen=True)
class Outcome:
    """Outcome of one run.

    Attributes:
        policy: Name of the policy that decided.
        start_s: Start of the run, seconds since 1970.
        end_s: When the last job was done, or else when the run ended, seconds since 1970.
        finished: Whether all jobs were done.
        cost_usd: Cost net of refunds, egress included, USD.
        refund_usd: Total of all refunds, USD.
        revocations: Number of leases that the provider revoked, once charging had begun.
        checkpoints: Number of complete checkpoints, all jobs together.
        steps_lost: Steps run but lost before they were saved.
        leases: All leases that were requested.
        jobs: Progress of the jobs at the end.
        ledger: Every charge and refund.
        timeline: Every event, if it was recorded.
        decisions: Number of times that the policy was asked.
        gave_up: Reason for which the run was given up before all jobs were done; empty: it was not.
        made: Decisions of the policy with their reasons, if they were recorded.
    """

    policy: str
    start_s: float
    end_s: float
    finished: bool
    cost_usd: float
    refund_usd: float
    revocations: int
    checkpoints: int
    steps_lost: float
    leases: tuple[Lease, ...]
    jobs: tuple[JobProgress, ...]
    ledger: Ledger
    timeline: Timeline
    decisions: int
    gave_up: str = ""
    made: tuple[Decision, ...] = ()

    @property
    def makespan_s(self) -> float:
        """From the start until the last job was done."""
        return self.end_s - self.start_s

    @property
    def egress_usd(self) -> float:
        """Of the cost, what moving data between regions and clouds was."""
        return self.ledger.egress_usd

    @property
    def _end(self) -> str:
        return "finished" if self.finished else f"gave up ({self.gave_up})" if self.gave_up else "not finished"

    def _repr_html_(self) -> str:
        headings = ("job", "done", "of", "lost", "checkpoints", "machines")
        rows = [
            (
                job.job.name,
                f"{job.steps_done:,.0f}",
                f"{job.job.steps:,}" if job.job.steps < UNKNOWN_STEPS else "",
                f"{job.steps_lost:,.0f}",
                str(job.checkpoints),
                str(len(job.leases)),
            )
            for job in self.jobs[:_MOST_ROWS]
        ]
        left = len(self.jobs) - len(rows)
        notes = [f"and {left} more jobs"] if left else []
        notes += [
            f"{self.cost_usd:.4f} USD (refunded {self.refund_usd:.4f}); {len(self.leases)} machines, "
            f"{self.revocations} of them taken"
        ]
        title = f"{self.policy}: {self._end} after {self.makespan_s / HOUR_S:.1f} h"
        return html.table(title, headings, rows, notes)

    def __str__(self) -> str:
        return (
            f"{self.policy}: {self._end} after {self.makespan_s / HOUR_S:.1f} h for {self.cost_usd:.4f} USD "
            f"(refunded {self.refund_usd:.4f}); {len(self.leases)} leases, {self.revocations} revoked, "
            f"{self.checkpoints} checkpoints, {self.steps_lost:.0f} steps lost"
        )
