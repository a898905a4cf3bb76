"""Figures of rehearsals from made-up reports, worked out by hand; and which work can be rehearsed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ebbtide.agent.protocol import Noticed, Restored, Saved, Stepped, Up
from ebbtide.errors import InputError
from ebbtide.jobs.job_list import one_job
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.sweep import Sweep
from ebbtide.runs.rehearsal import failure_of, notice_of, rehearsable
from ebbtide.runs.rehearsal_figures import Records, Stopped, rehearsed

# A program starts at 100 s, does its first step by 104 s and then one every 2 s; the notice of 120 s comes at 121 s,
# after step 9. It saves step 4 as it trains, and step 10 once it is asked to.
STEPS = tuple(Stepped("t", 1, step, 102.0 + 2.0 * step) for step in range(1, 11))
EARLY = Saved("t", 1, 4, 1, 1000, written_s=112.0, stored_s=113.0, save_s=0.5)
LAST = Saved("t", 1, 10, 2, 1200, written_s=124.0, stored_s=127.0, save_s=1.5)
FIRST = (Up(), Restored("t", 1, 0, 0, 100.0), Stepped("t", 1, 0, 103.0), *STEPS, EARLY, Noticed(241.0), LAST)
SECOND = (Up(), Restored("t", 2, 10, 2, 129.0), Stepped("t", 2, 10, 132.0), Stepped("t", 2, 11, 135.5))
RECORDS = Records(120.0, FIRST, SECOND, 128.0, 7500.0)


def test_a_whole_rehearsal() -> None:
    found = rehearsed(RECORDS)
    assert (found.start_s, found.step_s, found.checkpoint_bytes) == (4.0, 2.0, 1200)
    assert (found.written_s, found.stored_s) == (3.0, 6.0)
    assert (found.steps_at_notice, found.steps_resumed) == (9, 10)
    assert (found.steps_lost, found.work_lost_s) == (0, 0.0)
    # Since step 4, which was stored at 113 s.
    assert (found.steps_lost_without, found.work_lost_without_s) == (5, 10.0)
    # Young's: the square root of 2 x 1.5 s x 7500 s.
    assert found.interval_s == pytest.approx(150.0)
    assert found.restart_s == 7.5
    assert [(one.cloud, one.notice_s, one.used) for one in found.clouds] == [
        ("EC2", 120.0, 0.05),
        ("Google", 30.0, 0.2),
        ("Azure", 30.0, 0.2),
    ]
    assert found.is_good
    assert found.verdict == (
        "saving takes 6.0 s, 20% of the shortest notice (30 s): a revocation with a notice costs at most the "
        "current step and 7.5 s to train again"
    )
    assert found.as_plain()["verdict"] == found.verdict


def test_a_program_that_begins_again_is_believed_not_what_was_put_into_its_folder() -> None:
    again = (
        Up(),
        Restored("t", 2, 10, 2, 129.0),
        *(Stepped("t", 2, max(at, 10), 130.0, at) for at in range(1, 12)),
    )
    found = rehearsed(replace(RECORDS, second=again))
    assert (found.began_again_at, found.steps_lost, found.work_lost_s) == (1, 10, 20.0)
    assert not found.is_good
    assert found.verdict.startswith(
        "the program began again with step 1, though the checkpoint of step 10 was in its folder"
    )
    # One that tells the step it resumed from, or goes on with the next, has found its checkpoint.
    for first in (10, 11, 20):
        went_on = rehearsed(replace(RECORDS, second=(*again[:2], Stepped("t", 2, first, 130.0, first))))
        assert (went_on.began_again_at, went_on.steps_lost) == (None, 0)


def test_a_failure_after_the_resumption_is_one() -> None:
    found = rehearsed(replace(RECORDS, stopped=Stopped.FAILED, failure="OSError: no (a.py, line 3)", failed_on=2))
    assert not found.is_good
    assert found.verdict == (
        "the program failed on the new machine, after its checkpoint was put into its folder: OSError: no (a.py, "
        "line 3); have it resume from a folder that was copied to another machine"
    )


def test_a_failure_names_the_line_of_the_user_s_code() -> None:
    tail = [
        "Traceback (most recent call last):",
        '  File "/w/t-1/code/src/train.py", line 9, in <module>',
        '  File "/usr/lib/python3.11/pathlib.py", line 1058, in read_text',
        "FileNotFoundError: optimizer.json",
        "",
    ]
    assert failure_of(tail) == "FileNotFoundError: optimizer.json (src/train.py, line 9)"
    assert failure_of(tail[3:]) == "FileNotFoundError: optimizer.json"
    assert failure_of([]) == ""


def test_saving_longer_than_some_notices() -> None:
    slow = replace(LAST, written_s=150.0, stored_s=162.0)
    found = rehearsed(replace(RECORDS, first=(*FIRST[:-1], slow)))
    assert (found.stored_s, [one.fits for one in found.clouds]) == (41.0, [True, False, False])
    # It fits the notice that was rehearsed, and the verdict warns of the others.
    assert found.is_good
    assert found.verdict.startswith(
        "saving takes 41.0 s: more than Google's notice of 30 s and Azure's notice of 30"
    )
    assert "loses up to 150 s of work since the last save" in found.verdict
    # The notice of the same length that was too short.
    short = (*FIRST[:-2], Noticed(151.0), slow)
    assert not rehearsed(replace(RECORDS, first=short, notice_s=30.0)).is_good


def test_a_program_that_does_not_save_at_a_notice() -> None:
    second = (Restored("t", 2, 4, 1, 245.0), Stepped("t", 2, 5, 250.0))
    found = rehearsed(replace(RECORDS, first=FIRST[:-1], second=second))
    assert (found.written_s, found.stored_s, found.clouds) == (None, None, ())
    assert (found.steps_lost, found.work_lost_s) == (6, 12.0)
    assert not found.is_good
    assert found.verdict.startswith("6 steps (12.0 s of work) are lost in spite of a notice of 120 s")


def test_a_program_that_saves_by_itself_loses_the_current_step() -> None:
    saves = tuple(Saved("t", 1, step, step, 9, written_s=102.5 + 2 * step, stored_s=103.0) for step in (8, 9, 10))
    first = (*FIRST[:-3], *saves, Noticed(244.0))
    found = rehearsed(replace(RECORDS, first=first))
    assert (found.stored_s, found.steps_lost, found.interval_s, found.is_good) == (None, 0, 2.0, True)
    assert "had nothing to save at the notice" in found.verdict


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        (replace(RECORDS, first=(*FIRST[:-3], FIRST[-2])), "made no checkpoint"),
        (replace(RECORDS, first=FIRST[:2], second=(), stopped=Stopped.NO_STEP), "never reported a step"),
        (replace(RECORDS, second=(), stopped=Stopped.FINISHED), "smaller `--after-s`"),
        (replace(RECORDS, stopped=Stopped.FAILED, failure="KeyError: 1"), "the program failed: KeyError: 1; "),
        (replace(RECORDS, second=SECOND[:2], stopped=Stopped.NOT_RESUMED), "did not go on from its checkpoint"),
        (replace(RECORDS, second=()), "did not go on from its checkpoint"),
        (replace(RECORDS, stopped=Stopped.NOT_SAVED), "did not save again, though it saved before"),
        (Records(30.0, (), (), math.nan, 7500.0, Stopped.NO_STEP), "never reported a step"),
    ],
)
def test_what_went_wrong_is_told_with_what_to_do(records: Records, problem: str) -> None:
    found = rehearsed(records)
    assert problem in found.verdict
    assert not found.is_good


def test_of_a_sweep_its_first_trial_is_rehearsed_without_what_restricts_it() -> None:
    content = {
        "name": "some",
        "command": "python train.py --lr {lr}",
        "grid": {"lr": [0.3, 0.1]},
        "metric": "loss",
        "max_trial_steps": 50,
        "budget_usd": 3,
        "deadline_h": 1,
        "accelerators": "A100:8",
        "billing": "gcp-spot",
    }
    work = validated(Sweep, content)
    found = rehearsable(work)
    (trial,) = found.trials()
    assert found.command_line(trial) == work.command_line(work.trials()[0])
    assert (found.budget_usd, found.deadline_h, found.accelerators) == (None, None, None)
    assert notice_of(work) == 30.0


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"machines": 4}, "machines"),
        ({"tasks": ["1", "2"], "command": "python part.py {task}"}, "tasks"),
        ({"framework": "spark"}, "framework"),
    ],
)
def test_what_cannot_be_rehearsed_is_told(changed: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as told:
        rehearsable(one_job({"name": "one", "command": "python train.py"} | changed))
    assert told.value.field == field


def test_a_billing_without_a_notice_needs_a_length() -> None:
    with pytest.raises(InputError, match="--notice-s 120"):
        notice_of(validated(Sweep, {"name": "one", "command": "python train.py", "billing": "per-second"}))


def test_a_checkpoint_that_holds_somewhat_less_than_was_thought_was_found_all_the_same() -> None:
    second = (*RECORDS.second[:2], Stepped("t", 2, 10, 130.0, 9))
    found = rehearsed(replace(RECORDS, second=second))
    assert found.began_again_at is None
    assert found.steps_lost == 2
