"""Jobs that are due: which, and each brought to its end once, however often it was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from tests.runs.sweeps import PROGRAM, due_job, flapping, total
from tests.waiting import eventually

from ebbtide.base.utc import DAY_S, to_epoch_s
from ebbtide.clouds.local.server import bills_of
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.run_state import State
from ebbtide.runs.handle import Run
from ebbtide.runs.start_local import end_local
from ebbtide.tracking.due_runs import DueRun, bring_to_end, due_runs, failed, mark_done, result_of

pytestmark = pytest.mark.usefixtures("processes")

NOW_S = to_epoch_s("2026-11-22T03:00:00Z")
DUE_S = to_epoch_s("2026-11-22T02:00:00Z")

# A user's own policy, which refuses every market.
REFUSING = """
from ebbtide.errors import InputError

class Refusing:
    name = "refusing"
    wakes_on = frozenset()

    def decide(self, view):
        raise InputError("no market suits")
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Path]:
    """A folder of due jobs: whatever becomes of a test, no machine of theirs is left."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    flapping().write(folder / "prices.parquet")
    yield folder
    for path in (tmp_path / "kept" / "runs").glob("*/run.json"):
        end_local(RunFolder(path.parent))


def of(jobs: Path, now_s: float = NOW_S) -> list[DueRun]:
    return due_runs(jobs, jobs.parent / "kept" / "runs", now_s)[0]


def end(due: DueRun) -> list[float]:
    """Bring it to its end; the shares of its steps that were shown meanwhile."""
    shown: list[float] = []
    bring_to_end(
        due, f"sqlite:///{due.job.file.parent.parent}/mlflow.db", due.job.file.parent.parent / "a", shown.append
    )
    return shown


@pytest.mark.long
def test_a_job_is_trained_once_for_each_time(jobs: Path) -> None:
    (jobs / "small.yaml").write_text(due_job(steps=150))
    (due,) = of(jobs)
    assert (due.run_id, result_of(due).problem) == ("small-20261122-020000", "it was not begun")
    shown = end(due)
    assert shown == sorted(shown)
    assert shown[-1] == 1.0
    result = result_of(due)
    assert (result.state, result.problem, result.is_done) == ("finished", "", True)
    assert result.cost_usd > 0.0
    assert Run(due.kept).fetch(into=jobs.parent / "best").step == 150
    client = MlflowClient(f"sqlite:///{jobs.parent}/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'live runs'")
    runs = client.search_runs([experiment.experiment_id])
    assert {(run.data.tags["ebbtide.job"], run.data.tags["ebbtide.due"]) for run in runs} == {
        ("small", "2026-11-22T02:00:00Z")
    }
    # Not written down as done, it is due still; it has ended, so nothing is trained or told again.
    before = {run.info.run_id: client.get_run(run.info.run_id).data.metrics for run in runs}
    assert of(jobs) == [due]
    end(due)
    assert {run: client.get_run(run).data.metrics for run in before} == before
    assert result_of(due) == result
    mark_done([(due, result)])
    assert of(jobs) == []
    # Though its folder is deleted.
    due.kept.path.rename(jobs.parent / "away")
    assert of(jobs) == []
    assert [each.run_id for each in of(jobs, NOW_S + 3 * DAY_S)] == ["small-20261125-020000"]


@pytest.mark.long
def test_one_that_was_killed_is_continued_before_any_other_of_its_job(jobs: Path) -> None:
    (jobs / "small.yaml").write_text(due_job(steps=1200))
    (due,) = of(jobs)
    script = (
        "from tests.tracking.test_due_runs import end, of; from pathlib import Path; import sys\n"
        "end(of(Path(sys.argv[1]))[0])"
    )
    steps_done = 0.0

    def trains_on() -> float | None:
        """Steps that it has trained now, once they are more than when it was killed."""
        if not due.kept.is_begun or (standing := Run(due.kept).status()).state is not State.RUNNING:
            return None
        steps = max((one.steps_done or 0.0 for one in standing.trials), default=0.0)
        return steps if steps > steps_done else None

    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(jobs)],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."])},
            start_new_session=True,
        )
        try:
            steps_done = eventually(trains_on, poll_s=0.1)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert Run(due.kept).status().state is State.GONE
    # A day later it is due for the same time still.
    assert of(jobs, NOW_S + DAY_S) == [due]
    end(due)
    result = result_of(due)
    assert result.is_done
    saved = Run(due.kept).fetch(into=jobs.parent / "best")
    assert json.loads((saved.folder / "checkpoint" / "state.json").read_text())[1] == pytest.approx(
        total(0.1, 1200)
    )
    billed_usd = sum(bill["usd"] for bill in bills_of(due.kept.path / "cloud"))
    assert result.cost_usd == pytest.approx(billed_usd, abs=1e-9)


@pytest.mark.long
def test_what_fails_says_why_and_is_not_tried_again_before_its_next_time(jobs: Path) -> None:
    failing = due_job(steps=50, program="-c 'raise SystemExit(3)'")
    (jobs / "failing.yaml").write_text(failing)
    (jobs / "lost.yaml").write_text(due_job(steps=50, program="nowhere.py"))
    (jobs / "wrong.yaml").write_text("run: x\n")
    dues, problems = due_runs(jobs, jobs.parent / "kept" / "runs", NOW_S)
    assert [due.job.name for due in dues] == ["failing", "lost"]
    assert list(problems) == [str(jobs / "wrong.yaml")]
    end(dues[0])
    with pytest.raises(ValueError, match="lost.yaml, field command: nowhere.py is not in") as error:
        end(dues[1])
    results = [result_of(dues[0]), result_of(dues[1], error.value)]
    assert [result.is_done for result in results] == [False, False]
    assert "exit code 3" in results[0].problem
    assert failed(results).startswith("2 of 2 due jobs did not finish: failing: trial 0 failed")
    mark_done(list(zip(dues, results, strict=True)))
    # What was never begun is tried again.
    assert [due.job.name for due in of(jobs)] == ["lost"]


def test_one_that_a_limit_of_its_team_ended_is_continued_another_night(jobs: Path) -> None:
    (jobs / "small.yaml").write_text(due_job(steps=50))
    (due,) = of(jobs)
    ended = replace(result_of(due), state="gave up")
    mark_done([(due, replace(ended, problem="the grace of 900 s without the team's accounts in s3://a reached"))])
    assert of(jobs, NOW_S + DAY_S) != []
    mark_done([(due, replace(ended, problem="budget of 3 USD reached"))])
    assert due not in of(jobs, NOW_S + DAY_S)


@pytest.mark.long
def test_one_that_was_refused_begins_anew_with_its_corrected_file(jobs: Path) -> None:
    """Before, a run that was refused blocked its job for ever."""
    (jobs / "own.py").write_text(REFUSING)
    text = due_job(steps=50)
    (jobs / "small.yaml").write_text(text.replace("policy: exosphere", "policy: own.py:Refusing"))
    (due,) = of(jobs)
    with pytest.raises(ValueError, match="no market suits"):
        end(due)
    result = result_of(due)
    assert (result.state, result.cost_usd) == ("refused", 0.0)
    mark_done([(due, result)])
    (jobs / "small.yaml").write_text(text)
    (again,) = of(jobs)
    assert again.run_id == due.run_id
    end(again)
    assert result_of(again).is_done
