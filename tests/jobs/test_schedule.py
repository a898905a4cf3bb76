"""When a job is due, and what its file says."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.base.utc import DAY_S, from_epoch_s, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.jobs.schedule import DueContent, DueJob, Schedule, due_at_s, read_due_jobs

BEGAN_S = to_epoch_s("2026-02-20T00:00:00Z")
CRONS = ("0 2 * * *", "*/7 * * * *", "0 0 29 2 *", "30 4 1,15 * 5", "0 12 * * MON-FRI", "15 3 L * *")
nights = st.lists(st.floats(0, 40 * DAY_S), min_size=1, max_size=30).map(
    lambda after: [BEGAN_S + one for one in sorted(after)]
)


def simulated(schedule: Schedule, times_s: list[float]) -> list[tuple[float, float]]:
    """Each time at which a run began, and the time for which."""
    found: list[tuple[float, float]] = []
    for now_s in times_s:
        due_s = due_at_s(schedule, found[-1][1] if found else None, now_s)
        if due_s is not None:
            found.append((now_s, due_s))
            # Asked again at the same moment, as by a night that was killed and started again, nothing is due.
            assert due_at_s(schedule, due_s, now_s) is None
    return found


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CRONS), nights)
def test_no_time_is_run_twice_and_none_is_missed(cron: str, times_s: list[float]) -> None:
    runs = simulated(Schedule(schedule=cron), times_s)
    assert len({due_s for _, due_s in runs}) == len(runs)
    assert all(due_s <= now_s for now_s, due_s in runs)
    # Each time of the schedule between the first run and the last night was answered for at the next night.
    wanted = CronSim(cron, from_epoch_s(runs[0][1]))
    while (scheduled_s := next(wanted).timestamp()) <= times_s[-1]:
        night_s = next(now_s for now_s in times_s if now_s >= scheduled_s)
        assert any(now_s == night_s and due_s >= scheduled_s for now_s, due_s in runs)
    # And there is no run without a new time.
    for (before_s, _), (_, due_s) in itertools.pairwise(runs):
        assert due_s > before_s


def test_a_job_that_missed_several_times_is_run_once_for_the_last() -> None:
    daily = Schedule(schedule="0 2 * * *")
    last_s = to_epoch_s("2026-03-01T02:00:00Z")
    now_s = to_epoch_s("2026-03-05T03:00:00Z")
    assert due_at_s(daily, last_s, now_s) == to_epoch_s("2026-03-05T02:00:00Z")
    assert due_at_s(daily, to_epoch_s("2026-03-05T02:00:00Z"), now_s) is None
    # At the very second it is due; before the first time of all it is due for the time before.
    assert due_at_s(daily, last_s, to_epoch_s("2026-03-02T02:00:00Z")) == to_epoch_s("2026-03-02T02:00:00Z")
    assert due_at_s(daily, last_s, to_epoch_s("2026-03-02T01:59:59.9Z")) is None
    assert due_at_s(daily, None, to_epoch_s("2026-03-02T01:00:00Z")) == last_s


def test_a_job_that_is_due_once_is_due_once() -> None:
    once = Schedule.model_validate({"once": "2026-11-22T02:00"})
    assert once.once == datetime(2026, 11, 22, 2, tzinfo=UTC)
    at_s = to_epoch_s("2026-11-22T02:00:00Z")
    assert due_at_s(once, None, at_s - 1) is None
    assert due_at_s(once, None, at_s + DAY_S) == at_s
    assert due_at_s(once, at_s, at_s + DAY_S) is None
    # Another time, written into the file later, is another run.
    assert due_at_s(once, at_s - DAY_S, at_s) == at_s


def write(folder: Path, text: str, name: str = "small.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_names_a_job_or_holds_one(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    write(tmp_path / "code", "command: python train.py\nbudget_usd: 3\n", "job.yaml")
    job = DueJob.read(
        write(
            tmp_path, "run: code/job.yaml\nschedule: 0 2 * * *\ndeadline_h: 5\nmodels: models\npolicy: deadline\n"
        )
    )
    sweep = job.sweep()
    assert (job.name, sweep.budget_usd, sweep.deadline_h) == ("small", 3.0, 5.0)
    assert (job.code, job.path("models"), job.path("prices")) == (tmp_path / "code", tmp_path / "models", None)
    inline = DueJob.read(
        write(
            tmp_path,
            "run: {command: python train.py}\nonce: 2026-11-22T02:00:00+02:00\nbudget_usd: 1\nfolder: code\n",
        )
    )
    assert (inline.sweep().budget_usd, inline.code) == (1.0, tmp_path / "code")
    assert inline.content.latest_s(to_epoch_s("2027-01-01T00:00:00Z")) == to_epoch_s("2026-11-22T00:00:00Z")


def test_the_name_of_a_run_says_which_job_and_when(tmp_path: Path) -> None:
    job = DueJob.read(write(tmp_path, "run: x.yaml\nschedule: 0 2 * * *\n"))
    due_s = to_epoch_s("2026-03-02T02:00:00Z")
    assert job.run_id(due_s) == "small-20260302-020000"
    assert job.due_s_of("small-20260302-020000") == due_s
    for other in (
        "small-2-20260302-020000",
        "small-20260302-020000-123",
        "small-99999999-999999",
        "other-20260302-020000",
    ):
        assert job.due_s_of(other) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("schedule: 0 2 * * *\n", "field run: missing; write `run: ../examples/live/job.yaml`"),
        ("run: x.yaml\n", "one of schedule and once is needed"),
        ("run: x.yaml\nschedule: 0 2 * * *\nonce: 2026-11-22T02:00\n", "one of schedule and once is needed"),
        ("run: x.yaml\nschedule: 0 26 * * *\n", "field schedule: '0 26 .*' is no cron expression.*Bad hour"),
        ("run: x.yaml\nschedule: 0 0 31 2 *\n", "field schedule: '0 0 31 2 .*' is no cron expression"),
        ("run: x.yaml\nschedule: 0 0 2 * * *\n", "field schedule: .* five fields are needed"),
        ("run: x.yaml\nonce: tomorrow\n", "field once: .*for example `once: '2026-11-22T02:00'"),
        ("run: x.yaml\nschedule: 0 2 * * *\nbudget: 3\n", "field budget: unknown field; did you mean budget_usd"),
        ("run: x.yaml\nschedule: 0 2 * * *\nprovider: azure\n", "field provider: Input should be 'local', 'ec2'"),
        ("run: x.yaml\nschedule: 0 2 * * *\nprovider: ec2\n", "provider ec2 needs machines"),
        ("run: x.yaml\nschedule: 0 2 * * *\nstart: 2026-01-01\n", "field start"),
        ("run: x.yaml\nschedule: 0 2 * * *\nmachines: m.yaml\n", "machines: not for provider local"),
        ("run: x.yaml\nschedule: 0 2 * * *\nspeed: .inf\n", "field speed: Input should be a finite number"),
        ("run: x.yaml\nonce: 20261122\n", "field once: 20261122 is a number; a time is written as"),
        ("- x\n", "holds no due job"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_field(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError, match=f"^{tmp_path}/small.yaml.*{problem}") as error:
        DueJob.read(write(tmp_path, text))
    assert "\n" not in str(error.value)


def test_what_is_wrong_within_a_job_is_said_when_it_is_read(tmp_path: Path) -> None:
    job = DueJob.read(write(tmp_path, "run: {comand: python x.py}\nschedule: 0 2 * * *\n"))
    with pytest.raises(InputError, match="small.yaml, field run.comand: unknown field; did you mean command"):
        job.sweep()
    job = DueJob.read(write(tmp_path, "run: nowhere.yaml\nschedule: 0 2 * * *\n"))
    with pytest.raises(InputError, match="nowhere.yaml"):
        job.sweep()
    with pytest.raises(InputError, match="is no name of a job"):
        DueJob.read(write(tmp_path, "run: x.yaml\n", "a job.yaml"))


def test_a_wrong_file_leaves_the_others(tmp_path: Path) -> None:
    write(tmp_path, "run: x.yaml\nschedule: 0 2 * * *\n", "good.yaml")
    bad = write(tmp_path, "run: x.yaml\n", "bad.yaml")
    write(tmp_path, "not a job", "notes.txt")
    jobs, problems = read_due_jobs(tmp_path)
    assert [job.name for job in jobs] == ["good"]
    assert list(problems) == [str(bad)]
    # Neither another suffix nor a link that leads nowhere is passed over.
    other = write(tmp_path, "run: x.yaml\n", "other.yml")
    lost = tmp_path / "lost.yaml"
    lost.symlink_to(tmp_path / "nowhere")
    assert sorted(read_due_jobs(tmp_path)[1]) == sorted(map(str, (bad, other, lost)))
    with pytest.raises(InputError, match="there is no such folder of jobs"):
        read_due_jobs(tmp_path / "none")
    assert set(DueContent.model_fields) >= {"run", "schedule", "once", "policy", "provider", "models"}
