"""Training can stop between any two steps and go on bit for bit as if it had not."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.waiting import LIMIT_S

from ebbtide.errors import InputError
from ebbtide.jobs.reference.benchmarks import BENCHMARKS, SETTINGS, ReferenceBenchmark, benchmark
from ebbtide.jobs.reference.datasets import ReferenceDataset, load_dataset
from ebbtide.jobs.reference.networks import resnet
from ebbtide.jobs.reference.order import DataOrder
from ebbtide.jobs.reference.trial import load, save


def small(chosen: ReferenceBenchmark) -> ReferenceDataset:
    """The dataset's first samples: enough for several epochs in a few steps."""
    data = load_dataset(chosen.dataset)
    return ReferenceDataset(
        data.train_inputs[:300],
        data.train_targets[:300],
        data.validation_inputs[:50],
        data.validation_targets[:50],
        data.origin,
        data.noise,
    )


def flat(state: Any) -> list[Any]:
    """Leaves of a state, in order."""
    if isinstance(state, dict):
        return [leaf for key in state for leaf in flat(state[key])]
    if isinstance(state, list | tuple):
        return [leaf for value in state for leaf in flat(value)]
    return [state]


def same(left: Any, right: Any) -> bool:
    """Equal in every bit."""
    pairs = list(zip(flat(left), flat(right), strict=True))
    return all(torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other for one, other in pairs)


def test_table_two_has_six_algorithms_of_sixteen_settings() -> None:
    assert [len(chosen.settings) for chosen in BENCHMARKS.values()] == [16] * 6
    assert SETTINGS == 96
    assert benchmark("resnet").setting(0) == {"bs": 32, "version": 1, "depth": 20, "de": 40}
    for chosen in BENCHMARKS.values():
        assert len({json.dumps(setting) for setting in chosen.settings}) == 16


@pytest.mark.long
@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.parametrize("stop", [1, 5])
def test_a_restored_trial_goes_on_bit_for_bit(name: str, stop: int, tmp_path: Path) -> None:
    chosen = benchmark(name)
    data, setting = small(chosen), chosen.setting(5)
    whole = chosen.build(setting, data, 7)
    for _ in range(stop + 6):
        whole.train_step()
    begun = chosen.build(setting, data, 7)
    for _ in range(stop):
        begun.train_step()
    save(begun, tmp_path / "trial.pt", setting=setting)
    # Nothing of the first process is left but the file; the new one begins with other random numbers.
    torch.manual_seed(99)
    resumed = chosen.build(setting, data, 7)
    load(resumed, tmp_path / "trial.pt", setting=setting)
    assert resumed.step == stop
    for _ in range(6):
        resumed.train_step()
    assert same(resumed.state(), whole.state())
    assert resumed.validate() == whole.validate()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_validation_changes_nothing(name: str) -> None:
    chosen = benchmark(name)
    data = small(chosen)
    asked, silent = (chosen.build(chosen.setting(0), data, 1) for _ in range(2))
    for _ in range(4):
        asked.train_step()
        asked.validate()
        silent.train_step()
    assert same(asked.state(), silent.state())


def test_a_seed_is_a_training() -> None:
    chosen = benchmark("svm")
    data = small(chosen)
    first, again, other = (chosen.build(chosen.setting(1), data, seed) for seed in (1, 1, 2))
    for trial in (first, again, other):
        trial.train_step()
    assert same(first.state(), again.state())
    assert not same(first.state(), other.state())


def test_every_sample_is_visited_once_an_epoch() -> None:
    order = DataOrder(10, 5, seed=3)
    first = torch.cat([order.at(0), order.at(1)])
    assert sorted(first.tolist()) == list(range(10))
    second = torch.cat([order.at(2), order.at(3)])
    assert sorted(second.tolist()) == list(range(10))
    assert first.tolist() != second.tolist()
    # Any step may be asked about, in any order.
    assert torch.equal(DataOrder(10, 5, seed=3).at(3), order.at(3))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("depth", [20, 29])
def test_depth_counts_convolutions_on_the_way_and_the_last_layer(version: int, depth: int) -> None:
    network = resnet(version, depth, channels=3, classes=10)
    layers = [
        name
        for name, part in network.named_modules()
        if isinstance(part, torch.nn.Conv2d | torch.nn.Linear) and "shortcut" not in name
    ]
    assert len(layers) == depth
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "no such checkpoint"), (b"", "no checkpoint that can be read"), (b"nonsense", "no checkpoint")],
)
def test_a_damaged_checkpoint_is_told(content: bytes | None, problem: str, tmp_path: Path) -> None:
    chosen = benchmark("svm")
    trial = chosen.build(chosen.setting(0), small(chosen), 0)
    path = tmp_path / "trial.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=problem):
        load(trial, path, setting=chosen.setting(0))


def test_half_a_checkpoint_and_another_setting_are_told(tmp_path: Path) -> None:
    chosen = benchmark("svm")
    trial = chosen.build(chosen.setting(0), small(chosen), 0)
    path = tmp_path / "trial.pt"
    save(trial, path, setting=chosen.setting(0))
    with pytest.raises(InputError, match="another setting"):
        load(trial, path, setting=chosen.setting(1))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match="no checkpoint that can be read"):
        load(trial, path, setting=chosen.setting(0))


class Program:
    """The training program in a process of its own."""

    def __init__(self, checkpoint: Path, steps: int) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ebbtide.jobs.reference.program",
                "--workload",
                "alexnet",
                "--setting",
                "4",
                "--checkpoint",
                str(checkpoint),
                "--steps",
                str(steps),
                "--save-every",
                "1",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )

    def next(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        told: dict[str, float] = json.loads(line) if line else {}
        return told

    def until_saved(self, number: int) -> None:
        """Wait for so many checkpoints, or the end."""
        while number > 0 and (told := self.next()):
            number -= "saved" in told

    def end(self, how: signal.Signals | None = None) -> None:
        if how is not None:
            self.process.send_signal(how)
        assert self.process.stdout is not None
        self.process.stdout.read()
        self.process.wait(LIMIT_S)
        self.process.stdout.close()


@pytest.mark.usefixtures("processes")
@pytest.mark.exhaustive
def test_killed_twenty_times_a_training_ends_with_the_weights_of_one_that_was_not(tmp_path: Path) -> None:
    """Real processes, killed without warning or told to stop at random steps; dropout and noise in every step."""
    steps = 120
    Program(tmp_path / "whole.pt", steps).end()
    choose = random.Random(5)
    for _ in range(20):
        program = Program(tmp_path / "killed.pt", steps)
        program.until_saved(choose.randint(1, 5))
        program.end(choose.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
    assert torch.load(tmp_path / "killed.pt", weights_only=True)["state"]["step"] < steps
    Program(tmp_path / "killed.pt", steps).end()
    whole, killed = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("whole", "killed"))
    assert killed["state"]["step"] == steps
    assert same(killed, whole)


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_bad_input_ends_the_program_with_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ebbtide.jobs.reference.program",
            "--workload",
            "resnot",
            "--setting",
            "0",
            "--checkpoint",
            str(tmp_path / "t.pt"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "resnet" in done.stderr
