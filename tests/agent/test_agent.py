"""The agent as a process: it trains, uses its notice, saves, reports, and never leaves a machine behind."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import LIMIT_S, eventually

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.agent.folders import code_key
from ebbtide.agent.heartbeats import Heartbeats
from ebbtide.agent.messages import MessageLog, Unreadable
from ebbtide.agent.process_tree import MACHINE, kill_processes
from ebbtide.agent.protocol import ORDERS, REPORTS, Channel, Ended, Envelope, Message, decoded, key_of, plain
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import FolderStore
from ebbtide.testing.metadata_server import MetadataServer

pytestmark = pytest.mark.usefixtures("processes")

PROGRAM = Path(__file__).parents[1] / "light_program.py"

PLAIN = """
import json, pathlib, signal, sys, time
folder, last = pathlib.Path(sys.argv[1]), int(sys.argv[2])
state = folder / "state.json"
step = json.loads(state.read_text()) if state.exists() else 0
def stop(*_):
    state.write_text(json.dumps(step)); sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("a line for people", flush=True)
while step < last:
    time.sleep(0.02); step += 1
    print(json.dumps({"step": step, "loss": 1 / step}), flush=True)
state.write_text(json.dumps(step))
"""


RUN_KEY = bytes(range(32))


def as_told(message: Message) -> dict[str, Any]:
    """A report as plain values, with what it is as `type`: how an assignment ended, where one did."""
    return {"type": str(message.how) if isinstance(message, Ended) else message.kind, **plain(message)}


class Machine:
    """An agent, and the controller's end of its post."""

    def __init__(self, folder: Path, metadata: MetadataServer, **options: Any) -> None:
        self.objects = FolderStore(folder / "objects")
        self.name = options.pop("machine", "m-1")
        self.key = key_of(RUN_KEY, self.name)
        config = AgentConfig(
            "run-1",
            self.name,
            str(folder / "objects"),
            str(folder / self.name),
            metadata_url=metadata.url,
            **{
                "poll_s": 0.05,
                "notice_poll_s": 0.05,
                "report_s": 0.05,
                "first_save_s": 2.0,
                "margin_s": 0.3,
                "key": self.key.hex(),
                **options,
            },
        )
        self.heartbeats = Heartbeats(self.objects, "run-1", RUN_KEY, config.controller_limit_s)
        self.config = folder / f"{self.name}.json"
        self.config.write_text(config.encode())
        self.orders = MessageLog(self.objects, Channel(self.name, ORDERS, self.key))
        self.reports = MessageLog(self.objects, Channel(self.name, REPORTS, self.key))
        self.told: list[dict[str, Any]] = []
        self.unread: deque[dict[str, Any]] = deque()
        self.boots: set[str] = set()
        self.counts: list[int] = []
        self.sent = 0
        self.alive()
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ebbtide.agent", str(self.config)], stderr=subprocess.DEVNULL
        )

    def alive(self) -> None:
        self.heartbeats.beat([self.name])

    def order(self, kind: str, *, epoch: int = 1, **order: Any) -> None:
        self.sent += 1
        message = decoded({"kind": kind, **order}, ORDERS)
        assert self.orders.write(self.sent, [Envelope("b", self.sent, epoch, message)])

    def train(
        self,
        *arguments: object,
        trial: str = "t-1",
        steps: int = 40,
        attempt: int = 1,
        beside: Sequence[str] = (),
        **options: Any,
    ) -> None:
        command = (sys.executable, *map(str, arguments))
        assignment = Assignment(trial, command, steps, "loss", attempt=attempt, **options)
        self.order("train", assignment=assignment.encode(), beside=list(beside))

    def until(self, kind: str, *, step: int = 0) -> dict[str, Any]:
        """The next report of a kind; meanwhile the controller lives."""

        def told() -> dict[str, Any] | None:
            self.alive()
            self.unread.extend(self.receive())
            # What came with it is for the next call.
            while self.unread:
                found = self.unread.popleft()
                if found["type"] == kind and found.get("step", 0) >= step:
                    return found
            return None

        found = eventually(told, poll_s=0.05, message=lambda: f"no {kind} of step {step}: {self.told[-5:]}")
        assert found is not None
        return found

    def receive(self) -> list[dict[str, Any]]:
        """Reports that are new, which are also added to those told."""
        new = []
        for found in self.reports.new():
            assert not isinstance(found, Unreadable)
            assert found.message is not None
            self.boots.add(found.boot)
            self.counts.append(found.count)
            new.append(as_told(found.message))
        self.told += new
        return new

    def close(self) -> None:
        self.kill()
        kill_processes(MACHINE, str(Path(AgentConfig.read(self.config).folder).resolve()))

    def kill(self) -> None:
        """Kill the agent alone; what it started goes on."""
        self.process.kill()
        self.process.wait()

    def noted(self) -> set[int]:
        """Ids of the processes that the agent has written down, as it does about once a second."""
        record = Path(AgentConfig.read(self.config).folder) / ".processes.json"
        kept = json.loads(record.read_text()) if record.exists() else {"processes": []}
        return {pid for pid, _, _ in kept["processes"]}


@pytest.fixture
def metadata() -> Iterator[MetadataServer]:
    served = MetadataServer()
    yield served
    served.close()


@pytest.fixture
def machine(tmp_path: Path, metadata: MetadataServer) -> Iterator[Machine]:
    rented = Machine(tmp_path, metadata)
    yield rented
    rented.close()


def newest(machine: Machine, trial: str = "t-1") -> int:
    return next(CheckpointStore(machine.objects, trial).manifests()).step


def test_it_trains_to_the_end_and_tells_all(machine: Machine) -> None:
    machine.train(PROGRAM, "--steps", 40, "--rate", 0.05)
    finished = machine.until("finished")
    assert (finished["step"], finished["trial"]) == (40, "t-1")
    metrics = {told["at"]: told["metric"] for told in machine.told if not math.isnan(told.get("metric", math.nan))}
    assert list(metrics) == [5, 10, 15, 20, 25, 30, 35, 40]
    assert newest(machine) == 40
    assert machine.counts == list(range(1, len(machine.counts) + 1))


@pytest.mark.long
def test_the_notice_is_used_to_the_end_and_all_of_it_is_saved(
    machine: Machine, metadata: MetadataServer, tmp_path: Path
) -> None:
    machine.train(PROGRAM, "--steps", 4000, "--step-s", 0.02, steps=4000)
    machine.until("step", step=5)
    noticed_s = time.time()
    metadata.taken_at_s = noticed_s + 15.0
    machine.until("notice")
    # What saving takes is not known yet: it saves once at once to find out, and trains on.
    first = machine.until("saved")
    left = machine.until("left")
    # A periodic save may have come between them, and then storage no longer has the first.
    last = next(CheckpointStore(machine.objects, "t-1").manifests())
    assert first["stored_s"] < noticed_s + 7.5 < last.saved_at_s < metadata.taken_at_s
    assert last.step == left["step"] > first["step"] + 100
    machine.close()
    metadata.taken_at_s = None
    other = Machine(tmp_path, metadata, machine="m-2")
    other.train(PROGRAM, "--steps", 60, attempt=2, steps=60)
    assert other.until("restored")["step"] == left["step"]
    other.close()


@pytest.mark.long
def test_a_notice_in_the_middle_of_an_evaluation_is_honoured(tmp_path: Path, metadata: MetadataServer) -> None:
    machine = Machine(tmp_path, metadata, first_save_s=15.0)
    try:
        machine.train(PROGRAM, "--steps", 40, "--evaluate-s", 600)
        machine.until("step", step=5)
        metadata.taken_at_s = time.time() + 17.0
        assert machine.until("left")["step"] == 5
        last = next(CheckpointStore(machine.objects, "t-1").manifests())
        assert last.step == 5
        assert last.saved_at_s < metadata.taken_at_s
    finally:
        machine.close()


def test_a_notice_in_the_warm_up_costs_nothing(machine: Machine, metadata: MetadataServer) -> None:
    machine.train(PROGRAM, "--steps", 40, "--warm-up-s", 600)
    machine.until("restored")
    metadata.taken_at_s = time.time() + 2.0
    assert machine.until("left")["step"] == 0


def test_any_command_works_by_its_folder(machine: Machine) -> None:
    machine.train("-c", PLAIN, "{checkpoint_dir}", 400, steps=400)
    machine.until("step", step=20)
    machine.order("leave", attempt=1)
    left = machine.until("left")
    assert 20 <= left["step"] < 400
    assert any(told.get("line") == "a line for people" for told in machine.told)
    machine.train("-c", PLAIN, "{checkpoint_dir}", 400, steps=400, attempt=2)
    restored = machine.until("restored")
    assert restored["step"] == left["step"]
    assert machine.until("finished")["step"] == 400
    steps = [told["step"] for told in machine.told if told["type"] == "step" and told["attempt"] == 2]
    assert steps[0] > left["step"]


def test_training_that_fails_is_told_apart_and_its_last_lines_are_kept(machine: Machine) -> None:
    machine.train("-c", "print('so far so good'); raise ValueError('a bad setting')")
    failed = machine.until("failed")
    assert failed["code"] == 1
    assert "ValueError: a bad setting" in failed["tail"][-1]
    machine.train("-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", attempt=2)
    assert machine.until("failed")["code"] == -signal.SIGKILL
    machine.order("train", assignment=Assignment("t-1", ("/no/such/program",), 1, "loss", attempt=3).encode())
    assert machine.until("failed")["code"] == 127


def test_what_a_program_leaves_running_is_ended_with_it(machine: Machine) -> None:
    """It holds the program's output open, and would be waited for without end."""
    leaves = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']); sys.exit(3)"
    machine.train("-c", leaves)
    assert machine.until("failed")["code"] == 3


def test_what_a_program_put_into_another_session_does_not_go_on_beside_the_next(
    machine: Machine, tmp_path: Path
) -> None:
    """It holds the first one's output open, and carries no mark."""
    beats = tmp_path / "beats"
    loop = f"while true; do echo >> {beats}; sleep 0.05; done"
    starts = """
import pathlib, subprocess, sys, time
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} if sys.argv[3:] else {}
subprocess.Popen(["setsid", "env", "-i", "bash", "-c", sys.argv[1]], **quiet)
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.02)
"""
    # Once it holds the output open, once it does not.
    for attempt, more in ((1, []), (3, ["quiet"])):
        machine.train("-c", starts, loop, beats, *more, attempt=attempt)
        machine.until("finished")
        machine.train("-c", "import time; time.sleep(1.0)", trial="t-2", attempt=attempt + 1)
        machine.until("restored")
        seen = beats.stat().st_size
        machine.until("finished")
        assert seen == beats.stat().st_size > 0
        beats.unlink()


def test_a_rebalance_recommendation_is_told_and_nothing_else(machine: Machine, metadata: MetadataServer) -> None:
    machine.train(PROGRAM, "--steps", 300, "--step-s", 0.02, steps=300)
    machine.until("step", step=3)
    metadata.rebalance = True
    machine.until("rebalance")
    assert machine.until("finished")["step"] == 300


def test_another_assignment_takes_over_when_the_first_is_saved(machine: Machine) -> None:
    machine.train(PROGRAM, "--steps", 4000, "--step-s", 0.02, steps=4000)
    machine.until("step", step=5)
    machine.train(PROGRAM, "--steps", 20, trial="t-2", steps=20, attempt=2)
    assert machine.until("left")["trial"] == "t-1"
    assert machine.until("finished")["trial"] == "t-2"


def test_without_its_controller_it_saves_and_ends_its_machine(tmp_path: Path, metadata: MetadataServer) -> None:
    machine = Machine(tmp_path, metadata, controller_limit_s=6.0)
    machine.train(PROGRAM, "--steps", 40_000, "--step-s", 0.02, steps=40_000)
    machine.until("step", step=5)
    # Heartbeats last for some of the limit; then the limit runs.
    assert machine.process.wait(LIMIT_S) == 42
    machine.receive()
    kinds = [told["type"] for told in machine.told]
    assert kinds[-3:] == ["stranded", "left", "down"] or "stranded" in kinds
    left = next(told for told in machine.told if told["type"] == "left")
    assert newest(machine) == left["step"] > 5


@pytest.mark.parametrize("steps", [60, 40_000])
def test_without_controller_and_storage_a_machine_ends_all_the_same(
    tmp_path: Path, metadata: MetadataServer, steps: int
) -> None:
    """A checkpoint that can never be stored must not keep it running, and costing, for ever.

    Where the program has done all its steps by then, it has not finished: nobody has the result.
    """
    trial = tmp_path / "objects" / "trials" / "t-1"
    trial.mkdir(parents=True)
    (trial / "data").write_text("no folder: nothing can be stored")
    machine = Machine(tmp_path, metadata, controller_limit_s=6.0)
    machine.train(PROGRAM, "--steps", steps, "--step-s", 0.02, steps=steps)
    machine.until("step", step=5)
    assert machine.process.wait(LIMIT_S) == 42
    machine.receive()
    assert not any(told["type"] in ("saved", "finished") for told in machine.told)
    assert next(told for told in machine.told if told["type"] == "left")["step"] == 0


def test_an_agent_that_is_killed_begins_again_where_it_was(machine: Machine) -> None:
    machine.train(PROGRAM, "--steps", 300, "--step-s", 0.02, steps=300)
    machine.until("step", step=5)
    machine.order("save")
    saved = machine.until("saved")["step"]
    machine.kill()
    machine.start()
    restored = machine.until("restored")
    assert restored["step"] == saved
    assert machine.until("finished")["step"] == 300
    assert len(machine.boots) == 2


def test_periodic_saving_follows_from_how_long_it_takes_and_machines_live(
    tmp_path: Path, metadata: MetadataServer
) -> None:
    machine = Machine(tmp_path, metadata, first_save_s=0.05)
    machine.train(PROGRAM, "--steps", 400, "--step-s", 0.02, steps=400, mttr_s=0.1)
    machine.until("saved")
    machine.until("saved", step=20)
    machine.until("finished")
    saved = [told["step"] for told in machine.told if told["type"] == "saved"]
    assert len(saved) >= 3
    machine.close()


def test_a_bad_configuration_ends_with_one_line(tmp_path: Path) -> None:
    for content, said in (
        (None, "there is no configuration"),
        ("[]", "is no configuration"),
        ('{"x": 1}', "is no conf"),
    ):
        path = tmp_path / "agent.json"
        if content is not None:
            path.write_text(content)
        ended = subprocess.run(
            [sys.executable, "-m", "ebbtide.agent", str(path)],
            capture_output=True,
            text=True,
            env=os.environ,
            timeout=LIMIT_S,
        )
        assert ended.returncode == 2
        assert said in ended.stderr
        assert ended.stderr.count("\n") == 1


def test_a_leave_order_is_answered_though_the_training_never_began(machine: Machine) -> None:
    machine.order("leave", attempt=7, trial="t-9")
    left = machine.until("left")
    assert (left["trial"], left["attempt"]) == ("t-9", 7)


@pytest.mark.long
def test_storage_that_lacks_what_was_stored_is_no_reason_to_begin_again(
    tmp_path: Path, metadata: MetadataServer
) -> None:
    """A mount that is not there looks like an empty folder."""
    machine = Machine(tmp_path, metadata, controller_limit_s=8.0)
    machine.train(PROGRAM, "--steps", 4000, "--step-s", 0.02, steps=4000)
    machine.until("step", step=5)
    machine.order("leave", attempt=1)
    left = machine.until("left")
    stored = left["stored"]
    assert stored > 0
    trials, away = tmp_path / "objects" / "trials", tmp_path / "away"
    trials.rename(away)
    again = {"steps": left["step"] + 20, "expected": stored}
    machine.train(PROGRAM, "--steps", left["step"] + 20, attempt=2, **again)
    while "was stored: is it mounted?; asked again" not in machine.until("log")["line"]:
        pass
    # Nothing was written to where it is not: the mount that comes would hide it.
    assert not trials.exists()
    away.rename(trials)
    assert machine.until("restored")["step"] == left["step"]
    assert machine.until("finished")["step"] == left["step"] + 20
    # Those that were set aside are not missed, nor is an older one of two.
    newer = max(CheckpointStore(machine.objects, "t-1").numbers("manifests"))
    (trials / "t-1" / "manifests" / f"{newer:08d}").unlink()
    machine.train(PROGRAM, "--steps", 3, attempt=3, steps=3, expected=newer, aside=(newer,))
    assert machine.until("restored")["attempt"] == 3
    machine.until("finished")
    # The newest that stays away while an older one is there is lost alone: training resumes from the older one.
    machine.train(PROGRAM, "--steps", 3, attempt=4, steps=3, expected=900)
    assert machine.until("restored")["attempt"] == 4
    machine.until("finished")
    # If all stay away, that is an end, and is said.
    trials.rename(away)
    machine.train(PROGRAM, "--steps", 3, attempt=5, steps=3, expected=900)
    failed = machine.until("failed")
    assert failed["tail"] == ["storage has no checkpoint 900 of trial t-1, which was stored: is it mounted?"]
    assert (failed["attempt"], failed["code"], failed["cannot_start"]) == (5, None, False)
    machine.close()


@pytest.mark.long
def test_a_damaged_checkpoint_is_none_that_storage_lacks(tmp_path: Path, metadata: MetadataServer) -> None:
    # It is read again for as long as the machine goes on without its controller, five minutes at most.
    machine = Machine(tmp_path, metadata, controller_limit_s=15.0)
    machine.train(PROGRAM, "--steps", 4000, "--step-s", 0.02, steps=4000)
    machine.until("step", step=5)
    machine.order("save")
    first = machine.until("saved")
    machine.order("leave", attempt=1)
    stored = machine.until("left")["stored"]
    assert stored > first["number"]
    manifest = next(CheckpointStore(machine.objects, "t-1").manifests())
    key = CheckpointStore(machine.objects, "t-1").data_key(stored, manifest.writer, 0)
    (tmp_path / "objects" / key).write_bytes(b"torn")
    machine.train(PROGRAM, "--steps", 3, attempt=2, steps=3, expected=stored)
    assert machine.until("restored")["number"] == first["number"]
    machine.close()


HABITS = {
    "a number too large for a float": "print(json.dumps({'step': 1, 'loss': 10**400}), flush=True)",
    "durations in words": "print(json.dumps({'step': 1, 'saved': 1, 'save_s': 'fast', 'step_s': 10**400}), flush=True)",
    "a step that nobody takes": "print(json.dumps({'step': 10**30, 'loss': 1.0}), flush=True)",
    "a step before the first": "print(json.dumps({'step': -5, 'saved': -5}), flush=True)",
    "it removes its folder": "import os, shutil; shutil.rmtree(os.environ['EBBTIDE_CHECKPOINT_DIR'])",
}


@pytest.mark.parametrize("habit", HABITS)
def test_what_a_program_prints_or_does_ends_no_agent(machine: Machine, tmp_path: Path, habit: str) -> None:
    program = tmp_path / "odd.py"
    program.write_text("import json\n" + HABITS[habit] + "\n")
    machine.train(program, steps=3)
    finished = machine.until("finished")
    assert finished["step"] <= 3
    assert machine.process.poll() is None
    assert len(machine.boots) == 1


def test_a_command_that_no_system_can_be_given_fails_to_start(machine: Machine) -> None:
    machine.train("-c", "a\0b")
    failed = machine.until("failed")
    assert (failed["cannot_start"], failed["tail"]) == (True, ["embedded null byte"])
    assert machine.process.poll() is None


def test_strays_among_its_orders_hold_up_none(
    machine: Machine, metadata: MetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever put them there has not its key: they do not say that the orders before them were lost."""
    machine.objects.put_once("machines/m-1/orders/99999999", b"[]")
    machine.objects.put_once("machines/m-1/orders/00000002", b"[" * 100_000)
    machine.objects.put_once(f"machines/m-1/orders/{'9' * 200}", b"[]")
    # The agent looks at its orders as often as at its metadata: often enough for it to look for later ones, too.
    asked, answer = [], metadata.service.answer
    monkeypatch.setattr(metadata.service, "answer", lambda *about: asked.append(about) or answer(*about))
    eventually(lambda: len(asked) > 100)
    machine.train(PROGRAM, "--steps", 10, steps=10)
    assert machine.until("finished")["step"] == 10
    assert machine.orders.last() == 1


def test_what_another_has_sealed_is_no_order(machine: Machine) -> None:
    """Whoever can write to storage could have any command run on every machine."""
    assignment = Assignment("t-9", (sys.executable, "-c", "print('obeyed')"), 1, "loss", attempt=1)
    forged = MessageLog(machine.objects, Channel("m-1", ORDERS, bytes(32)))
    assert forged.write(
        1, [Envelope("b", 1, 1, decoded({"kind": "train", "assignment": assignment.encode()}, ORDERS))]
    )
    machine.sent = 1
    machine.train(PROGRAM, "--steps", 10, steps=10)
    assert machine.until("finished")["trial"] == "t-1"
    assert {told["trial"] for told in machine.told if told["type"] == "restored"} == {"t-1"}


def test_a_machine_that_is_to_end_is_not_kept_alive_by_heartbeats(
    tmp_path: Path, metadata: MetadataServer
) -> None:
    machine = Machine(tmp_path, metadata, controller_limit_s=3.0)
    machine.until("up")

    def has_ended() -> bool:
        machine.heartbeats.beat([])
        return machine.process.poll() is not None

    eventually(has_ended)
    assert machine.process.poll() == 42


@pytest.mark.parametrize("empty", [[], ["env", "-i"]], ids=["marked", "unmarked"])
def test_an_agent_that_begins_again_ends_what_its_predecessor_left(
    machine: Machine, tmp_path: Path, empty: list[str]
) -> None:
    beats = tmp_path / "beats"
    loop = f"while true; do echo >> {beats}.$PPID.$$; sleep 0.05; done"
    starts = (
        f"import subprocess, time; subprocess.Popen({['setsid', *empty, 'bash', '-c', loop]!r}); time.sleep(300)"
    )
    machine.train("-c", starts)
    machine.until("restored")

    def beating() -> list[Path]:
        return list(tmp_path.glob("beats.*"))

    try:
        (first,) = eventually(beating)
        eventually(lambda: int(first.suffix.removeprefix(".")) in machine.noted())
        machine.kill()
        machine.start()
        machine.until("restored")
        seen = first.stat().st_size
        # What the second one began beats as fast, and often.
        eventually(lambda: any(other.stat().st_size >= 10 for other in beating() if other != first))
        assert first.stat().st_size == seen > 0
    finally:
        # The second agent began the program again, and is killed when the test is over.
        machine.kill()
        for file in beating():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.suffix.removeprefix(".")), signal.SIGKILL)


def test_code_that_is_not_what_the_run_began_with_is_told_and_not_run(machine: Machine) -> None:
    key = code_key("run-1", b"the code of the run")
    machine.objects.put_once(key, b"the code of somebody else")
    machine.train("-c", "print('obeyed')", code=key)
    line = machine.until("log")["line"]
    assert line == "ebbtide: the code in storage is not used: it is not what was stored; asked again"
    assert not [told for told in machine.told if told["type"] == "restored"]
