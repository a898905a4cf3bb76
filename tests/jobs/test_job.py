from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import InputError
from ebbtide.jobs.job import UNKNOWN_STEPS, Amdahl, Job, SpeedupTable
from ebbtide.jobs.one_training import sweep_of
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.markets import Market

GOOD = "name: a\nsteps: 100\nsteps_per_hour: {c3.xlarge: 10}\n"


def read(tmp_path: Path, text: str) -> Job:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return Job.read(path)


def test_a_job_is_read_with_its_defaults(tmp_path: Path) -> None:
    job = read(tmp_path, GOOD)
    assert (job.name, job.steps, job.machines, job.share) == ("a", 100, 1, 1.0)
    assert job.save_s() > 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD + "colour: red\n", "job.yaml, field colour: unknown field; known: accelerators"),
        ("name: a\nsteps_per_hour: {c3.xlarge: 10}\n", "job.yaml, field steps: missing; write `steps: 24000`"),
        (GOOD.replace("100", "-5"), "job.yaml, field steps: .*greater than 0"),
        (GOOD.replace("10}", "0}"), "job.yaml, field steps_per_hour.c3.xlarge: .*greater than 0"),
        (
            GOOD.replace("c3.xlarge", "c3.xlrage"),
            "field steps_per_hour.c3.xlrage: unknown aws instance type .*c3.xlarge",
        ),
        ("name: a\nsteps: 100\n", "needs steps_per_hour for some instance type"),
        (GOOD + "checkpoint: {save_s: 60, interval_s: 60}\n", "would only save and never finish"),
        (GOOD + "checkpoint: {save_s: -1}\n", "field checkpoint.save_s"),
        ("- a\n- b\n", "holds no job"),
        ("a: [", "job.yaml, row 1: is not YAML"),
    ],
)
def test_a_bad_job_is_told_by_file_and_field(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_a_missing_job_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none.yaml: there is no such file"):
        Job.read(tmp_path / "none.yaml")


def test_rates_by_type_or_by_core() -> None:
    catalogue = default_catalogue()
    job = Job(name="a", steps=1, steps_per_hour={"c3.xlarge": 3600})
    assert job.steps_per_s(Market("aws", "us-east-1", "us-east-1a", "c3.xlarge"), catalogue) == 1.0
    assert job.steps_per_s(Market("aws", "us-east-1", "us-east-1a", "r3.large"), catalogue) == 0.0
    by_core = Job(name="a", steps=1, steps_per_hour={"c3.xlarge": 3600}, other_steps_per_hour_per_vcpu=1800)
    assert by_core.steps_per_s(Market("aws", "us-east-1", "us-east-1a", "c3.xlarge"), catalogue) == 1.0
    assert by_core.steps_per_s(Market("aws", "us-east-1", "us-east-1a", "r3.large"), catalogue) == 1.0


def test_speedups() -> None:
    assert Amdahl(parallel=1.0).speedup(8) == pytest.approx(8)
    assert Amdahl(parallel=0.5).speedup(2) == pytest.approx(4 / 3)
    table = SpeedupTable(table={2: 1.9, 4: 3.5})
    assert [table.speedup(n) for n in (1, 2, 3, 4, 9)] == pytest.approx([1.0, 1.9, 2.7, 3.5, 3.5])
    assert Job(name="a", steps=1, steps_per_hour={"c3.xlarge": 1}).speedup_of(3) == 3.0


def test_a_command_is_enough_to_run_a_job_and_not_to_replay_it() -> None:
    job = Job(command="torchrun train.py --epochs 3", accelerators="T4:1", budget_usd=20, deadline_h=12)
    assert (job.name, job.steps) == ("train", UNKNOWN_STEPS)
    with pytest.raises(InputError, match="train cannot be replayed or planned yet"):
        job.check_replayable()
    sweep = sweep_of(job)
    assert (sweep.name, sweep.command, sweep.max_trial_steps) == ("train", job.command, None)
    assert (sweep.accelerators, sweep.budget_usd, sweep.deadline_h) == ("T4:1", 20, 12)
    known = Job(command=["python", "-m", "pkg.fit"], name="mine", steps=100, steps_per_hour={"c3.xlarge": 10})
    known.check_replayable()
    assert (sweep_of(known).name, sweep_of(known).max_trial_steps) == ("mine", 100)


def test_what_a_job_without_a_command_cannot_have_is_told() -> None:
    fields = {"name": "x", "steps": 10, "steps_per_hour": {"c3.xlarge": 1}}
    with pytest.raises(InputError, match="budget_usd is for a job that is run"):
        Job.parse(fields | {"budget_usd": 20})
    with pytest.raises(InputError, match="has nothing to run"):
        sweep_of(Job.parse(fields))
    with pytest.raises(InputError, match="machines that work alone"):
        sweep_of(Job.parse(fields | {"command": "python x.py", "coupling": "independent"}))


@pytest.mark.parametrize(
    ("machines", "least", "most"),
    [(1, 1, 1), (4, 4, 4), ({"min": 2, "max": 8}, 2, 8), ({"min": 3, "max": 3}, 3, 3)],
)
def test_machines_are_all_or_none_or_a_range(machines: Any, least: int, most: int) -> None:
    fields = {"name": "x", "steps": 10, "steps_per_hour": {"c3.xlarge": 1}, "machines": machines}
    job = Job.parse(fields)
    assert (job.least_machines, job.most_machines) == (least, most)
    again = Job.parse(job.model_dump(mode="json"))
    assert again == job
    # Machines that work alone wait for no others.
    assert Job.parse(fields | {"coupling": "independent"}).least_machines == 1
    assert sweep_of(Job.parse(fields | {"command": "python x.py"})).live_jobs()[0].machines == job.machines


@pytest.mark.parametrize(
    ("machines", "problem"),
    [
        ({"min": 4, "max": 2}, "field machines: min 4 is more than max 2"),
        ({"min": 2}, "field machines.max: missing"),
        ({"least": 2, "max": 4}, "machines.least: unknown field"),
        (0, "field machines: 0 is no number of machines from 1 to 10,000; for example `machines: 4` for four"),
        ("four", "field machines: 'four' is no number of machines"),
        (True, "field machines: True is no number of machines"),
    ],
)
def test_what_is_no_number_of_machines_is_told(machines: Any, problem: str) -> None:
    fields = {"name": "x", "steps": 10, "steps_per_hour": {"c3.xlarge": 1}, "machines": machines}
    with pytest.raises(InputError) as told:
        Job.parse(fields)
    assert problem in str(told.value) + " ".join(told.value.problems)


def test_wrong_fields_are_told_all_at_once_to_python_too() -> None:
    with pytest.raises(InputError) as told:
        Job(name="x", steps=-1, stepz=3)  # type: ignore[call-arg]
    assert told.value.problem == "2 problems"
    first, second = told.value.problems
    assert first.startswith("field steps: Input should be greater than 0; for example")
    assert second.startswith("field stepz: unknown field; did you mean steps?")
    with pytest.raises(InputError, match="^field steps: "):
        Job(name="x", steps=0)
