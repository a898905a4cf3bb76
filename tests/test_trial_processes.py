"""Several processes that train as one save and leave at the same step, whichever of them is asked."""

from __future__ import annotations

import json
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ebbtide.agent.processes import TrainingProcess
from ebbtide.trial import AGENT, CHECKPOINT_DIR, TRIAL_ID
from ebbtide.trial_processes import LEAVE, SAVE, CalledAgreement, ProcessPlace, first_part
from tests.waiting import LIMIT_S, work

PROGRAM = Path(__file__).with_name("distributed_program.py")
STEPS = 60
# Six seconds for all steps: time to be asked while it trains.
SLOWLY = ("--step-s", "0.05")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Gang:
    """The processes of a training on machines of their own: each has a folder for checkpoints."""

    def __init__(self, folder: Path, count: int, *arguments: str) -> None:
        port = free_port()
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), "--steps", str(STEPS), *arguments],
                stdout=subprocess.PIPE,
                stderr=(folder / f"{rank}.err").open("wb"),
                text=True,
                env=os.environ
                | {
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "RANK": str(rank),
                    "WORLD_SIZE": str(count),
                    "LOCAL_RANK": "0",
                    "LOCAL_WORLD_SIZE": "1",
                    CHECKPOINT_DIR: str(folder / str(rank)),
                    TRIAL_ID: "t",
                    AGENT: "1",
                },
            )
            for rank in range(count)
        ]
        self._folder = folder
        self.said: list[list[dict[str, Any]]] = [[] for _ in range(count)]

    def until(self, rank: int, name: str, least: int) -> None:
        out = self.processes[rank].stdout
        assert out is not None
        for line in out:
            self.said[rank].append(json.loads(line))
            if self.said[rank][-1].get(name, -1) >= least:
                return
        raise AssertionError(f"process {rank} never said {name}: {self.said[rank][-3:]}")

    def rest(self) -> list[list[dict[str, Any]]]:
        for process, said in zip(self.processes, self.said, strict=True):
            assert process.stdout is not None
            with process.stdout as out:
                said += [json.loads(line) for line in out]
            assert process.wait(LIMIT_S) == 0
        return self.said

    def problem(self, rank: int) -> str:
        """What a process that ends with an error says, of what it may say here."""
        self.processes[rank].communicate(timeout=LIMIT_S)
        assert self.processes[rank].returncode == 1
        told = (self._folder / f"{rank}.err").read_text()
        known = ("2 processes train this as one", "resume from different steps, 0 to")
        return next((problem for problem in known if problem in told), told)


def digest(said: list[list[dict[str, Any]]]) -> object:
    return next(line["digest"] for line in said[0] if "digest" in line)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> object:
    return digest(Gang(tmp_path_factory.mktemp("undisturbed"), 3).rest())


@pytest.mark.usefixtures("processes")
@pytest.mark.exhaustive
def test_whichever_is_asked_all_save_and_leave_at_one_step(tmp_path: Path, undisturbed: object) -> None:
    """Asked one at a time, twice over; then the training resumes from that step, and ends as if nothing had been."""
    draw = random.Random(3)
    left_at: list[int] = []
    for asked in (0, 2, 1):
        gang = Gang(tmp_path, 3, *SLOWLY)
        before = left_at[-1] if left_at else 0
        gang.until(0, "step", before + 3)
        gang.processes[asked].send_signal(signal.SIGUSR1)
        work(draw.uniform(0.0, 0.03))
        gang.processes[(asked + 1) % 3].send_signal(signal.SIGTERM)
        said = gang.rest()
        left = {line["left"] for each in said for line in each if "left" in line}
        assert len(left) == 1
        assert all(any("left" in line for line in each) for each in said)
        saved = [[line["saved"] for line in each if "saved" in line] for each in said]
        assert saved[0] == saved[1] == saved[2]
        assert saved[0][-1] == left.pop() > before
        left_at.append(saved[0][-1])
    gang = Gang(tmp_path, 3)
    said = gang.rest()
    assert all({line["started"] for line in each if "started" in line} == {left_at[-1]} for each in said)
    assert digest(said) == undisturbed


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_program_that_forgets_to_begin_its_group_is_told(tmp_path: Path) -> None:
    """Its processes would save at steps of their own, which do not belong together."""
    gang = Gang(tmp_path, 2, "--forgets-group")
    assert gang.problem(0) == gang.problem(1) == "2 processes train this as one"


@pytest.mark.usefixtures("processes")
@pytest.mark.long
def test_processes_that_resume_from_different_steps_are_told(tmp_path: Path) -> None:
    """One machine's last checkpoint never reached storage: the others' are not of the same training any more."""
    gang = Gang(tmp_path, 2, *SLOWLY)
    gang.until(0, "step", 3)
    gang.processes[1].send_signal(signal.SIGTERM)
    gang.rest()
    shutil.rmtree(tmp_path / "1")
    gang = Gang(tmp_path, 2)
    assert gang.problem(0) == gang.problem(1) == "resume from different steps, 0 to"


@pytest.mark.usefixtures("processes")
@pytest.mark.long
@pytest.mark.parametrize("loop", [(), ("--in-epochs",)], ids=["steps", "epochs"])
def test_torchrun_on_one_machine_keeps_a_part_of_each_process(tmp_path: Path, loop: tuple[str, ...]) -> None:
    """Asked through the agent's handle: torchrun itself would end at SIGUSR1, and kill its workers at SIGTERM."""
    kept = tmp_path / "kept"
    kept.mkdir()
    environment = {CHECKPOINT_DIR: str(kept), TRIAL_ID: "t", AGENT: "1", "OMP_NUM_THREADS": "1"}
    arguments = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(PROGRAM),
    ]
    found: list[object] = []
    for disturbed in (True, False):
        if not disturbed:
            environment[CHECKPOINT_DIR] = str(tmp_path / "undisturbed")
        starts = (False, True) if disturbed else (True,)
        for to_the_end in starts:
            lines: queue.Queue[Any] = queue.Queue()
            program = TrainingProcess(
                [*arguments, "--steps", str(STEPS), *SLOWLY, *loop], environment, tmp_path, lines.put
            )
            try:
                if not to_the_end:
                    heard(lines, "step")
                    program.ask_to_save()
                    first = heard(lines, "saved")["saved"]
                    program.ask_to_leave()
                    assert heard(lines, "left")["left"] >= first > 0
                    newest = max(path for path in kept.iterdir() if path.name.startswith("step-"))
                    assert {path.name for path in newest.iterdir()} >= {"process-0", "process-1", "position.json"}
                else:
                    if disturbed:
                        assert heard(lines, "started")["started"] > 0
                    found.append(heard(lines, "digest")["digest"])
                assert program.process.wait(LIMIT_S) == 0
            finally:
                program.kill()
    assert found[0] == found[1]


def heard(lines: queue.Queue[Any], name: str) -> dict[str, Any]:
    while True:
        line = lines.get(timeout=LIMIT_S)
        assert line is not None, f"it ended before it said {name!r}"
        if isinstance(line, dict) and name in line:
            return line


def test_who_a_process_is_by_what_started_it() -> None:
    assert ProcessPlace.current({}) == ProcessPlace()
    by_torchrun = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1", "RANK": "5"}
    assert ProcessPlace.current(by_torchrun) == ProcessPlace(8, 2, 1)
    by_mpirun = {
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    }
    assert ProcessPlace.current(by_mpirun) == ProcessPlace(4, 4, 3)
    # Others use the same names for something else.
    assert (
        ProcessPlace.current({"WORLD_SIZE": "8"})
        == ProcessPlace.current({**by_torchrun, "LOCAL_RANK": "x"})
        == ProcessPlace()
    )


def test_parts_of_a_checkpoint() -> None:
    assert ProcessPlace(8, 2, 1).part == "process-1"
    assert ProcessPlace(8, 1, 0).part == ""
    assert first_part(["position.json", "process-1", "process-0"]) == "process-0"
    assert first_part(["position.json", "state.pt"]) == ""


def test_an_agreement_by_a_function_of_the_programs() -> None:
    others = iter([SAVE, LEAVE])
    agreement = CalledAgreement(lambda wish: max(wish, next(others)))
    assert agreement.highest(0) == SAVE
    assert agreement.highest(SAVE) == LEAVE
