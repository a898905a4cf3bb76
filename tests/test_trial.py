"""Training that is interrupted anywhere and goes on elsewhere ends as if nothing had been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import pytest
import torch

from ebbtide.trial import AGENT, CHECKPOINT_DIR, TRIAL_ID, Trial
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.usefixtures("processes")

PROGRAM = Path(__file__).with_name("training_program.py")


class Running:
    """The program, heard as it talks."""

    def __init__(
        self, folder: Path | None, *arguments: object, agent: bool = True, program: Path = PROGRAM
    ) -> None:
        known = {CHECKPOINT_DIR: str(folder), TRIAL_ID: "t-1"} if folder else {}
        self.process = subprocess.Popen(
            [sys.executable, str(program), *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | known | ({AGENT: "1"} if agent else {}),
        )
        self.said: list[dict[str, object]] = []

    def until(self, key: str, least: float = 0.0) -> dict[str, object]:
        """Listen until it says this, at least so high."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))
            value = self.said[-1].get(key)
            if value is not None and (isinstance(value, str) or value >= least):  # type: ignore[operator]
                return self.said[-1]
        raise AssertionError(f"it never said {key}: {self.said[-3:]}")

    def rest(self) -> list[dict[str, object]]:
        assert self.process.stdout is not None
        # One that does not end as it should is ended.
        limit = threading.Timer(LIMIT_S, self.process.kill)
        limit.start()
        try:
            with self.process.stdout as out:
                self.said += [json.loads(line) for line in out]
            assert self.process.wait() == 0
        finally:
            limit.cancel()
        return self.said

    def tell(self, number: int) -> None:
        self.process.send_signal(number)


@cache
def undisturbed(steps: int) -> object:
    return Running(None, "--steps", steps).rest()[-1]["digest"]


@pytest.mark.long
@pytest.mark.parametrize(
    "where",
    [pytest.param(where, marks=pytest.mark.exhaustive) for where in ("between steps", "evaluation")] + ["warm-up"],
)
def test_wherever_it_is_asked_to_leave_it_saves_and_goes_on_bit_for_bit(where: str, tmp_path: Path) -> None:
    # It does not wait for the end of an evaluation or warm-up, which take longer than the end is waited for.
    slow = {
        "between steps": ("--step-s", 0.1),
        "evaluation": ("--evaluate-s", 10 * LIMIT_S),
        "warm-up": ("--warm-up-s", 10 * LIMIT_S),
    }
    first = Running(tmp_path, "--steps", 40, *slow[where])
    if where == "warm-up":
        first.until("warms_up")
    else:
        first.until("step", 5)
    first.tell(signal.SIGTERM)
    said = first.rest()
    left = next(message["left"] for message in said if "left" in message)
    if where == "warm-up":
        assert left == 0
        assert not list(tmp_path.iterdir())
    else:
        assert any(message.get("saved") == left for message in said)
        assert (tmp_path / f"step-{left:012d}" / "state.pt").exists()
    if where == "evaluation":
        assert left == 5
    second = Running(tmp_path, "--steps", 40)
    said = second.rest()
    assert next(message["started"] for message in said if "started" in message) == left
    assert said[-1]["digest"] == undisturbed(40)


@pytest.mark.long
def test_asked_to_save_it_saves_and_goes_on(tmp_path: Path) -> None:
    running = Running(tmp_path, "--steps", 30, "--step-s", 0.1)
    running.until("step", 3)
    running.tell(signal.SIGUSR1)
    saved = running.until("saved")
    assert 3 <= float(saved["saved"]) < 30  # type: ignore[arg-type]
    said = running.rest()
    assert {"finished": 30} in said
    assert said[-1]["digest"] == undisturbed(30)


@pytest.mark.long
def test_killed_it_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    running = Running(tmp_path, "--steps", 30, "--step-s", 0.1)
    running.until("step", 3)
    running.tell(signal.SIGUSR1)
    saved = running.until("saved")["saved"]
    running.until("step", float(saved) + 3)  # type: ignore[arg-type]
    running.process.kill()
    running.process.wait(LIMIT_S)
    assert running.process.stdout is not None
    running.process.stdout.close()
    (tmp_path / ".step-000000000099.part").mkdir()
    again = Running(tmp_path, "--steps", 30)
    said = again.rest()
    assert {"started": saved} in said
    assert said[-1]["digest"] == undisturbed(30)


@pytest.mark.long
def test_alone_it_keeps_two_checkpoints_and_without_a_folder_none(tmp_path: Path) -> None:
    running = Running(tmp_path, "--steps", 40, "--step-s", 0.1, agent=False)
    for _ in range(3):
        running.until("step", len(running.said))
        running.tell(signal.SIGUSR1)
        running.until("saved")
    running.rest()
    assert len(list(tmp_path.iterdir())) == 2


def test_how_many_steps_has_to_be_known() -> None:
    with pytest.raises(ValueError, match="max_trial_steps"):
        next(Trial().steps())


@pytest.mark.long
def test_the_example_of_epochs_goes_on_bit_for_bit(tmp_path: Path) -> None:
    program, epochs = PROGRAM.parents[1] / "examples" / "live" / "epochs.py", 80

    def weights(folder: Path) -> dict[str, torch.Tensor]:
        newest = max(path for path in folder.iterdir() if path.name.startswith("step-"))
        assert newest.name == f"step-{epochs * 25:012d}"
        parts = torch.load(newest / "state.pt", weights_only=True)["parts"]
        return parts["model"] | {f"average {name}": value for name, value in parts["average"].items()}

    Running(tmp_path / "undisturbed", "--epochs", epochs, program=program).rest()
    steps = [0]
    for at in (60, 230):
        running = Running(tmp_path / "cut", "--epochs", epochs, program=program)
        steps.append(int(running.until("step", at)["step"]))  # type: ignore[call-overload]
        running.tell(signal.SIGTERM)
        said = running.rest()
        assert {"started": steps[-2]} in said
        steps[-1] = int(next(message["left"] for message in said if "left" in message))  # type: ignore[call-overload]
    assert 0 < steps[1] < steps[2] < epochs * 25
    assert Running(tmp_path / "cut", "--epochs", epochs, program=program).rest()[-1] == {"finished": epochs * 25}
    expected, found = weights(tmp_path / "undisturbed"), weights(tmp_path / "cut")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
