"""Progress of workflows: by hand, and against walking through the step in small pieces."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import InputError
from ebbtide.jobs.job import Amdahl, SpeedupTable
from ebbtide.jobs.workflow import Workflow, WorkflowJob, fit_amdahl

PERFECT = Amdahl(parallel=1.0)
HALF = SpeedupTable(table={2: 1.5, 4: 2.0})


def workflow(*jobs: tuple[float, Amdahl | SpeedupTable], start_h: float = 0.0, stop_h: float = 0.0) -> Workflow:
    made = tuple(
        WorkflowJob(name=str(n), work_h=work_h, speedup=speedup) for n, (work_h, speedup) in enumerate(jobs)
    )
    return Workflow(name="w", jobs=made, start_work_h=start_h, stop_work_h=stop_h)


def test_a_step_goes_through_jobs_each_at_its_own_speedup() -> None:
    work = workflow((4.0, PERFECT), (10.0, HALF))
    assert work.work_h == 14.0
    # Two hours' work of the first job at 4 machines: half an hour; then half an hour at twice the speed of one.
    assert work.progress(12.0, 4, 4, 1.0) == pytest.approx(10.0 - 0.5 * 2.0)
    assert work.progress(14.0, 0, 0, 1.0) == 14.0
    assert work.progress(1.0, 4, 4, 1.0) == 0.0
    assert work.finish_h(12.0, 4, 4) == pytest.approx(0.5 + 10.0 / 2.0)
    assert work.finish_h(12.0, 4, 0) == math.inf


def test_the_overhead_of_a_change_is_worked_off_first() -> None:
    work = workflow((4.0, PERFECT), (10.0, HALF), start_h=0.25, stop_h=0.1)
    assert work.overhead_h(1, 4) == pytest.approx(0.75)
    assert work.overhead_h(4, 1) == pytest.approx(0.3)
    assert work.progress(14.0, 0, 2, 1.0) == pytest.approx(14.0 - 2.0 + 0.5)
    # Three more: 0.75 of overhead and 1.25 of the job in half an hour, then the second job.
    assert work.progress(11.25, 1, 4, 1.0) == pytest.approx(10.0 - 0.5 * 2.0)


WORKS = st.lists(
    st.tuples(st.floats(0.2, 8.0), st.sampled_from([PERFECT, HALF, Amdahl(parallel=0.9)])), min_size=1, max_size=4
)


@given(WORKS, st.floats(0.0, 1.0), st.integers(0, 9), st.integers(0, 9), st.floats(0.05, 3.0), st.floats(0.0, 0.3))
def test_a_step_is_what_its_pieces_are(
    jobs: list[tuple[float, Amdahl | SpeedupTable]],
    share: float,
    before: int,
    now: int,
    step_h: float,
    start_h: float,
) -> None:
    work = workflow(*jobs, start_h=start_h)
    left_h = share * work.work_h
    whole = float(work.progress(left_h, before, now, step_h))
    pieces = float(work.progress(left_h, before, now, step_h / 4))
    for _ in range(3):
        pieces = float(work.progress(pieces, now, now, step_h / 4))
    overhead_h = float(work.overhead_h(before, now))
    if left_h > 0 and now and overhead_h < step_h / 4 * min(job.speedup.speedup(now) for job in work.jobs):
        assert whole == pytest.approx(pieces, abs=1e-6)
    if overhead_h == 0:
        assert whole <= left_h + 1e-9
    done_h = work.finish_h(left_h, before, now)
    if now:
        assert (whole == 0) == (done_h <= step_h + 1e-7) or done_h == pytest.approx(step_h, abs=1e-6)


def test_it_is_broadcast() -> None:
    work = workflow((4.0, PERFECT), (10.0, HALF), start_h=0.1)
    left, before, now = (
        np.linspace(0, 14, 8)[:, None, None],
        np.arange(5)[None, :, None],
        np.arange(5)[None, None, :],
    )
    table = work.progress(left, before, now, 1.0)
    assert table.shape == (8, 5, 5)
    for place in np.ndindex(table.shape):
        alone = work.progress(left[place[0], 0, 0], place[1], place[2], 1.0)
        assert table[place] == pytest.approx(float(alone))


def test_a_speedup_is_fitted_to_measured_runs() -> None:
    true, work_h = Amdahl(parallel=0.97), 40.0
    runs = [(n, work_h / true.speedup(n)) for n in (1, 3, 8, 30)]
    found, work = fit_amdahl(runs)
    assert found.parallel == pytest.approx(0.97, abs=1e-4)
    assert work == pytest.approx(40.0, rel=1e-4)
    given_work, _ = fit_amdahl(runs[1:2], work_h=40.0)
    assert given_work.parallel == pytest.approx(0.97, abs=1e-4)
    with pytest.raises(InputError, match="1 runs are too few"):
        fit_amdahl(runs[:1])
    with pytest.raises(InputError, match="both must be positive"):
        fit_amdahl([(0, 1.0), (2, 1.0)])


def test_it_is_read_from_yaml(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "name: rsvd\njobs:\n  - {name: multiply, work_h: 33, speedup: {parallel: 0.98}}\nstart_work_h: 0.05\n"
    )
    assert Workflow.read(path).work_h == 33
    path.write_text("name: rsvd\njobs: []\n")
    with pytest.raises(InputError, match="jobs"):
        Workflow.read(path)
