"""A model that is divided over processes: each saves its shards, and any number of processes resume from all."""

from __future__ import annotations

import queue
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ebbtide.agent.processes import TrainingProcess
from ebbtide.trial import AGENT, CHECKPOINT_DIR, TRIAL_ID
from ebbtide.trial_sharded import ShardedState
from tests.test_trial_processes import heard
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.usefixtures("processes")

PROGRAM = Path(__file__).with_name("sharded_program.py")
STEPS = 30


def trained(folder: Path, processes: int, *, leaves_after: int = 0) -> dict[str, Any]:
    """Train on one machine, to the end or until so many further steps; returns what is said at the end.

    Args:
        folder: Folder of checkpoints.
        processes: Number of processes.
        leaves_after: Steps after which it is asked to save and leave; 0: it is not.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {CHECKPOINT_DIR: str(folder), TRIAL_ID: "t", AGENT: "1", "OMP_NUM_THREADS": "1"}
    folder.mkdir(exist_ok=True)
    lines: queue.Queue[Any] = queue.Queue()
    # One that is asked to leave trains slowly, so that it is asked in time.
    slowly = ("--step-s", "0.2") if leaves_after else ()
    program = TrainingProcess(
        [*command, str(PROGRAM), "--steps", str(STEPS), *slowly], environment, folder.parent, lines.put
    )
    try:
        if leaves_after:
            for _ in range(leaves_after):
                heard(lines, "step")
            program.ask_to_leave()
            said = heard(lines, "left")
        else:
            said = heard(lines, "digest")
        assert program.process.wait(LIMIT_S) == 0
        return said
    finally:
        program.kill()


def newest(folder: Path) -> Path:
    return max(path for path in folder.iterdir() if path.name.startswith("step-"))


@pytest.mark.long
def test_divided_training_resumes_as_if_nothing_had_been(tmp_path: Path) -> None:
    undisturbed = trained(tmp_path / "undisturbed", 2)
    assert undisturbed["held"] < 0.6 * undisturbed["whole"]
    kept = tmp_path / "kept"
    left = [trained(kept, 2, leaves_after=4)["left"] for _ in range(2)]
    assert 0 < left[0] < left[1] < STEPS
    shards = {path.name: path.stat().st_size for path in newest(kept).rglob("*.distcp")}
    assert set(shards) == {"__0_0.distcp", "__1_0.distcp"}
    # Another number of processes reads the same shards.
    other = tmp_path / "other"
    shutil.copytree(kept, other)
    assert trained(other, 3)["whole"] == undisturbed["whole"]
    assert trained(kept, 2)["digest"] == undisturbed["digest"]


@pytest.mark.long
def test_shards_that_lack_their_list_are_no_checkpoint(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    trained(kept, 2, leaves_after=3)
    for path in newest(kept).rglob(".metadata"):
        path.unlink()
    with pytest.raises(AssertionError, match="it ended before it said"):
        trained(kept, 2)


def test_without_processes_there_are_no_shards() -> None:
    with pytest.raises(RuntimeError, match="call torch.distributed.init_process_group first"):
        ShardedState(model=torch.nn.Linear(1, 1))
