"""The agent as a process: it trains, uses its notice, saves, reports, and never leaves a machine behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.test_trial import PROGRAM, undisturbed

from ebbtide.live.agent.config import AgentConfig, Assignment
from ebbtide.live.agent.messages import Heartbeats, MessageLog
from ebbtide.live.checkpoints.store import CheckpointStore
from ebbtide.live.storage import FolderStore
from ebbtide.testing.metadata_server import MetadataServer

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


class Machine:
    """An agent, and the controller's end of its post."""

    def __init__(self, folder: Path, metadata: MetadataServer, **options: Any) -> None:
        self.objects = FolderStore(folder / "objects")
        self.name = options.pop("machine", "m-1")
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
                **options,
            },
        )
        self.heartbeats = Heartbeats(self.objects, "run-1", config.controller_limit_s)
        self.config = folder / f"{self.name}.json"
        self.config.write_text(config.encode())
        self.orders = MessageLog(self.objects, self.name, "orders")
        self.reports = MessageLog(self.objects, self.name, "reports")
        self.told: list[dict[str, Any]] = []
        self.sent = 0
        self.alive()
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ebbtide.live.agent", str(self.config)], stderr=subprocess.DEVNULL
        )

    def alive(self) -> None:
        self.heartbeats.beat(time.time())

    def order(self, **order: Any) -> None:
        self.sent += 1
        assert self.orders.write(self.sent, [order])

    def train(
        self, *arguments: object, trial: str = "t-1", steps: int = 40, attempt: int = 1, **options: Any
    ) -> None:
        command = (sys.executable, *map(str, arguments))
        assignment = Assignment(trial, command, steps, "loss", attempt=attempt, **options)
        self.order(type="train", assignment=assignment.encode())

    def until(self, kind: str, *, step: int = 0, within_s: float = 120.0) -> dict[str, Any]:
        end_s = time.monotonic() + within_s
        while time.monotonic() < end_s:
            self.alive()
            for message in self.reports.new():
                self.told.append(dict(message))
                if message["type"] == kind and message.get("step", 0) >= step:
                    return dict(message)
            time.sleep(0.02)
        raise AssertionError(f"no {kind} of step {step}: {self.told[-5:]}")

    def digest(self) -> str:
        return next(json.loads(told["log"])["digest"] for told in self.told if "digest" in told.get("log", ""))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


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
    machine.train(PROGRAM, "--steps", 40, "--lr", 0.05)
    finished = machine.until("finished")
    assert (finished["step"], finished["trial"]) == (40, "t-1")
    metrics = {told["at"]: told["metric"] for told in machine.told if "metric" in told}
    assert list(metrics) == [5, 10, 15, 20, 25, 30, 35, 40]
    assert newest(machine) == 40
    counts = [told["count"] for told in machine.told]
    assert counts == list(range(1, len(counts) + 1))


def test_the_notice_is_used_to_the_end_and_all_of_it_is_saved(
    machine: Machine, metadata: MetadataServer, tmp_path: Path
) -> None:
    machine.train(PROGRAM, "--steps", 400, "--step-s", 0.02, steps=400)
    machine.until("step", step=5)
    noticed_s = time.time()
    metadata.taken_at_s = noticed_s + 6.0
    machine.until("notice")
    # What saving takes is not known yet: it saves once at once to find out, and trains on.
    first = machine.until("saved")
    assert time.time() < noticed_s + 3.0
    left = machine.until("left")
    last = next(CheckpointStore(machine.objects, "t-1").manifests())
    assert noticed_s + 4.0 < last.saved_at_s < metadata.taken_at_s
    assert last.step == left["step"] > first["step"] + 100
    machine.close()
    metadata.taken_at_s = None
    other = Machine(tmp_path, metadata, machine="m-2")
    other.train(PROGRAM, "--steps", 60, attempt=2, steps=60)
    assert other.until("restored")["step"] == left["step"]
    other.close()


def test_a_notice_in_the_middle_of_an_evaluation_is_honoured(machine: Machine, metadata: MetadataServer) -> None:
    machine.train(PROGRAM, "--steps", 40, "--evaluate-s", 60)
    machine.until("step", step=5)
    metadata.taken_at_s = time.time() + 3.0
    assert machine.until("left", within_s=8.0)["step"] == 5
    last = next(CheckpointStore(machine.objects, "t-1").manifests())
    assert last.step == 5
    assert last.saved_at_s < metadata.taken_at_s


def test_a_notice_in_the_warm_up_costs_nothing(machine: Machine, metadata: MetadataServer) -> None:
    machine.train(PROGRAM, "--steps", 40, "--warm-up-s", 60)
    machine.until("restored")
    metadata.taken_at_s = time.time() + 2.0
    assert machine.until("left", within_s=5.0)["step"] == 0


def test_any_command_works_by_its_folder(machine: Machine) -> None:
    machine.train("-c", PLAIN, "{checkpoint_dir}", 150, steps=150)
    machine.until("step", step=20)
    machine.order(type="leave", attempt=1)
    left = machine.until("left")
    assert 20 <= left["step"] < 150
    assert any(told.get("log") == "a line for people" for told in machine.told)
    machine.train("-c", PLAIN, "{checkpoint_dir}", 150, steps=150, attempt=2)
    restored = machine.until("restored")
    assert restored["step"] == left["step"]
    assert machine.until("finished")["step"] == 150
    steps = [told["step"] for told in machine.told if told["type"] == "step" and told["attempt"] == 2]
    assert steps[0] > left["step"]


def test_training_that_fails_is_told_apart_and_its_last_lines_are_kept(machine: Machine) -> None:
    machine.train("-c", "print('so far so good'); raise ValueError('a bad setting')")
    failed = machine.until("failed")
    assert failed["code"] == 1
    assert "ValueError: a bad setting" in failed["tail"][-1]
    machine.train("-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", attempt=2)
    assert machine.until("failed")["code"] == -signal.SIGKILL
    machine.order(type="train", assignment=Assignment("t-1", ("/no/such/program",), 1, "loss", attempt=3).encode())
    assert machine.until("failed")["code"] == 127


def test_what_a_program_leaves_running_is_ended_with_it(machine: Machine) -> None:
    """It holds the program's output open, and would be waited for without end."""
    leaves = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']); sys.exit(3)"
    machine.train("-c", leaves)
    assert machine.until("failed")["code"] == 3


def test_a_rebalance_recommendation_is_told_and_nothing_else(machine: Machine, metadata: MetadataServer) -> None:
    machine.train(PROGRAM, "--steps", 40, "--step-s", 0.02)
    machine.until("step", step=3)
    metadata.rebalance = True
    machine.until("rebalance")
    assert machine.until("finished")["step"] == 40


def test_another_assignment_takes_over_when_the_first_is_saved(machine: Machine) -> None:
    machine.train(PROGRAM, "--steps", 400, "--step-s", 0.02, steps=400)
    machine.until("step", step=5)
    machine.train(PROGRAM, "--steps", 20, trial="t-2", steps=20, attempt=2)
    assert machine.until("left")["trial"] == "t-1"
    assert machine.until("finished")["trial"] == "t-2"


def test_without_its_controller_it_saves_and_ends_its_machine(tmp_path: Path, metadata: MetadataServer) -> None:
    machine = Machine(tmp_path, metadata, controller_limit_s=3.0)
    machine.train(PROGRAM, "--steps", 4000, "--step-s", 0.02, steps=4000)
    machine.until("step", step=5)
    # Heartbeats last for some of the limit; then the limit runs.
    assert machine.process.wait(60) == 42
    for message in machine.reports.new():
        machine.told.append(dict(message))
    kinds = [told["type"] for told in machine.told]
    assert kinds[-3:] == ["stranded", "left", "down"] or "stranded" in kinds
    left = next(told for told in machine.told if told["type"] == "left")
    assert newest(machine) == left["step"] > 5


def test_an_agent_that_is_killed_begins_again_where_it_was(machine: Machine) -> None:
    machine.train(PROGRAM, "--steps", 120, "--step-s", 0.02, steps=120)
    machine.until("step", step=5)
    machine.order(type="save")
    saved = machine.until("saved")["step"]
    machine.process.kill()
    machine.process.wait(10)
    machine.start()
    restored = machine.until("restored")
    assert restored["step"] == saved
    assert machine.until("finished")["step"] == 120
    assert len({told["boot"] for told in machine.told}) == 2


def test_periodic_saving_follows_from_how_long_it_takes_and_machines_live(
    tmp_path: Path, metadata: MetadataServer
) -> None:
    machine = Machine(tmp_path, metadata, first_save_s=0.05)
    machine.train(PROGRAM, "--steps", 150, "--step-s", 0.02, steps=150, mttr_s=0.1)
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
            [sys.executable, "-m", "ebbtide.live.agent", str(path)],
            capture_output=True,
            text=True,
            env=os.environ,
            timeout=60,
        )
        assert ended.returncode == 2
        assert said in ended.stderr
        assert ended.stderr.count("\n") == 1


@pytest.fixture(scope="module", autouse=True)
def _measured_once() -> None:
    undisturbed.cache_clear()


def test_a_leave_order_is_answered_though_the_training_never_began(machine: Machine) -> None:
    machine.order(type="leave", attempt=7, trial="t-9")
    left = machine.until("left")
    assert (left["trial"], left["attempt"]) == ("t-9", 7)
