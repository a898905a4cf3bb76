"""A notice at every line of a training loop: what is resumed ends with the weights of what was not disturbed."""

from __future__ import annotations

import contextlib
import hashlib
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import ebbtide.trial
import ebbtide.trial_torch
from ebbtide.trial import AGENT, CHECKPOINT_DIR, Trial
from ebbtide.trial_torch import TorchState

Program = Callable[[Trial], list[Any]]
INPUTS = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
GOALS = INPUTS.sum(1, keepdim=True).sin()


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1)
    )


def sgd(*models: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1, momentum=0.9)


def some() -> tuple[torch.Tensor, torch.Tensor]:
    """A batch, chosen by all three generators of random numbers."""
    first = int(np.random.randint(0, 12))  # noqa: NPY002
    chosen = [first, random.randrange(12), *torch.randint(0, 12, (4,)).tolist()]
    return INPUTS[chosen], GOALS[chosen]


def loss_of(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return functional.mse_loss(model(batch[0]), batch[1])


def evaluated(model: torch.nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        found = loss_of(model, (INPUTS, GOALS))
    model.train()
    return float(found)


# Programs. Each returns what is compared.


def plain(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    trial.keep(TorchState(model=model, optimizer=optimizer))
    for _ in trial.steps(5):
        batch = some()
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        trial.report(loss=evaluated(model))
        value = 1
        value += 1
    return [model.state_dict()]


def draws_before_it_begins(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    trial.keep(TorchState(model=model, optimizer=optimizer))
    torch.randperm(100)
    for _ in trial.steps(3):
        loss = loss_of(model, some())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [model.state_dict()]


def evaluation_that_draws(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    trial.keep(TorchState(model=model, optimizer=optimizer))
    for _ in trial.steps(5):
        optimizer.zero_grad()
        loss_of(model, some()).backward()
        optimizer.step()
        with torch.no_grad():
            batch = some()
            metric = loss_of(model.eval(), batch)
        model.train()
        trial.report(loss=metric)
    return [model.state_dict()]


def clipped_weights(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    trial.keep(TorchState(model=model, optimizer=optimizer))
    for _ in trial.steps(5):
        optimizer.zero_grad()
        loss_of(model, some()).backward()
        optimizer.step()
        trial.report(loss=1.0)
        for parameter in model.parameters():
            parameter.data.clamp_(-0.2, 0.2)
    return [model.state_dict()]


def settings_by_hand(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    trial.keep(TorchState(model=model, optimizer=optimizer))
    for _ in trial.steps(5):
        optimizer.param_groups[0]["lr"] *= 0.7
        batch = some()
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    return [model.state_dict(), optimizer.state_dict()]


def averaged(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    trial.keep(TorchState(model=model, optimizer=optimizer, average=average))
    for _ in trial.steps(5):
        optimizer.zero_grad()
        loss_of(model, some()).backward()
        optimizer.step()
        trial.report(loss=evaluated(model))
        average.update_parameters(model)
    return [model.state_dict(), average.state_dict()]


def scaled(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    trial.keep(TorchState(model=model, optimizer=optimizer, scaler=scaler))
    for _ in trial.steps(5):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, some())).backward()
        scaler.step(optimizer)
        trial.report(loss=evaluated(model))
        scaler.update()
    return [model.state_dict(), scaler.state_dict()]


def two_optimizers(trial: Trial) -> list[Any]:
    one, two = network(), network()
    first, second = sgd(one), sgd(two)
    trial.keep(TorchState(one=one, two=two, first=first, second=second))
    for _ in trial.steps(4):
        batch = some()
        first.zero_grad()
        loss_of(one, batch).backward()
        first.step()
        second.zero_grad()
        (loss_of(two, batch) + one(batch[0]).mean()).backward()
        second.step()
    return [one.state_dict(), two.state_dict()]


def scheduled(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=5)
    trial.keep(TorchState(model=model, optimizer=optimizer, schedule=schedule))
    for _ in trial.steps(5):
        optimizer.zero_grad()
        loss_of(model, some()).backward()
        optimizer.step()
        trial.report(loss=evaluated(model))
        schedule.step()
    return [model.state_dict(), optimizer.state_dict()]


def accumulated(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    trial.keep(TorchState(model=model, optimizer=optimizer))
    for _ in trial.steps(4):
        optimizer.zero_grad()
        for _ in range(2):
            loss_of(model, some()).backward()
        optimizer.step()
    return [model.state_dict()]


def accumulated_over_steps(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    trial.keep(TorchState(model=model, optimizer=optimizer))
    for step in trial.steps(7):
        loss_of(model, some()).backward()
        if step % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return [model.state_dict()]


def an_epoch_a_step(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    trial.keep(TorchState(model=model, optimizer=optimizer))
    loader = DataLoader(TensorDataset(INPUTS, GOALS), batch_size=4, shuffle=True)
    for _ in trial.steps(3):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        trial.report(loss=evaluated(model))
    return [model.state_dict()]


def own_generators(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    generator, numbers = torch.Generator().manual_seed(3), np.random.default_rng(4)
    old = np.random.Generator(np.random.MT19937(5))
    trial.keep(TorchState(model=model, optimizer=optimizer, generator=generator, numbers=numbers, old=old))
    for _ in trial.steps(4):
        chosen = torch.randint(0, 12, (4,), generator=generator)
        chosen = (chosen + int(numbers.integers(12)) + int(old.integers(12))) % 12
        optimizer.zero_grad()
        loss_of(model, (INPUTS[chosen], GOALS[chosen])).backward()
        optimizer.step()
        trial.report(loss=evaluated(model))
    return [model.state_dict()]


def epochs(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    trial.keep(TorchState(model=model, optimizer=optimizer))
    loader = DataLoader(TensorDataset(INPUTS, GOALS), batch_size=4, shuffle=True)
    for _, batches in trial.epochs(loader, 3):
        model.train()
        for batch in batches:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        trial.report(loss=evaluated(model))
        some()
        trial.report(other=1.0)
    return [model.state_dict()]


def epochs_with_everything(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    average = AveragedModel(model)
    trial.keep(TorchState(model=model, optimizer=optimizer, schedule=schedule, average=average))
    generator = torch.Generator().manual_seed(7)
    loader = DataLoader(TensorDataset(INPUTS, GOALS), batch_size=3, shuffle=True, generator=generator)
    for epoch, batches in trial.epochs(loader, 3):
        random.random()
        if epoch > 1:
            schedule.step()
        for number, batch in enumerate(batches, batches.done):
            loss_of(model, batch).backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
        trial.report(loss=evaluated(model))
        average.update_parameters(model)
        torch.randn(3)
    return [model.state_dict(), average.state_dict(), optimizer.state_dict()]


def epochs_left_early(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    trial.keep(TorchState(model=model, optimizer=optimizer))
    loader = DataLoader(TensorDataset(INPUTS, GOALS), batch_size=3, shuffle=True)
    for _, batches in trial.epochs(loader, 3):
        for number, batch in enumerate(batches, batches.done):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            if number == 1:
                break
        trial.report(loss=evaluated(model))
    return [model.state_dict()]


class Stream(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Of no known length, in an order that is drawn."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = torch.randperm(7).tolist()
        for place in order:
            yield INPUTS[place] + 0.01 * torch.randn(4), GOALS[place]


def stream(trial: Trial) -> list[Any]:
    model = network()
    optimizer = sgd(model)
    trial.keep(TorchState(model=model, optimizer=optimizer))
    for _, batches in trial.epochs(DataLoader(Stream(), batch_size=2, drop_last=True), 2):
        for batch in batches:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return [model.state_dict()]


PROGRAMS = [
    plain,
    draws_before_it_begins,
    evaluation_that_draws,
    clipped_weights,
    settings_by_hand,
    averaged,
    scaled,
    two_optimizers,
    scheduled,
    accumulated,
    accumulated_over_steps,
    an_epoch_a_step,
    own_generators,
    epochs,
    epochs_with_everything,
    epochs_left_early,
    stream,
]


# What runs them.


class Notice:
    """SIGTERM, or SIGUSR1, before a line: the so many-th of those that are run in the files looked at."""

    def __init__(self, at: int | None, files: set[str], number: int = signal.SIGTERM) -> None:
        self.at, self.files, self.number = at, files, number
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        if event == "line":
            if self.lines == self.at:
                # Counted before: the handler's own lines do not raise it again.
                self.lines += 1
                signal.raise_signal(self.number)
            else:
                self.lines += 1
        return self


def digest(states: list[Any]) -> str:
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in value:
                add(value[key])
        elif isinstance(value, list | tuple):
            for one in value:
                add(one)
        elif isinstance(value, torch.Tensor):
            found.update(value.detach().numpy().tobytes())
        else:
            found.update(repr(value).encode())

    add(states)
    return found.hexdigest()


def live(program: Program, notice: Notice | None = None) -> str | None:
    """One life of a program; None: it left."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    # A life that ended at the very line of `with torch.no_grad()` did not come to its end.
    torch.set_grad_enabled(True)
    trial = Trial.current()
    before = sys.gettrace()
    sys.settrace(notice)
    try:
        return digest(program(trial))
    except SystemExit as error:
        return None if error.code == 0 else f"exit code {error.code}"
    finally:
        sys.settrace(before)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    for number, handler in before.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def checkpoints(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv(CHECKPOINT_DIR, str(folder))
        patch.setenv(AGENT, "1")
        yield


# So many line events apart are notices in ordinary tests; the long one leaves none out.
APART = 5

OWN = {__file__}
ALL = OWN | {ebbtide.trial.__file__, ebbtide.trial_torch.__file__}


def after_notices(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch, at: list[int], files: set[str]
) -> str | None:
    with checkpoints(folder, monkeypatch):
        for place in at:
            found = live(program, Notice(place, files))
            if found is not None:
                return found
        return live(program)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("program", "apart"),
    [
        *[(program, APART) for program in PROGRAMS],
        *[pytest.param(program, 1, marks=pytest.mark.exhaustive) for program in PROGRAMS],
    ],
)
def test_at_the_lines_of_a_program(
    program: Program, apart: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    counted = Notice(None, OWN)
    undisturbed = live(program, counted)
    assert counted.lines > 20
    for at in range(counted.lines % apart, counted.lines, apart):
        found = after_notices(program, tmp_path / str(at), monkeypatch, [at, 9], OWN)
        assert found == undisturbed, f"after a notice at line event {at}"


@pytest.mark.parametrize("program", [plain, averaged, epochs, epochs_with_everything])
def test_at_lines_of_ours(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    counted = Notice(None, ALL)
    with checkpoints(tmp_path / "undisturbed", monkeypatch):
        undisturbed = live(program, counted)
    for at in range(counted.lines % 7, counted.lines, counted.lines // 25):
        found = after_notices(program, tmp_path / str(at), monkeypatch, [at], ALL)
        assert found == undisturbed, f"after a notice at line event {at}"


@pytest.mark.parametrize("program", PROGRAMS)
def test_saved_and_gone_on_then_killed(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGUSR1 at a line, then an end without notice: every checkpoint leads to the same weights."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    counted = Notice(None, OWN)
    undisturbed = live(program, counted)
    for at in range(1, counted.lines, 3 * APART):
        folder = tmp_path / str(at)
        with checkpoints(folder, monkeypatch):
            assert live(program, Notice(at, OWN, signal.SIGUSR1)) == undisturbed
            finished = max(folder.iterdir())
            assert not list(folder.glob(".*"))
            finished.rename(tmp_path / f"end of {at}")
            # Resumed from whatever the signal saved, or from the beginning.
            assert live(program) == undisturbed
