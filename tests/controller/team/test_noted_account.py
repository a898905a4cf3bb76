"""A controller tells its team of its machines, also while it does not know their prices."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.runs.sweeps import START_S, A, sweep

import ebbtide as eb
from ebbtide.agent.config import AgentConfig
from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.controller.controller import Controller, Programs
from ebbtide.controller.snapshots import RunSpending
from ebbtide.controller.team.account_book import AccountBook
from ebbtide.controller.team.account_lines import month_of
from ebbtide.controller.team.team import Accounting, Team
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.storage.objects import FolderStore


def figures(spent_usd: float | None, open_usd: list[tuple[int, float]]) -> RunSpending:
    rate = None if spent_usd is None else 0.5
    return {
        "time_s": START_S + 3600.0,
        "at_epoch_s": time.time(),
        "spent_usd": spent_usd,
        "usd_per_hour": rate,
        "speed": 1.0,
        "open_usd": open_usd,
    }


def test_while_prices_are_not_known_its_account_is_written_by_those_known_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mid_month: None
) -> None:
    (tmp_path / "program.py").write_text("")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    wanted, store = sweep(tmp_path, trials=1).model_dump(mode="json"), str(tmp_path / "store")
    folder.begin(LiveSettings("run", "local", "cheapest-spot", wanted, str(tmp_path), store, {}))
    Accounting("ann", {}, Team(accounts=str(tmp_path / "team"), machines=4)).keep(folder)
    cloud: Any = SimpleNamespace(now_s=START_S, markets=(), time_of=lambda epoch_s: epoch_s)
    controller = Controller(
        folder, eb.policy("cheapest-spot"), cloud, AgentConfig("run", "", store, ""), Programs(3600.0)
    )
    leases = [
        Lease(number, A, 0.5, False, START_S, LeaseState.RUNNING, started_s=START_S, running_s=START_S)
        for number in range(2)
    ]
    engine = controller.engine
    monkeypatch.setattr(type(engine), "all_leases", leases)
    monkeypatch.setattr(type(engine), "leases", property(lambda _: [one for one in leases if one.is_open]))

    def written() -> tuple[int, float]:
        (account,) = AccountBook(FolderStore(tmp_path / "team")).read(month_of(time.time()), {})
        return account.machines, account.spent_usd

    controller._note_account(figures(0.5, [(0, 0.25), (1, 0.25)]), "running")
    assert written() == (2, 0.5)
    # A machine has ended, and what the other costs is not known.
    leases[0].state = LeaseState.RELEASED
    controller._note_account(figures(None, []), "running")
    assert written() == (1, 0.25)
