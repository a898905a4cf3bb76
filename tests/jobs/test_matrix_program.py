"""Matrix programs in YAML: steps and speeds from measured times, programs of the user's own, what is refused."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest
import yaml

from ebbtide.errors import InputError
from ebbtide.jobs.job import Coupling, Phases
from ebbtide.jobs.job_files import FileKind, kind_of, read_sweep
from ebbtide.jobs.tiled.gnmf import Gnmf
from ebbtide.jobs.tiled.named import program_of
from ebbtide.jobs.tiled.program import speedup_of
from ebbtide.jobs.tiled.rsvd import Rsvd
from ebbtide.policies.cookbook.from_prices import workflow_of

RSVD = {"program": "rsvd", "parameters": {"rows": 4, "columns": 3}, "machines": 2}


BASE = """
from ebbtide.jobs.tiled.program import TiledJob, TileTask, TileName as N
class P:
  name, results = 'p', ['A']
  def inputs(self): return [(N('I', 0, 0), None)]
  @property
  def jobs(self): return [TiledJob('only', tuple(self.tasks()))]
  def tasks(self):
"""


def write(folder: Path, **fields: object) -> Path:
    path = folder / "p.yaml"
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return path


def test_steps_are_milliseconds_of_tasks_on_the_first_type(tmp_path: Path) -> None:
    times = {"c3.xlarge": {"product 1": 2.0, "product 2": 4.0, "product 3": 2.0}, "c3.2xlarge": 1.4}
    sweep = read_sweep(write(tmp_path, **RSVD, task_s=times, start_s=30), to_run=True)
    # 3 tasks of 2 s, 4 of 4 s, 3 of 2 s.
    assert sweep.max_trial_steps == 28_000
    assert sweep.steps_per_hour == {"c3.xlarge": 3.6e6, "c3.2xlarge": pytest.approx(7.2e6)}
    (job,) = sweep.jobs()
    assert (job.coupling, job.machines) == (Coupling.INDEPENDENT, 2)
    assert isinstance(job.speedup, Phases)
    workflow = workflow_of(job, 1000.0, "there")
    assert [each.work_h * 3600 for each in workflow.jobs] == pytest.approx([6.0, 16.0, 6.0])
    # Four equal tasks on three machines take two rounds.
    assert workflow.jobs[1].speedup.speedup(3) == 2.0
    assert workflow.start_work_h == pytest.approx(30 / 3600)
    told = json.loads(sweep.arguments(sweep.trials()[0])[2])
    assert told["steps"] == {"product 1": 2000, "product 2": 4000, "product 3": 2000}
    assert program_of(told["program"], told["parameters"]) == Rsvd(rows=4, columns=3)


def test_without_times_it_runs_and_no_speed_is_known(tmp_path: Path) -> None:
    sweep = read_sweep(write(tmp_path, **RSVD), to_run=True)
    assert (sweep.max_trial_steps, sweep.is_measured, sweep.framework) == (10_000, False, "dask")


@pytest.mark.usefixtures("in_project")
def test_a_program_of_the_user_s_is_found_beside_the_file() -> None:
    sweep = read_sweep("examples/matrix/powers.yaml", to_run=True)
    assert (sweep.name, sweep.max_trial_steps) == ("powers", 48_000)
    assert kind_of({"program": "powers.py:Powers", "parameters": {}}) is FileKind.PROGRAM


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"program": "sudoku"}, "unknown program 'sudoku'.*or your own, as FILE.py:CLASS"),
        ({"program": "rsvd", "parameters": {"rows": 0, "columns": 1}}, r"field parameters\.rows"),
        ({**RSVD, "task_s": {"c3.xlarge": {"product 1": 2.0}}}, "has no time of 'product 2'; the jobs are"),
        ({**RSVD, "task_s": {"c3.xlarge": 0}}, "task_s"),
        ({**RSVD, "parameters": {"rows": 1, "columns": 1, "seed": -1}}, r"field parameters\.seed"),
        ({**RSVD, "parameters": {"rows": 10**9, "columns": 1}}, "parameters"),
        (
            {"program": "x.py:P", "parameters": {"when": date(2020, 1, 1)}},
            "parameters: can be numbers, text, lists",
        ),
        ({"program": "../x.py:P"}, "is not in the folder of your code"),
        ({"program": "/tmp/x.py:P"}, "is not in the folder of your code"),
        ({"program": ":"}, "is not in the folder of your code"),
        ({"program": "x" * 5000 + ".py:P"}, "no such file"),
        ({"program": "mine.py:Nothing"}, "no such file; a program of your own is named"),
        ({**RSVD, "grid": {"lr": [1]}}, "grid|rows"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as told:
        read_sweep(write(tmp_path, **fields), to_run=True)
    assert re.search(message, " ".join([str(told.value), *told.value.problems]))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("class P:\n  name = 'p'\n  jobs = []\n  results = ['A']\n  def inputs(self): return []", "needs jobs"),
        ("class P:\n  jobs = []\n  def inputs(self): return []", "is no program: it has no name, results"),
        ("class P:\n  def __init__(self, size): pass", "field parameters: .*TypeError.*size"),
        ("raise OSError('no disk')", "line 1: OSError: no disk"),
        (
            BASE + "    return [TileTask('product', ((N('B', 0, 0),),), N('A', 0, 0))]",
            "needs B/0-0.tile, which is no input",
        ),
        (
            BASE + "    return [TileTask('divide', (), N('A', 0, 0))]",
            "field program: .*there is no operation 'divide'; there are product",
        ),
        (
            BASE + "    return [TileTask('product', ((N('I', 0, 0),),), N('a/b', 0, 0))]",
            "a matrix is called 'a/b'",
        ),
        (
            BASE + "    return [TileTask('product', ((N('I', 0, 0),),), N('A', 0, 1))]",
            "result A has 1 of 1 by 2 tiles",
        ),
    ],
)
def test_what_is_no_program_is_refused(tmp_path: Path, code: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(code + "\n")
    with pytest.raises(InputError, match=message):
        read_sweep(write(tmp_path, program="mine.py:P"), to_run=True)


def test_a_workflow_s_speedup_is_that_of_rounds_of_tasks() -> None:
    phases = speedup_of(Gnmf(rows=2, columns=3), 4).phases
    assert [phase.share for phase in phases] == [4.0, 3.0, 3.0, 2.0]
    assert [phase.speedup.speedup(4) for phase in phases] == [4.0, 3.0, 3.0, 2.0]
    assert phases[1].speedup.speedup(2) == 1.5
