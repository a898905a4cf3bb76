"""Several trainings on one machine: each in its part, none disturbs another, and the machine's end is that of all."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.agent.test_agent import PROGRAM, Machine, machine, metadata
from tests.runs.sweeps import PROGRAM as SUMS
from tests.runs.sweeps import total
from tests.waiting import LIMIT_S, eventually

from ebbtide.agent.agent import _in_force
from ebbtide.agent.config import Assignment
from ebbtide.agent.core_shares import MachineParts
from ebbtide.agent.process_tree import MACHINE as MARK
from ebbtide.agent.process_tree import processes_with
from ebbtide.agent.protocol import Leave, Train
from ebbtide.agent.work import SavingTimes
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.testing.metadata_server import MetadataServer

pytestmark = pytest.mark.usefixtures("processes")

__all__ = ["machine", "metadata"]

HALF = {"share": 0.5}


def kinds(rented: Machine, trial: str) -> list[str]:
    return [told["type"] for told in rented.told if told.get("trial") == trial and told["type"] != "log"]


def of(rented: Machine, kind: str, trial: str, **wanted: Any) -> dict[str, Any]:
    """The next report of a kind about a trial, whatever is told of others meanwhile."""
    while True:
        told = rented.until(kind, **wanted)
        if told["trial"] == trial:
            return told


def both(rented: Machine, steps: int = 4000) -> None:
    """Two trainings side by side, under way."""
    rented.train(PROGRAM, "--steps", steps, "--step-s", 0.02, steps=steps, **HALF)
    rented.train(PROGRAM, "--steps", steps, "--step-s", 0.02, steps=steps, trial="t-2", beside=["t-1"], **HALF)
    of(rented, "step", "t-2", step=5)


def test_two_train_at_the_same_time_and_neither_changes_the_other(machine: Machine, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SUMS)
    for trial, beside, rate in (("t-1", [], 0.1), ("t-2", ["t-1"], 0.2)):
        machine.train(*(program, "{checkpoint_dir}", 300, rate), trial=trial, steps=300, beside=beside, **HALF)
    ends = [machine.until("finished")["trial"], machine.until("finished")["trial"]]
    assert sorted(ends) == ["t-1", "t-2"]
    told = [(n, each) for n, each in enumerate(machine.told) if each["type"] == "step"]
    first, last = ({each["trial"]: n for n, each in order} for order in (told[::-1], told))
    assert max(first.values()) < min(last.values())
    said = {each["trial"]: each["line"] for each in machine.told if each.get("line", "").startswith("total")}
    assert said == {"t-1": f"total {total(0.1, 300)}", "t-2": f"total {total(0.2, 300)}"}


def test_one_that_leaves_before_its_program_began_kills_none_beside_it(machine: Machine) -> None:
    machine.train(PROGRAM, "--steps", 4000, "--step-s", 0.02, steps=4000, **HALF)
    began = machine.until("step", step=5)["step"]
    # Its checkpoint is not there yet: it is waited for.
    machine.train(PROGRAM, "--steps", 20, trial="t-2", steps=20, beside=["t-1"], expected=7, **HALF)
    while "no checkpoint 7" not in machine.until("log")["line"]:
        pass
    machine.order("leave", attempt=1, trial="t-2")
    of(machine, "left", "t-2")
    of(machine, "step", "t-1", step=began + 50)
    assert not {"failed", "left"}.intersection(kinds(machine, "t-1"))


def test_the_next_waits_for_the_room_of_the_one_that_leaves_and_the_third_trains_on(machine: Machine) -> None:
    both(machine)
    machine.order("leave", attempt=1, trial="t-1")
    machine.train(PROGRAM, "--steps", 20, trial="t-3", steps=20, beside=["t-2"], **HALF)
    assert of(machine, "finished", "t-3")["step"] == 20
    order = [(told["trial"], told["type"]) for told in machine.told if told["type"] in ("left", "restored")]
    assert order.index(("t-1", "left")) < order.index(("t-3", "restored"))
    assert "left" not in kinds(machine, "t-2")
    machine.receive()
    assert kinds(machine, "t-2")[-1] in ("step", "saved")


def test_whoever_is_not_named_leaves_as_for_controllers_that_know_nothing_of_sharing(machine: Machine) -> None:
    both(machine)
    machine.train(PROGRAM, "--steps", 20, trial="t-3", steps=20)
    assert {machine.until("left")["trial"], machine.until("left")["trial"]} == {"t-1", "t-2"}
    assert machine.until("finished")["trial"] == "t-3"


def test_an_order_concerns_the_trial_that_it_names_and_not_another_of_its_number(machine: Machine) -> None:
    """A hand-over once ended the next training, whose first assignment had the number of the one that had left."""
    both(machine)
    machine.order("leave", attempt=1, trial="t-1")
    of(machine, "left", "t-1")
    machine.order("leave", attempt=1, trial="t-1", reported=True)
    machine.order("save", trial="t-2")
    of(machine, "saved", "t-2")
    machine.order("repeat")
    of(machine, "left", "t-1")
    machine.receive()
    assert "left" not in kinds(machine, "t-2")
    assert kinds(machine, "t-1").count("left") == 2


def test_at_a_notice_all_are_saved_in_time(metadata: MetadataServer, tmp_path: Path) -> None:
    machine = Machine(tmp_path, metadata, margin_s=5.0)
    both(machine)
    for trial in ("t-1", "t-2"):
        machine.order("save", trial=trial)
        of(machine, "saved", trial)
    metadata.taken_at_s = time.time() + 10.0
    left = {told["trial"]: told["step"] for told in (machine.until("left"), machine.until("left"))}
    for trial in ("t-1", "t-2"):
        last = next(CheckpointStore(machine.objects, trial).manifests())
        assert (last.step, last.saved_at_s < metadata.taken_at_s) == (left[trial], True)
    machine.close()
    metadata.taken_at_s = None
    other = Machine(tmp_path, metadata, machine="m-2")
    try:
        for trial, beside in (("t-1", []), ("t-2", ["t-1"])):
            other.train(*(PROGRAM, "--steps", 4000), trial=trial, steps=4000, attempt=2, beside=beside, **HALF)
        # In whatever order they are told.
        restored = {told["trial"]: told["step"] for told in (other.until("restored"), other.until("restored"))}
        assert restored == left
    finally:
        other.close()


@pytest.mark.long
def test_one_that_fails_ends_with_all_that_it_left_and_the_other_keeps_its_own(
    machine: Machine, tmp_path: Path
) -> None:
    """What it put into another session, without a mark, is known by who started it."""
    starts = """
import json, pathlib, subprocess, sys, time
beats, record = sys.argv[1], pathlib.Path(sys.argv[3])
loop = f"while true; do echo >> {beats}; sleep 0.05; done"
left = subprocess.Popen(["setsid", "env", "-i", "bash", "-c", loop])
while not pathlib.Path(beats).exists():
    time.sleep(0.02)
# What is looked for every second is seen.
while not record.exists() or left.pid not in [pid for pid, _, _ in json.loads(record.read_text())["processes"]]:
    time.sleep(0.02)
sys.exit(int(sys.argv[2])) if int(sys.argv[2]) else time.sleep(300)
"""
    fails, stays, record = tmp_path / "fails", tmp_path / "stays", tmp_path / "m-1" / ".processes.json"
    machine.train("-c", starts, stays, 0, record, **HALF)
    machine.train("-c", starts, fails, 3, record, trial="t-2", beside=["t-1"], **HALF)
    assert of(machine, "failed", "t-2")["code"] == 3
    before = fails.stat().st_size, stays.stat().st_size
    eventually(lambda: stays.stat().st_size >= before[1] + 10)
    assert fails.stat().st_size == before[0]
    machine.order("end")
    assert machine.process.wait(LIMIT_S) == 42
    assert processes_with(MARK, str(tmp_path / "m-1")) == []
    assert not [
        each for each in psutil.process_iter(["cmdline"]) if str(stays) in " ".join(each.info["cmdline"] or ())
    ]


def test_an_agent_that_is_killed_begins_all_again_and_ends_all(machine: Machine, tmp_path: Path) -> None:
    both(machine)
    machine.order("save", trial="t-1")
    saved = of(machine, "saved", "t-1")["step"]
    machine.kill()
    machine.start()
    assert of(machine, "restored", "t-1")["step"] >= saved
    of(machine, "step", "t-2", step=8)
    machine.order("end")
    assert machine.process.wait(LIMIT_S) == 42
    machine.receive()
    assert kinds(machine, "t-1")[-1] == kinds(machine, "t-2")[-1] == "left"
    assert processes_with(MARK, str(tmp_path / "m-1")) == []


def test_each_has_its_share_of_the_cores(tmp_path: Path, metadata: MetadataServer) -> None:
    """On cores of its own, where there are two; and its user's word counts."""
    rented = Machine(tmp_path, metadata, pins_cores=True)
    says = """
import os, sys, time
print(os.environ["OMP_NUM_THREADS"], *sorted(os.sched_getaffinity(0)), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""
    both_said = tmp_path / "both said"
    try:
        rented.train("-c", says, both_said, **HALF)
        rented.until("log")
        taken = {"OMP_NUM_THREADS": "7"}
        rented.train("-c", says, both_said, trial="t-2", beside=["t-1"], environment=taken, **HALF)
        rented.until("log")
        both_said.touch()
        rented.until("finished")
        rented.until("finished")
    finally:
        rented.close()
    said = {told["trial"]: [int(word) for word in told["line"].split()] for told in rented.told if "line" in told}
    cores = sorted(os.sched_getaffinity(0))
    each = max(len(cores) // 2, 1)
    assert [said["t-1"][0], said["t-2"][0]] == [each, 7]
    assert said["t-1"][1:] == cores[:each]
    assert said["t-2"][1:] == (cores[each : 2 * each] or cores)


def test_a_restarted_agent_trains_what_is_not_over_and_tells_of_what_was_to_leave() -> None:
    def train(trial: str, attempt: int, *beside: str) -> Train:
        return Train(Assignment(trial, ("true",), 1, "", attempt=attempt, share=0.5), beside)

    one, other, third = train("t-1", 1), train("t-2", 1, "t-1"), train("t-3", 1, "t-2")
    assert _in_force([one, other]) == [one, other]
    # The number of an assignment is that of its trial alone.
    over = Leave(1, "t-1", reported=True)
    assert _in_force([one, other, over]) == [other, over]
    # What left for the third is told of until the controller says that it knows.
    left = Leave(1, "t-1")
    assert _in_force([one, other, left, third]) == [other, left, third]
    assert _in_force([one, other, left, third, over]) == [other, third, over]
    # What was not named beside had to leave, whether or not there was an order to.
    assert _in_force([one, other, third]) == [left, other, third]
    assert _in_force([one, train("t-4", 1)]) == [left, train("t-4", 1)]
    # An older controller names no trial of one whose end it knows.
    assert _in_force([one, Leave(1), train("t-4", 1)]) == [train("t-4", 1)]
    assert _in_force([one, train("t-1", 2)])[-1] == train("t-1", 2)


def test_parts_of_a_machine() -> None:
    parts = MachineParts(range(4), ("0", "1", "2", "3"), pins=True)
    first, second = parts.take("a", 0.5), parts.take("b", 0.25)
    assert (first.threads, first.cores, first.devices) == (2, (0, 1), ("0", "1"))
    assert (second.threads, second.cores, second.devices) == (1, (2,), ("2",))
    parts.give_back("a")
    assert parts.take("c", 0.3).devices is None
    assert parts.take("d", 0.5).cores == (1, 3)
    assert parts.take("e", 1.0).environment == {}
    assert first.environment["OMP_NUM_THREADS"] == "2"
    assert first.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    # At least one core, however small the share; one accelerator cannot be divided.
    small = MachineParts(range(2), ("0",)).take("a", 0.1)
    assert (small.threads, small.cores, small.devices) == (1, (), None)


def test_saving_beside_others_takes_the_time_of_all_uploads() -> None:
    one, other, new = SavingTimes(margin_s=2.0), SavingTimes(), SavingTimes(first_s=30.0)
    one.saved(1.0)
    one.uploaded(4.0)
    other.uploaded(10.0)
    assert one.needed_beside_s([]) == one.needed_s == pytest.approx(1.5 * 5.0 + 2.0)
    assert one.needed_beside_s([other]) == pytest.approx(1.5 * 15.0 + 2.0)
    assert one.needed_beside_s([other, new]) == pytest.approx(1.5 * 45.0 + 2.0)
