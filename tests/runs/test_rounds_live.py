"""Jobs that share machines by rounds, on the local cloud: machines change hands, and none is rented for it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.runs.sweeps import BEGAN_S, PROGRAM, START_S, A, total

import ebbtide as eb
from ebbtide.clouds.settings import NewRun
from ebbtide.jobs.job import Job
from ebbtide.jobs.job_list import JobList, ListedJob
from ebbtide.jobs.one_training import sweep_of
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.for_job import policy_for
from ebbtide.runs.start_local import LocalMarket, begin_local, end_local, run_local

pytestmark = pytest.mark.usefixtures("processes")


def test_three_jobs_share_one_machine_by_rounds(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    rates = (0.1, 0.2, 0.3)
    jobs = [
        Job(
            name=f"job-of-{rate:g}",
            command=[sys.executable, "program.py", "{checkpoint_dir}", "{max_steps}", f"{rate:g}"],
            steps=160,
            steps_per_hour={"c3.xlarge": 1_400},
            checkpoint={"save_s": 5, "restore_s": 20},
        )
        for rate in rates
    ]
    work = JobList(name="rounds", listed=tuple(ListedJob(work=sweep_of(job)) for job in jobs))
    # Prices in a file end with their last change.
    calm = PriceSeries(np.array([BEGAN_S, START_S + 47 * 3600.0]), np.array([0.03, 0.031]))
    prices = eb.PriceHistory({A: calm}, start_s=BEGAN_S, end_s=START_S + 48 * 3600.0)
    parameters = {"quotas": {"c3.xlarge": 1}, "round_s": 200.0}
    folder = begin_local(
        work,
        tmp_path,
        NewRun(tmp_path / "runs"),
        LocalMarket(prices, START_S, 120.0),
        policy="dynamic-pricing-makespan",
        parameters=parameters,
    )
    try:
        ended = run_local(folder, policy_for(work, "dynamic-pricing-makespan", parameters=parameters))
    finally:
        end_local(folder)
    outcome = ended.outcome
    assert outcome.finished
    assert len(outcome.leases) == 1
    # Each had more than one turn: they were saved and restored on the same machine.
    assert sum(job.restores for job in outcome.jobs) >= 5
    assert outcome.steps_lost == 0
    assert ended.left_running == 0
    assert outcome.cost_usd == pytest.approx(ended.billed_usd, abs=1e-12)
    for number, rate in enumerate(rates):
        printed = folder.log_of(f"{folder.settings.run}-{number:03d}").read_text().split()
        assert float(printed[printed.index("total") + 1]) == pytest.approx(total(rate, 160))
