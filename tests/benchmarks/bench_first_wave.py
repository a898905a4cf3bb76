"""How long a controller takes until every trial of a large sweep has a machine and its order, and its heartbeats.

The cloud and its machines answer at once, so that all time is the controller's own; storage is a folder, and every
order is on disk before it counts. Beside it, in the same run, the floor: writing as many objects to the same folder.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ebbtide.agent.config import AgentConfig
from ebbtide.agent.heartbeats import every_s_of
from ebbtide.base.runtime import RUNTIME
from ebbtide.clouds.cloud import Instance, MachineRequest
from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.controller.controller import Controller, Outside, Programs
from ebbtide.controller.journal.journal import Journal
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.registry import policy
from ebbtide.storage.objects import FolderStore

START_S = 1_700_000_000.0


class InstantCloud:
    """Machines run as soon as they are requested."""

    is_over = False

    def __init__(self, markets: int) -> None:
        types = sorted({kind.name for kind in default_catalogue().instance_types if kind.cloud == "aws"})
        self.markets: Sequence[Market] = tuple(
            Market("aws", "us-east-1", f"us-east-1{number // len(types):03d}", types[number % len(types)])
            for number in range(markets)
        )
        self._prices = {
            market: PriceSeries(np.array([START_S - 3600.0]), np.array([0.05 + number / 1e5]))
            for number, market in enumerate(self.markets)
        }
        self._began_s = time.monotonic()
        self._machines: dict[str, Instance] = {}

    @property
    def now_s(self) -> float:
        return START_S + time.monotonic() - self._began_s

    def prices(self, market: Market) -> PriceSeries:
        return self._prices[market]

    def time_of(self, epoch_s: float) -> float:
        return epoch_s

    def launch(self, wanted: MachineRequest) -> None:
        now_s = self.now_s
        self._machines[wanted.token] = Instance(wanted.token, LeaseState.RUNNING, now_s, now_s, np.nan)

    def terminate(self, token: str) -> float | None:
        machine, now_s = self._machines[token], self.now_s
        self._machines[token] = Instance(token, LeaseState.RELEASED, machine.started_s, machine.running_s, now_s)
        return now_s

    def instances(self) -> Sequence[Instance]:
        return list(self._machines.values())


class RecordingStore(FolderStore):
    """A folder that notes when heartbeats were written, and how many orders were."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.beats_s: list[float] = []
        self.orders = 0

    def put_once(self, key: str, content: bytes) -> bool:
        is_new = super().put_once(key, content)
        if "/alive/" in key:
            self.beats_s.append(time.monotonic())
        elif "/orders/" in key and is_new:
            self.orders += 1
        return is_new


class _FirstWave(Exception):
    """Every trial has its order."""


@pytest.mark.parametrize(("trials", "markets"), [(1_000, 12), (10_000, 12), (10_000, 1_000)])
@pytest.mark.parametrize("name", ["reactive"])
def test_the_first_wave(tmp_path: Path, trials: int, markets: int, name: str) -> None:
    cloud, store = InstantCloud(markets), RecordingStore(tmp_path / "store")
    sweep = Sweep.model_validate(
        {
            "name": "large",
            "command": "python train.py {lr}",
            "random": {"samples": trials, "seed": 0, "parameters": {"lr": {"log_uniform": [1e-5, 1e-1]}}},
            "metric": "loss",
            "max_trial_steps": 100,
            "other_steps_per_hour_per_vcpu": 100.0,
            "budget_usd": 1e6,
        }
    )
    folder = RunFolder(tmp_path / "run")
    folder.begin(LiveSettings("large", "local", name, sweep.model_dump(mode="json"), "", "", {"speed": 1.0}, 0))
    agent = AgentConfig("large", "", "", "")
    began_s = time.monotonic()
    controller = Controller(
        folder,
        policy(name),
        cloud,
        agent,
        Programs(600.0),
        outside=Outside(RUNTIME, store, Journal(folder.journal)),
    )
    made_s = time.monotonic() - began_s

    def look(*_: object) -> None:
        if store.orders >= trials:
            raise _FirstWave

    with pytest.raises(_FirstWave):
        began_s = time.monotonic()
        wave_s = 0.0

        def looked(*given: object) -> None:
            nonlocal wave_s
            wave_s = time.monotonic() - began_s
            look(*given)

        controller.run(looked)
    ended_s = time.monotonic() - began_s - wave_s
    every_s = every_s_of(agent.controller_limit_s)
    gaps = np.diff([began_s, *(beat for beat in store.beats_s if beat <= began_s + wave_s), began_s + wave_s])
    floor = FolderStore(tmp_path / "floor")
    began_s = time.monotonic()
    for number in range(trials):
        floor.put_once(f"machines/m-{number:05d}/orders/00000001", b"x" * 500)
    floor_s = time.monotonic() - began_s
    print(
        f"\n{trials} trials, {markets} markets, {name}: controller made in {made_s:.1f} s; first wave {wave_s:.1f} s, "
        f"{wave_s / floor_s:.1f} times the floor of {floor_s:.1f} s; longest time without a heartbeat "
        f"{gaps.max():.1f} s, of {agent.controller_limit_s:.0f} s after which machines end (due every {every_s:.1f} s); "
        f"all ended {ended_s:.1f} s later"
    )
