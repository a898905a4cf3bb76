"""Jobs of a run's agents: trainings, arrays and clusters, each passed to the keeper of its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ebbtide.agent.protocol import OfTrial
from ebbtide.controller.kinds.array import AgentTasks
from ebbtide.controller.kinds.cluster import AgentCluster
from ebbtide.controller.kinds.measured_speed import MeasuredSpeeds
from ebbtide.controller.kinds.state import (
    JobState,
    Member,
    TrialRecord,
    TrialState,
    trial_stamp,
    values_without_metrics,
)
from ebbtide.controller.kinds.training import AgentTraining
from ebbtide.engine.snapshot import Items
from ebbtide.errors import LostCheckpointError
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease
from ebbtide.market.price_series import Floats

Keeper = AgentTraining | AgentTasks | AgentCluster


class AgentJobs:
    """The jobs of a run by id, whatever their kinds.

    Args:
        trainings: Keeper of all jobs that have none of their own.
        others: Keepers of arrays and clusters, by job id.
        speeds: The measured speeds of all.
    """

    def __init__(
        self, trainings: AgentTraining, others: Mapping[int, AgentTasks | AgentCluster], speeds: MeasuredSpeeds
    ) -> None:
        self._trainings, self._others = trainings, others
        self._keepers: tuple[Keeper, ...] = (trainings, *others.values())
        self.speeds = speeds
        self.trials: Sequence[JobState] = ()

    def begin(self, jobs: Sequence[JobProgress]) -> None:
        """Make a trial for each job, on no machine yet.

        Raises:
            InputError: A job does not suit its keeper.
        """
        self._trainings.begin([job for job in jobs if job.job_id not in self._others])
        for job_id, keeper in self._others.items():
            keeper.begin([jobs[job_id]])
        found: list[JobState] = [trial for keeper in self._keepers for trial in keeper.trials]
        self.trials = sorted(found, key=lambda trial: trial.progress.job_id)

    def _keeper(self, job_id: int) -> Keeper:
        return self._others.get(job_id, self._trainings)

    def _keeper_of(self, trial_id: str) -> Keeper | None:
        return next((keeper for keeper in self._keepers if keeper.is_trial(trial_id)), None)

    def assign(self, job_id: int, leases: Sequence[Lease]) -> None:
        """Allow a job to run on these leases, and no others, from now on."""
        self._keeper(job_id).assign(job_id, leases)

    def leave(self, lease: Lease, report: OfTrial) -> bool:
        """Have all jobs save and leave a machine for good; returns whether they do.

        Args:
            lease: Lease of the machine.
            report: The report that a job could not begin there; a cluster judges the machines of workers itself.
        """
        keeper = self._keeper_of(report.trial)
        if isinstance(keeper, AgentCluster):
            return keeper.leave(lease, report.trial)
        if any(other.in_use(lease) for other in self._keepers if isinstance(other, AgentCluster)):
            return False
        for trial in self.trials:
            if lease in trial.assigned:
                self.assign(trial.progress.job_id, [other for other in trial.assigned if other is not lease])
        return True

    def converge(self) -> None:
        """Send the orders that are missing.

        Raises:
            LostCheckpointError: Storage lacks the checkpoint of a job; the others have their orders.
            OSError: Storage does not answer.
        """
        lost: LostCheckpointError | None = None
        for keeper in self._keepers:
            try:
                keeper.converge()
            except LostCheckpointError as error:
                lost = error
        if lost is not None:
            raise lost

    def in_use(self, lease: Lease) -> bool:
        """Return whether a job is on the lease's machine."""
        return any(keeper.in_use(lease) for keeper in self._keepers)

    def save(self, job_id: int) -> None:
        """Order a job to be saved."""
        self._keeper(job_id).save(job_id)

    def stop(self, job_id: int) -> None:
        """End a job; it counts as finished once it is saved."""
        self._keeper(job_id).stop(job_id)

    def wake_at_step(self, job_id: int, step: int) -> None:
        """Notify once when a job has done this many steps."""
        self._keeper(job_id).wake_at_step(job_id, step)

    def measured(self, job_id: int) -> tuple[Floats, Floats]:
        """Steps and metric values that a job reported."""
        return self._keeper(job_id).measured(job_id)

    def gone(self, lease: Lease) -> None:
        """Note that the lease's machine has ended."""
        for keeper in self._keepers:
            keeper.gone(lease)

    def is_trial(self, trial_id: str) -> bool:
        """Return whether this is the id of a job, or of a machine of one."""
        return self._keeper_of(trial_id) is not None

    def member_of(self, lease: Lease, report: OfTrial) -> tuple[TrialState, Member] | None:
        """Find the training and machine that a report is about; None: its assignment is over, or no training's."""
        return self._trainings.member_of(lease, report)

    @property
    def trainings(self) -> Sequence[TrialState]:
        """The jobs that are neither arrays nor clusters."""
        return self._trainings.trials

    def receive(self, lease: Lease, report: OfTrial) -> None:
        """Handle a report of an agent; one about an unknown job is dropped.

        Raises:
            OSError: The report says that work is done, and storage does not answer to confirm it.
        """
        keeper = self._keeper_of(report.trial)
        if keeper is not None:
            keeper.receive(lease, report)

    @property
    def items(self) -> Items:
        """The trials, each with the id of its job, without their metrics."""
        return Items("trials", lambda: enumerate(self.trials), trial_stamp, values_without_metrics)

    def restore(self, kept: Sequence[TrialRecord], leases: Mapping[int, Lease]) -> None:
        """Continue from a snapshot.

        Args:
            kept: Values of each trial, in the order of jobs.
            leases: The run's leases by lease id.
        """
        by_id = dict(enumerate(kept))
        for keeper in self._keepers:
            keeper.restore([by_id[trial.progress.job_id] for trial in keeper.trials], leases)
