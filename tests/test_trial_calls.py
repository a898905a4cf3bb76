"""What a program says to its trial, rightly and wrongly."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ebbtide import trial as trial_module
from ebbtide import trial_torch
from ebbtide.trial import AGENT, CHECKPOINT_DIR, MAX_STEPS, Trial
from ebbtide.trial_torch import RandomStates, TorchState
from tests.waiting import LIMIT_S


class Number:
    """What is kept: a number."""

    ends_at = None

    def __init__(self) -> None:
        self.value = 0

    def save(self, folder: Path, *, within_step: bool) -> None:  # noqa: ARG002
        (folder / "number").write_text(str(self.value))

    def restore(self, folder: Path) -> None:
        self.value = int((folder / "number").read_text())


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    return again(tmp_path, monkeypatch)


def again(folder: Path, monkeypatch: pytest.MonkeyPatch, steps: int | None = None) -> Trial:
    monkeypatch.setenv(CHECKPOINT_DIR, str(folder))
    monkeypatch.setenv(AGENT, "1")
    if steps:
        monkeypatch.setenv(MAX_STEPS, str(steps))
    return Trial.current()


def said(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in capfd.readouterr().out.splitlines()]


def test_metrics_may_be_tensors_and_arrays_of_one(trial: Trial, capfd: pytest.CaptureFixture[str]) -> None:
    trial.report(a=torch.tensor(0.5, requires_grad=True), b=np.float32(0.25), c=np.array([2]), d=3, e=None)
    assert said(capfd)[-1] == {"step": 0, "a": 0.5, "b": 0.25, "c": 2.0, "d": 3.0}


def test_what_is_not_finite_is_told_without_a_value(trial: Trial, capfd: pytest.CaptureFixture[str]) -> None:
    trial.report(loss=float("nan"), other=torch.tensor(float("-inf")), fine=1.0)
    assert said(capfd)[-1] == {
        "step": 0,
        "loss": None,
        "other": None,
        "fine": 1.0,
        "not_finite": ["loss", "other"],
    }


@pytest.mark.parametrize("value", ["0.5", b"1", torch.ones(2), np.ones(3), object(), [1.0], 1j])
def test_what_is_no_number_is_refused_by_name(trial: Trial, value: object) -> None:
    with pytest.raises(TypeError, match="metric loss: a number"):
        trial.report(loss=value)


@pytest.mark.parametrize("name", ["saved", "step", "finished", "left", "folder", "save_s"])
def test_a_metric_cannot_pass_for_a_message(trial: Trial, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    said(capfd)
    with pytest.raises(ValueError, match=f"cannot be called {name}"):
        trial.report(**{name: 3})
    assert said(capfd) == []


def test_keep_is_called_once_and_before_the_loop(trial: Trial) -> None:
    trial.keep(Number())
    with pytest.raises(RuntimeError, match="once"):
        trial.keep(Number())
    late = Trial()
    next(late.steps(2))
    with pytest.raises(RuntimeError, match="before the loop"):
        late.keep(Number())


@pytest.mark.parametrize("second", ["steps", "epochs"])
def test_a_program_has_one_loop(trial: Trial, second: str) -> None:
    assert list(trial.steps(2)) == [1, 2]
    with pytest.raises(RuntimeError, match="one loop"):
        trial.steps(4) if second == "steps" else trial.epochs([1], 3)


def test_before_keep_it_leaves_at_once_and_checkpoints_stay(trial: Trial, tmp_path: Path) -> None:
    (tmp_path / "step-000000000007").mkdir()
    assert trial.step == 0
    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000007"]


def test_without_anything_to_save_nothing_is_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    trial = Trial.current()
    with pytest.raises(SystemExit):
        for _ in trial.steps(3):
            signal.raise_signal(signal.SIGTERM)
    assert said(capfd)[-1] == {"left": 0}


def test_save_within_a_step_waits_for_its_end(trial: Trial, tmp_path: Path) -> None:
    number = Number()
    trial.keep(number)
    for step in trial.steps(3):
        if step == 2:
            trial.save()
            assert not list(tmp_path.glob("step-*2"))
        number.value += 1
        if step == 3:
            assert (tmp_path / "step-000000000002" / "number").read_text() == "2"


def test_a_loop_left_by_break_is_finished_when_it_says_so(
    trial: Trial, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    number = Number()
    trial.keep(number)
    for step in trial.steps(10):
        number.value += 1
        if step == 4:
            break
    trial.finish()
    assert said(capfd)[-1] == {"finished": 4}
    assert (tmp_path / "step-000000000004" / "number").read_text() == "4"


def test_after_an_error_in_the_loop_half_a_step_is_not_saved(trial: Trial, tmp_path: Path) -> None:
    number = Number()
    trial.keep(number)
    with pytest.raises(ZeroDivisionError):
        for _ in trial.steps(3):
            number.value += 1
            if number.value == 2:
                raise ZeroDivisionError
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)
    assert list(tmp_path.iterdir()) == []


def test_epochs_of_any_keeper_number_batches_and_end_with_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int, str]] = []

    def life(notice_at: tuple[int, int] | None) -> None:
        trial = again(tmp_path, monkeypatch, steps=8)
        trial.keep(Number())
        for epoch, batches in trial.epochs(list("abc")):
            assert len(batches) == 3 - batches.done
            for number, batch in enumerate(batches, batches.done):
                seen.append((epoch, number, batch))
                if (epoch, number) == notice_at:
                    signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        life((2, 0))
    with pytest.raises(SystemExit):
        life((2, 2))
    life(None)
    assert seen == [(1 + at // 3, at % 3, "abc"[at % 3]) for at in range(8)]


@pytest.mark.parametrize(
    ("loader", "problem"),
    [
        (iter([1]), "an iterator ends"),
        (DataLoader(TensorDataset(torch.ones(4)), num_workers=1, persistent_workers=True), "persistent_workers"),
    ],
)
def test_loaders_that_cannot_be_resumed_are_refused(trial: Trial, loader: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        trial.epochs(loader, 2)
    with pytest.raises(ValueError, match="how many epochs"):
        trial.epochs([1])


def test_other_data_than_the_checkpoints_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = again(tmp_path, monkeypatch)
    trial.keep(Number())
    with pytest.raises(SystemExit):
        for _, batches in trial.epochs([1, 2, 3], 2):
            for batch in batches:
                if batch == 2:
                    signal.raise_signal(signal.SIGTERM)
    for loader, problem in (([1, 2], "has 2 batches an epoch.* with 3"), ((x for x in ()), "iterator")):
        other = again(tmp_path, monkeypatch)
        other.keep(Number())
        with pytest.raises(ValueError, match=problem):
            other.epochs(loader, 2)
    other = again(tmp_path, monkeypatch)
    other.keep(Number())
    with pytest.raises(ValueError, match="made in trial.epochs"):
        other.steps(9)


class Clock:
    """A clock that moves where a test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in (trial_module, trial_torch):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=found.monotonic))
    return found


def test_what_the_slowest_step_took_is_told_and_not_the_first(
    clock: Clock, trial: Trial, capfd: pytest.CaptureFixture[str]
) -> None:
    trial.keep(Number())
    for step in trial.steps(5):
        clock.now_s += {1: 0.9, 3: 0.4}.get(step, 0.01)
    told = [message["step_s"] for message in said(capfd) if "step_s" in message]
    assert max(told) == pytest.approx(0.4)


def test_of_a_program_that_saves_in_evaluations_the_evaluation_is_not_told(
    clock: Clock, trial: Trial, capfd: pytest.CaptureFixture[str]
) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trial.keep(TorchState(model=model, optimizer=optimizer))
    for _ in trial.steps(5):
        model(torch.ones(3, 2)).mean().backward()
        clock.now_s += 0.05
        optimizer.step()
        clock.now_s += 0.3
    # Of the first step nothing is known; of the others, from the forward pass to the optimizer's step.
    told = [message["step_s"] for message in said(capfd) if message.get("step", 0) > 2]
    assert told
    assert told == [pytest.approx(0.05)] * len(told)


@pytest.mark.usefixtures("processes")
def test_a_forked_process_ends_by_the_signal_and_saves_nothing(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, time\n"
        "from ebbtide.trial import Trial\n"
        "trial = Trial.current()\n"
        "ready, begun = os.pipe()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os.write(begun, b'1')\n"
        "    time.sleep(600)\n"
        "os.read(ready, 1)\n"
        "os.kill(child, signal.SIGTERM)\n"
        "print('child', os.WTERMSIG(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {CHECKPOINT_DIR: str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert f"child {signal.SIGTERM:d}" in done.stdout
    assert "left" not in done.stdout


class Noisy(torch.utils.data.Dataset[torch.Tensor]):
    """Augmented by random numbers, in the worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> torch.Tensor:
        return place + torch.rand(2) + float(np.random.rand())  # noqa: NPY002


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_workers_are_the_same_after_a_notice(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def life(folder: Path, notice_at: int | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        trial = again(folder, monkeypatch)
        model = torch.nn.Linear(2, 1)
        trial.keep(TorchState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)))
        loader = DataLoader(Noisy(), batch_size=2, shuffle=True, num_workers=workers)
        seen: list[torch.Tensor] = []
        try:
            for _, batches in trial.epochs(loader, 2):
                for batch in batches:
                    seen.append(batch + torch.rand(1))
                    if trial.step == notice_at:
                        signal.raise_signal(signal.SIGTERM)
        except SystemExit:
            seen.append(torch.full((2, 2), torch.nan))
        return seen

    whole = life(tmp_path / "whole", None)
    first = life(tmp_path / "cut", 5)
    second = life(tmp_path / "cut", None)
    assert len(first) == 7
    assert torch.isnan(first.pop()).all()
    assert torch.equal(torch.stack(first + second), torch.stack(whole))


def test_cuda_states_are_kept_and_set_where_there_are_as_many_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [torch.tensor([1, 2], dtype=torch.uint8), torch.tensor([3, 4], dtype=torch.uint8)]
    put: list[Any] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(devices))
    monkeypatch.setattr("torch.cuda.get_rng_state_all", lambda: list(devices))
    monkeypatch.setattr("torch.cuda.set_rng_state_all", put.append)
    found = RandomStates.decode(RandomStates.now({}).encode())
    found.set({})
    assert len(put) == 1
    assert all(map(torch.equal, put[0], devices))
    devices.pop()
    with pytest.warns(UserWarning, match="2 CUDA devices, this machine has 1"):
        found.set({})
    assert len(put) == 1


def test_other_parts_than_the_checkpoints_are_named(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    TorchState(model=model).save(tmp_path, within_step=False)
    with pytest.raises(ValueError, match=r"has \['model'\], the program keeps \['model', 'optimizer'\]"):
        TorchState(model=model, optimizer=torch.optim.SGD(model.parameters())).restore(tmp_path)
    with pytest.raises(TypeError, match="rate: a float has no state_dict"):
        TorchState(model=model, rate=0.1)


def test_a_notice_after_the_loop_does_not_cut_what_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_alone in (False, True):
        trial = again(tmp_path / str(is_alone), monkeypatch)
        trial.has_agent = not is_alone
        trial.keep(Number())
        assert list(trial.steps(2)) == [1, 2]
        # An agent takes it as done, so that nobody would do the rest; alone it can be started again.
        with pytest.raises(SystemExit) if is_alone else contextlib.nullcontext():
            signal.raise_signal(signal.SIGTERM)


def test_a_keeper_that_lacks_a_part_is_refused_before_the_loop(trial: Trial) -> None:
    """A missing `ends_at` once ended the training hours later, at its first notice."""
    keeper: Any = SimpleNamespace(save=print, restore=print)
    with pytest.raises(TypeError, match="SimpleNamespace has no ends_at: a keeper has save, restore and ends_at"):
        trial.keep(keeper)
    assert trial.keep(Number()) == 0
