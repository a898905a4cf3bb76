"""Servers that jobs share: who is put where, what a revocation and an end mean, when another is rented."""

from __future__ import annotations

import pytest
from tests.policies.exosphere.test_master import SPIKED, A, B, run, scenario, trials

from ebbtide.base.utc import HOUR_S
from ebbtide.market.leases import LeaseState
from ebbtide.policies.exosphere.master import ExoSphere
from ebbtide.replay.start_delay import StartDelay


@pytest.mark.parametrize(
    ("share", "number", "servers"), [(0.5, 4, 2), (0.25, 4, 1), (0.3, 4, 2), (0.6, 2, 2), (1.0, 2, 2)]
)
@pytest.mark.parametrize("delay", [StartDelay(0.0, 0.0), StartDelay(60.0, 120.0)])
def test_jobs_are_put_where_there_is_room_before_another_server_is_rented(
    share: float, number: int, servers: int, delay: StartDelay
) -> None:
    outcome = run(ExoSphere(), scenario(*trials(number, share=share), delay=delay))
    assert outcome.finished
    assert len(outcome.leases) == servers
    # All begin together, as soon as the servers have booted.
    assert outcome.makespan_s == pytest.approx(8 * HOUR_S + delay.request_s + delay.boot_s)


def test_a_job_goes_where_it_fits_best() -> None:
    """Halves, a quarter and three quarters: the quarter is put beside the three quarters."""
    jobs = [*trials(1, share=0.5), *trials(1, share=0.75), *trials(1, share=0.25), *trials(1, share=0.5)]
    outcome = run(ExoSphere(), scenario(*jobs))
    assert [list(job.steps_on) for job in outcome.jobs] == [[0], [1], [1], [0]]


def test_a_revocation_is_that_of_all_jobs_of_a_server_and_they_share_the_next() -> None:
    outcome = run(ExoSphere(alpha=0.0), scenario(*trials(2, share=0.5), a=SPIKED, b=[(-48, 0.06)]))
    assert outcome.finished
    assert [lease.market for lease in outcome.leases] == [A, B]
    assert outcome.revocations == 1
    assert [list(job.steps_on) for job in outcome.jobs] == [[0, 1], [0, 1]]


def test_the_end_of_one_leaves_the_others_there_and_a_server_is_free_when_it_has_none() -> None:
    jobs = [*trials(1, share=0.5), {**trials(1, share=0.5)[0], "steps": 12}]
    outcome = run(ExoSphere(free_list_s=600.0), scenario(*jobs))
    assert outcome.finished
    (lease,) = outcome.leases
    assert lease.state is LeaseState.RELEASED
    assert outcome.revocations == 0
    assert [job.finished_s - lease.running_s for job in outcome.jobs] == pytest.approx([8 * HOUR_S, 12 * HOUR_S])
