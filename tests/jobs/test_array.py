"""Arrays as users write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.jobs.array import Array
from ebbtide.jobs.job import Coupling
from ebbtide.jobs.job_files import read_sweep, read_work
from ebbtide.market.catalogue import default_catalogue

GIVEN = {"command": "python score.py --part {task} --out {result_dir}"}


def array(tasks: Any, **others: Any) -> Array:
    return Array.parse(GIVEN | {"tasks": tasks} | others)


@pytest.mark.parametrize(
    ("tasks", "values"),
    [
        (3, ("0", "1", "2")),
        ({"last": 2}, ("0", "1", "2")),
        ({"first": 5, "last": 10, "step": 3}, ("5", "8")),
        (["a b", 1.5, True, "{task}"], ("a b", "1.5", "True", "{task}")),
    ],
)
def test_tasks_are_a_number_a_range_or_values(tasks: Any, values: tuple[str, ...]) -> None:
    assert array(tasks).tasks == values


def test_it_is_one_job_with_a_step_for_each_task_whose_machines_work_alone() -> None:
    sweep = array(7, machines=3)
    (job,) = sweep.live_jobs()
    assert (sweep.name, job.steps, job.most_machines, job.least_machines) == ("score", 7, 3, 1)
    assert job.coupling is Coupling.INDEPENDENT
    # Filled in on the machine, whatever is in the value.
    assert sweep.arguments(sweep.trials()[0]) == (
        *("python", "score.py", "--part", "{task}", "--out", "{result_dir}"),
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tasks": 0}, "tasks"),
        ({"tasks": []}, "tasks"),
        ({"tasks": {"first": 3, "last": 1}}, "before first"),
        ({"tasks": ["a\0b"]}, "NUL"),
        *(
            (
                {"tasks": wrong},
                r"field tasks: is .*; a number from 1 to 1,000,000 is needed, a range as \{first: 1",
            )
            for wrong in (
                0,
                -3,
                10**9,
                2.5,
                True,
                "three",
                None,
                [],
                [[1]],
                [None],
                {"from": 5, "to": 2},
                {"last": "x"},
            )
        ),
        ({"tasks": {"last": 10**12}}, "field tasks: has 1,000,000,000,001 tasks; 1,000,000 at most"),
        ({"tasks": {"last": 3, "step": 0}}, "field tasks.step: .*greater than or equal to 1"),
        ({"tasks": 2, "command": "run {lr}"}, r"\{lr\}"),
        ({"tasks": 2, "command": "run {tsk}"}, r"asks for \{tsk\}; an array has \{task\} and \{result_dir\}"),
        ({"tasks": 2, "command": "run {checkpoint_dir}"}, "checkpoint_dir"),
        ({"tasks": 2, "metric": "loss"}, "metric"),
        ({"tasks": 2, "grid": {"lr": [1]}}, "grid"),
        ({"tasks": 2, "cpus_per_task": 0}, "cpus_per_task"),
    ],
)
def test_what_is_wrong_is_told_with_its_field(wrong: dict[str, Any], said: str, tmp_path: Path) -> None:
    file = tmp_path / "array.yaml"
    with pytest.raises(InputError, match=said) as raised:
        Array.parse(GIVEN | wrong, file)
    assert "array.yaml" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_tasks_that_fit_no_machine_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "array.yaml"
    file.write_text("command: x {task}\ntasks: 3\ncpus_per_task: 10000\n")
    with pytest.raises(InputError, match=r"array.yaml, field cpus_per_task: is 10,000; no instance type has more"):
        read_sweep(file, to_run=True)
    file.write_text("command: x {task}\ntasks: 3\ncpus_per_task: 8\nmarkets: {instance_types: [c3.xlarge]}\n")
    with pytest.raises(InputError, match=r"field cpus_per_task: is 8; no instance type has more than 4 vCPUs"):
        read_sweep(file, to_run=True)
    prices = eb.generate_prices(days=1, seed=1, kind="auction")
    most = max(default_catalogue().machine_of(market).vcpus for market in prices)
    assert array(3, cpus_per_task=most).allowed(prices) is not None
    with pytest.raises(InputError, match=f"no machine of these prices has more than {most} vCPUs"):
        array(3, cpus_per_task=most + 1).allowed(prices)


def test_a_placeholder_of_an_array_is_none_of_a_training(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("command: python x.py {task}\n")
    with pytest.raises(InputError, match="task"):
        read_sweep(file, to_run=True)


def test_a_file_with_tasks_is_an_array_to_run_and_to_replay(tmp_path: Path) -> None:
    file = tmp_path / "array.yaml"
    file.write_text("command: python x.py {task}\ntasks: 5\nmachines: 2\nsteps_per_hour: {c3.xlarge: 100}\n")
    assert read_sweep(file, to_run=True).tasks == tuple("01234")
    (job,) = read_work(file).jobs
    assert (job.steps, job.coupling) == (5, Coupling.INDEPENDENT)
