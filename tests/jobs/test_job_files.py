"""Any command reads any file of work: jobs, trainings and sweeps, and says what it cannot use."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ebbtide.errors import InputError
from ebbtide.jobs.job import Job
from ebbtide.jobs.job_files import FileKind, kind_of, measured, read_jobs, read_sweep, read_work
from ebbtide.jobs.one_training import folder_below, literal, name_of, sweep_of
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.markets import Market, Place

EXAMPLES = Path(__file__).parents[2] / "examples"
KNOWN = {"steps": 100, "steps_per_hour": {"c3.xlarge": 10}}
SWEEP = {"name": "s", "command": "x {lr}", "grid": {"lr": [1, 2]}, "metric": "loss", "max_trial_steps": 7}


def file(tmp_path: Path, **content: object) -> Path:
    path = tmp_path / "work.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_command_alone_is_a_training(tmp_path: Path) -> None:
    sweep = read_sweep(file(tmp_path, command="python train.py --epochs 10"), to_run=True)
    (trial,) = sweep.trials()
    assert (sweep.name, sweep.metric, sweep.max_trial_steps, trial.values) == ("train", None, None, {})
    assert sweep.arguments(trial) == ("python", "train.py", "--epochs", "10")
    (job,) = sweep.live_jobs()
    # Twice the cores are faster, and less than twice as fast.
    rates = [
        job.steps_per_s(Market("aws", "us-east-1", "us-east-1a", f"c5.{size}"), default_catalogue())
        for size in ("xlarge", "2xlarge")
    ]
    assert rates[0] < rates[1] < 2 * rates[0]
    # What was written down is read again.
    assert Sweep.model_validate(sweep.model_dump(mode="json")) == sweep


def test_a_job_with_a_command_is_run_planned_and_replayed(tmp_path: Path) -> None:
    path = file(tmp_path, command=["python", "my train.py"], **KNOWN)
    assert read_sweep(path, to_run=True).max_trial_steps == 100
    (job,) = read_jobs(path)
    assert (job.name, job.steps, job.steps_per_hour) == ("my train", 100, {"c3.xlarge": 10})
    (job,) = read_jobs(file(tmp_path, command="x", machines=2, **KNOWN))
    assert job.machines == 2


def test_a_job_is_planned_and_a_sweep_is_replayed(tmp_path: Path) -> None:
    job = read_sweep(EXAMPLES / "one-day.yaml")
    assert (job.max_trial_steps, len(job.trials()), len(job.jobs())) == (24_000, 1, 1)
    jobs = read_jobs(file(tmp_path, **SWEEP, steps_per_hour={"c3.xlarge": 10}))
    assert [(job.name, job.steps) for job in jobs] == [("s-0", 7), ("s-1", 7)]
    # Whoever has written a job knows the number of steps by that name.
    renamed = {("steps" if key == "max_trial_steps" else key): value for key, value in SWEEP.items()}
    assert read_sweep(file(tmp_path, **renamed)).max_trial_steps == 7


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        ({"command": "x", "stepz": 5}, ["field stepz: unknown field; did you mean steps?"]),
        ({"comand": "x"}, ["field comand: unknown field; did you mean command?"]),
        (
            {"command": "x", "checkpoint": {"save": 3}},
            ["field checkpoint.save: unknown field; did you mean save_s?"],
        ),
        ({"stepz": 5}, ["field name: missing; write `name: my-training`", "field stepz: .* did you mean steps"]),
        ({"name": "a"}, ["field steps: missing; write `steps: 24000`"]),
        (
            {"command": "x", "cpus": -1, "memory_gib": "much", "markets": {"region": ["a"]}, "budget": 3},
            [
                "field cpus: .*for example `cpus: 4`",
                "field memory_gib: .*number",
                "field markets.region: .*regions",
                "field budget: .*did you mean budget_usd",
            ],
        ),
        ({"command": "x"}, ["the speed of job x is not measured: write `steps_per_hour", "write `steps: 24_000`"]),
        ({"jobs": [{"name": "a", "work_h": 1}]}, ["is a workflow"]),
        ({"program": "gnmf"}, ["field rows: missing", "field columns: missing"]),
        ({"command": "x {lr}"}, ["command asks for {lr}; no grid, list or random gives values"]),
        ({"command": "x", "checkpoints": "../up"}, ["no folder below the one in which the program runs"]),
        ({"command": "x", "accelerators": "V1000:1"}, ["unknown accelerator 'V1000' .did you mean 'V100'"]),
        ({"command": "x", "accelerators": "V100:3"}, ["no instance type has 3 of V100; there are types with 1, "]),
        ({"command": "x", "accelerators": "V100:x"}, ["are not of the form NAME:NUMBER"]),
        ({"command": "x", "memory_gib": 1e9}, ["no instance type has 1e.09 GiB of memory"]),
        ({"grid": {"lr": [1]}, "command": "x {lr}"}, ["field name: missing; write `name: my-sweep`"]),
        (
            {**SWEEP, "metric": None},
            ["trials are compared by a metric as they train: write `metric: validation_loss`"],
        ),
        ({"name": "a", "steps": 5}, ["needs steps_per_hour for some instance type.*`ebbtide run` measures it"]),
    ],
)
def test_all_that_is_wrong_is_told_at_once(
    tmp_path: Path, content: dict[str, object], problems: list[str]
) -> None:
    with pytest.raises(InputError) as told:
        read_jobs(file(tmp_path, **content))
    lines = str(told.value).splitlines()
    assert lines[0].startswith(str(tmp_path / "work.yaml"))
    for problem in problems:
        with pytest.raises(InputError, match=problem):
            raise told.value
    assert len(lines) <= 1 + len(problems)
    assert len(told.value.problems) in (0, len(problems))


def test_a_file_without_a_program_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="field command: missing; .*write `command: python train.py`"):
        read_sweep(file(tmp_path, name="a", **KNOWN), to_run=True)
    with pytest.raises(InputError, match="machines that work alone"):
        read_sweep(file(tmp_path, name="a", machines=4, coupling="independent", **KNOWN))
    assert read_sweep(file(tmp_path, name="a", machines=4, **KNOWN)).machines == 4


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"command": "x"}, FileKind.TRAINING),
        ({"command": "x", "list": []}, FileKind.SWEEP),
        ({"steps": 1}, FileKind.JOB),
    ],
)
def test_what_a_file_is(content: dict[str, object], kind: FileKind) -> None:
    assert kind_of(content) is kind


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            {"spark": "x.py", "command": "y"},
            "field command: the file is read as a Spark application because of `spark`",
        ),
        (
            {"spark": "x.py", "dask": "y.py"},
            "field dask: .*because of `spark`; `dask` is for a program that uses Dask",
        ),
        ({"tasks": 3, "spark": "x.py"}, "field spark: .*an array because of `tasks`; `spark` is for a Spark"),
        ({"program": "rsvd", "command": "x"}, "field command: .*a matrix program because of `program`; `command`"),
        (
            {"command": "x {task}", "tasks": 3, "grid": {"lr": [1]}},
            "field grid: .*an array .*; `grid` is for a sweep",
        ),
        (
            {"grid": {"lr": [1]}, "program": "rsvd"},
            "field program: .*a sweep because of `grid`; `program` is for a",
        ),
    ],
)
def test_a_file_of_two_kinds_is_told_what_it_is_read_as(
    tmp_path: Path, content: dict[str, object], problem: str
) -> None:
    path = file(tmp_path, **content)
    for read in (read_sweep, read_work):
        with pytest.raises(InputError, match=problem) as told:
            read(path)
        assert str(told.value).startswith(f"{path}, field ")
        assert "\n" not in str(told.value)


def test_an_empty_application_is_told_by_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="spark is empty"):
        read_sweep(file(tmp_path, spark=""))


def test_arguments_of_a_command_line_stay_as_they_are() -> None:
    odd = [
        "python",
        "a b.py",
        "--json",
        '{"lr": 1}',
        "",
        "$(rm -rf x)",
        "{checkpoint_dir}/last",
        "it's",
        "{max_stepz}",
    ]
    sweep = Sweep(name="s", command=[literal(argument) for argument in odd])
    assert list(sweep.arguments(sweep.trials()[0])) == odd


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --epochs 3", "train"),
        ("torchrun --nproc-per-node 2 src/fit.py", "fit"),
        ("python -m pkg.fit 3", "fit"),
        ("./go", "go"),
        ("python", "training"),
    ],
)
def test_a_training_is_named_by_its_program(command: str, name: str) -> None:
    assert name_of(command.split()) == name


def test_the_folder_of_checkpoints_lies_below_the_program(tmp_path: Path) -> None:
    assert folder_below(Path("out/ckpt"), tmp_path) == "out/ckpt"
    assert folder_below(tmp_path / "ckpt", tmp_path) == "ckpt"
    for elsewhere in (tmp_path, tmp_path.parent / "other", Path("../up"), Path(".")):
        with pytest.raises(InputError, match="no folder below"):
            folder_below(elsewhere, tmp_path)


def test_what_has_no_program_is_told_so_before_its_speed(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: x\nsteps: 100\n")
    with pytest.raises(InputError, match="nothing to run: write `command"):
        read_sweep(tmp_path / "job.yaml", to_run=True)


SPEEDS = {"s": {"steps_per_hour": {"c3.xlarge": 10.0, "r3.large": 4.0}, "other_steps_per_hour_per_vcpu": 2.0}}


def test_measured_speeds_stand_for_what_a_file_does_not_say(tmp_path: Path) -> None:
    path = file(tmp_path, **SWEEP)
    with pytest.raises(InputError, match="steps_per_hour"):
        read_work(path)
    (job, _) = read_work(path, speeds=SPEEDS).jobs
    assert (job.steps_per_hour, job.other_steps_per_hour_per_vcpu) == ({"c3.xlarge": 10.0, "r3.large": 4.0}, 2.0)
    # What is written down stays.
    own = file(tmp_path, **SWEEP, steps_per_hour={"c3.xlarge": 7}, other_steps_per_hour_per_vcpu=3)
    sweep = read_sweep(own, speeds=SPEEDS)
    assert sweep.steps_per_hour == {"c3.xlarge": 7.0, "r3.large": 4.0}
    assert sweep.other_steps_per_hour_per_vcpu == 3.0
    assert not read_sweep(file(tmp_path, **{**SWEEP, "name": "other"}), speeds=SPEEDS).is_measured


def test_a_job_object_gets_them_too() -> None:
    job = Job(name="s", command="python train.py", steps=9)
    assert measured(job, SPEEDS).steps_per_hour == {"c3.xlarge": 10.0, "r3.large": 4.0}
    assert measured(job, {}) is job


@pytest.mark.parametrize(
    "content",
    [
        {"command": "x", **KNOWN},
        {**SWEEP, "steps_per_hour": {"c3.xlarge": 10}},
        {"name": "a", **KNOWN},
        {"command": "x {task}", "tasks": 5, "steps_per_hour": {"c3.xlarge": 10}},
        {"spark": "app.py", **KNOWN},
        {"dask": "app.py", **KNOWN},
        {"program": "gnmf", "parameters": {"rows": 2, "columns": 2, "tile": 8}, "task_s": {"c3.xlarge": 1.0}},
    ],
)
def test_every_job_has_a_bucket_if_its_file_says_so(tmp_path: Path, content: dict[str, object]) -> None:
    path = file(tmp_path, **content, bucket={"cloud": "gcp", "region": "europe-west4"})
    place = Place("gcp", "europe-west4")
    assert {job.bucket.place if job.bucket else None for job in read_jobs(path)} == {place}
    assert {job.bucket.place if job.bucket else None for job in read_sweep(path).live_jobs()} == {place}
    with pytest.raises(InputError, match="field bucket.cloud: 'local' has no egress prices here"):
        read_jobs(file(tmp_path, **content, bucket={"cloud": "local", "region": "here"}))


def test_a_training_on_one_machine_may_fill_a_part_of_it_and_no_other_job(tmp_path: Path) -> None:
    one = read_sweep(file(tmp_path, command="python train.py", share=0.5))
    (job,) = one.live_jobs()
    assert (one.share, job.share) == (0.5, 0.5)
    assert [job.share for job in read_sweep(file(tmp_path, **SWEEP, share=0.25)).live_jobs()] == [0.25, 0.25]
    assert read_sweep(file(tmp_path, name="a", share=0.5, **KNOWN)).share == 0.5
    assert [job.share for job in read_jobs(file(tmp_path, name="a", share=0.5, **KNOWN))] == [0.5]
    assert sweep_of(Job(command="python train.py", share=0.5)).share == 0.5
    full = "share 0.5 is for trainings on one machine; machines of {} are each filled whole"
    for content, what in (
        ({"command": "x", "machines": 2}, "one job"),
        ({"command": "x", "machines": {"min": 1, "max": 2}}, "one job"),
        ({"command": "x {task}", "tasks": 3, "machines": 2}, "an array"),
        ({"spark": "app.py", "machines": 2}, "a cluster"),
        ({"dask": "app.py", "machines": 2}, "a cluster"),
        (yaml.safe_load((EXAMPLES / "matrix" / "rsvd.yaml").read_text()), "a cluster"),
    ):
        with pytest.raises(InputError, match=full.format(what)):
            read_sweep(file(tmp_path, **content, share=0.5))
    for share in (0, 1.5, "half"):
        with pytest.raises(InputError, match="share"):
            read_sweep(file(tmp_path, command="x", share=share))
