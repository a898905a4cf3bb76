from pathlib import Path

import pytest

from ebbtide.errors import InputError
from ebbtide.jobs.job import Amdahl, Job, SpeedupTable
from ebbtide.market.catalogue import default_catalogue

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
        (GOOD + "colour: red\n", "job.yaml, field colour: unknown field; known: checkpoint"),
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
    assert job.steps_per_s("aws", "c3.xlarge", catalogue) == 1.0
    assert job.steps_per_s("aws", "r3.large", catalogue) == 0.0
    by_core = Job(name="a", steps=1, steps_per_hour={"c3.xlarge": 3600}, other_steps_per_hour_per_vcpu=1800)
    assert by_core.steps_per_s("aws", "c3.xlarge", catalogue) == 1.0
    assert by_core.steps_per_s("aws", "r3.large", catalogue) == 1.0


def test_speedups() -> None:
    assert Amdahl(parallel=1.0).speedup(8) == pytest.approx(8)
    assert Amdahl(parallel=0.5).speedup(2) == pytest.approx(4 / 3)
    table = SpeedupTable(table={2: 1.9, 4: 3.5})
    assert [table.speedup(n) for n in (1, 2, 3, 4, 9)] == pytest.approx([1.0, 1.9, 2.7, 3.5, 3.5])
    assert Job(name="a", steps=1, steps_per_hour={"c3.xlarge": 1}).speedup_of(3) == 3.0
