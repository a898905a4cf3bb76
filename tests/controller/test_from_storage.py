"""A run whose journal is lost, damaged or older than storage: it is told so, and can go on from its checkpoints."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.runs.commands import User, user
from tests.runs.sweeps import START_S, sweep

import ebbtide as eb
from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.base.runtime import RUNTIME
from ebbtide.cli import resuming
from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.controller.agent_provider import AgentProvider, Callbacks
from ebbtide.controller.controller import Controller, Programs
from ebbtide.controller.from_storage import FROM_STORAGE, FromStorage, from_storage_of, go_on_from_storage
from ebbtide.controller.journal.journal import Journal, journal_of
from ebbtide.controller.leadership import (
    Leadership,
    LostJournalError,
    MachineNumbers,
    OthersRunError,
    SupersededError,
)
from ebbtide.controller.run_state import LOCK, State, phase_of, state_now
from ebbtide.controller.team.account import TeamAccount
from ebbtide.controller.team.account_book import AccountBook
from ebbtide.controller.team.account_lines import AccountLine, month_of
from ebbtide.controller.team.team import Accounting, Team
from ebbtide.errors import InputError
from ebbtide.market.catalogue import default_catalogue
from ebbtide.runs.by_provider import MachinesEnded
from ebbtide.runs.settling import lines_of_journal, settle
from ebbtide.runs.status import standing_of
from ebbtide.storage.objects import FolderStore

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture
def someone(tmp_path: Path) -> Iterator[User]:
    with user(tmp_path) as one:
        yield one


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run whose controller has rented machines 0 to 4."""
    (tmp_path / "program.py").write_text("")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    wanted = sweep(tmp_path, trials=1).model_dump(mode="json")
    store = str(tmp_path / "store")
    folder.begin(LiveSettings("run", "local", "cheapest-spot", wanted, str(tmp_path), store, {}, 0))
    numbers = MachineNumbers(FolderStore(tmp_path / "store"), "run", folder.key)
    numbers.begin(0, 1)
    numbers.take(2)
    numbers.take(4)
    (folder.path / LOCK).touch()
    return folder


def nothing_runs() -> str:
    return ""


def written(folder: RunFolder, **states: object) -> Journal:
    journal = journal_of(folder)
    journal.keep({"tracking": {"uri": "here"}, **states})
    return journal


def damaged(folder: RunFolder) -> None:
    written(folder)
    content = folder.journal.read_bytes()
    folder.journal.write_bytes(b"not a database" + content[100:])


def emptied(folder: RunFolder) -> None:
    folder.journal.write_bytes(b"")


def older(folder: RunFolder) -> None:
    written(folder)


@pytest.mark.parametrize(
    ("lose", "why"),
    [
        (lambda _: None, "its journal was empty"),
        (emptied, "its journal was empty"),
        (older, "its journal was empty"),
        (damaged, "its journal could not be read"),
    ],
)
def test_it_has_a_new_journal_and_goes_on_with_machines_of_other_numbers(
    run: RunFolder, lose: Callable[[RunFolder], None], why: str
) -> None:
    lose(run)
    was_there = run.journal.exists()
    found = go_on_from_storage(run, nothing_runs)
    assert found.first_machine == 5
    assert found.why.startswith(why)
    assert (run.path / found.aside).exists() == bool(found.aside) or found.aside == ""
    assert bool(found.aside) == was_there
    journal = journal_of(run)
    assert from_storage_of(journal) == found
    if lose is older:
        assert journal.state("tracking") == {"uri": "here"}
    # What was paid before is named as unknown.
    status = standing_of(run, default_catalogue())
    assert re.fullmatch(r"what it paid before .*Z is unknown, since its journal was lost", status.unknown)
    assert status.as_plain()["unknown"] == status.unknown
    # Now there is nothing that it does not know.
    with pytest.raises(InputError, match="has all of it"):
        go_on_from_storage(run, nothing_runs)


def test_with_another_key_it_is_somebody_else_s(run: RunFolder) -> None:
    Leadership.take(FolderStore(Path(run.settings.store)), "run", run.key)
    (run.path / "key").unlink()
    with pytest.raises(OthersRunError, match="put back its own file `key`"):
        go_on_from_storage(run, nothing_runs)


def test_two_who_do_so_at_once_do_not_put_each_other_s_journal_aside(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def end(*_: Any, **__: Any) -> MachinesEnded:
        with pytest.raises(InputError) as told:
            resuming._continued_from_storage(run)
        refused.append(str(told.value))
        return MachinesEnded(0)

    monkeypatch.setattr(resuming, "end_machines", end)
    found = resuming._continued_from_storage(run)
    assert "run run has a controller" in refused[0]
    assert from_storage_of(journal_of(run)) == found


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_run_that_has_rented_is_never_refused(
    tmp_path: Path, run: RunFolder, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    """Before, its state was that of a run that rented nothing, and the nightly service deleted its folder and key."""
    if is_damaged:
        written(run)
    else:
        go_on_from_storage(run, nothing_runs)
    cloud: Any = SimpleNamespace(now_s=START_S, markets=(), time_of=lambda epoch_s: epoch_s)
    agent = AgentConfig("run", "", run.settings.store, "")
    controller = Controller(run, eb.policy("cheapest-spot"), cloud, agent, Programs(3600.0))

    def fails(*_: Any, **__: Any) -> None:
        raise InputError("something is wrong")

    monkeypatch.setattr(*((Journal, "run") if is_damaged else (Controller, "_claim")), fails)
    with pytest.raises(InputError, match="something is wrong"):
        controller.run()
    monkeypatch.undo()
    phase = phase_of(journal_of(run))
    assert phase is not None
    assert phase.state is State.BROKEN


def test_what_its_team_s_account_knows_is_not_lost(tmp_path: Path, run: RunFolder) -> None:
    team = Team(accounts=str(tmp_path / "team"), monthly_budget_usd=10.0)
    Accounting("ann", {}, team).keep(run)
    account = TeamAccount.of(run, RUNTIME)
    assert account is not None
    paid = AccountLine(month_of(time.time()), "charge", 0, "m", False, "", "", None, 4.0)
    assert account.note(lambda: [paid], 1, 0.5, "running") == ""
    found = go_on_from_storage(run, nothing_runs)
    assert found.lines == lines_of_journal(run) == [paid]
    assert "only what its team's account has is known" in str(found)
    # Its next controller writes the account anew.
    cloud: Any = SimpleNamespace(now_s=START_S, markets=(), time_of=lambda epoch_s: epoch_s)
    agent = AgentConfig("run", "", run.settings.store, "")
    controller = Controller(run, eb.policy("cheapest-spot"), cloud, agent, Programs(3600.0))
    controller._go_on_with_account(is_resumed=False)
    controller._due_figures()
    (written,) = AccountBook(FolderStore(tmp_path / "team")).read(paid.month, {})
    assert (written.spent_usd, written.lines) == (4.0, (paid,))
    assert controller._account is not None
    assert controller._account.room().usd == 6.0
    assert settle(run, {}) == ""
    (settled,) = AccountBook(FolderStore(tmp_path / "team")).read(paid.month, {})
    assert (settled.spent_usd, settled.machines) == (4.0, 0)


def test_one_whose_machines_may_run_does_not_go_on(run: RunFolder) -> None:
    with pytest.raises(InputError, match="machines of run run may still run: refused"):
        go_on_from_storage(run, lambda: "refused")
    assert not run.journal.exists()


def test_one_that_has_rented_nothing_begins(tmp_path: Path, run: RunFolder) -> None:
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(InputError, match="has rented nothing yet: `ebbtide resume run` begins it"):
        go_on_from_storage(run, nothing_runs)


def test_the_state_of_one_whose_journal_is_gone_is_that(run: RunFolder) -> None:
    assert state_now(run, None) == (State.LOST, None)
    (run.path / LOCK).unlink()
    assert state_now(run, None) == (State.NEW, None)


def test_a_damaged_journal_says_how_the_run_can_go_on(run: RunFolder) -> None:
    damaged(run)
    with pytest.raises(InputError, match=r"cannot be read: .*`ebbtide resume RUN --from-storage`"):
        standing_of(run, default_catalogue())
    # One that is locked is not damaged.
    run.journal.unlink()
    written(run)
    with sqlite3.connect(run.journal, isolation_level=None) as connection:
        connection.execute("pragma journal_mode = delete")
        connection.execute("begin exclusive")
        with pytest.raises(InputError) as told, pytest.MonkeyPatch.context() as patch:
            patch.setattr("ebbtide.controller.journal.sqlite._WAIT_S", 0.0)
            journal_of(run, read_only=True).state("phase")
        assert "--from-storage" not in str(told.value)


def test_numbers_that_storage_knows_refuse_an_empty_or_older_journal(run: RunFolder) -> None:
    store = FolderStore(Path(run.settings.store))
    numbers = MachineNumbers(store, "run", run.key)
    numbers.begin(0, 2)
    with pytest.raises(
        LostJournalError, match="the run's journal records no machine: it was lost, or its database is"
    ):
        numbers.check(-1)
    older = MachineNumbers(store, "run", run.key)
    older.restore({"next": 3, "epochs": [(0, 1), (3, 2)]})
    with pytest.raises(SupersededError, match=r"gone back in time, `ebbtide resume RUN --from-storage`"):
        older.check(2)
    assert numbers.first_free() == 5


def test_machines_of_the_lost_journal_are_no_strays_and_new_ones_are_counted_on(tmp_path: Path) -> None:
    rents = AgentProvider(
        None,  # type: ignore[arg-type]
        FolderStore(tmp_path),
        AgentConfig("run", "", str(tmp_path), ""),
        Callbacks(lambda _: Assignment("", (), 1, "loss")),
        key=bytes(32),
    )
    rents.begin_at(5)
    assert rents._machines.token(0) == "run-m0005"
    rents._requests.check_listed(["run-m0000", "run-m0004"])
    with pytest.raises(SupersededError, match="machine run-m0005 of this run is not in its journal"):
        rents._requests.check_listed(["run-m0005"])
    assert rents.snapshot()["first_machine"] == 5
    assert rents._requests._newest == 4


@pytest.mark.long
def test_a_run_whose_journal_was_deleted_is_refused_and_then_finishes(someone: User) -> None:
    someone.write(trials=1, steps=600, every_h=5.0)
    controller = someone.start_run()
    someone.wait(lambda: someone.trains() and someone.steps() > 50)
    controller.kill()
    controller.wait()
    name, before = someone.run.path.name, journal_of(someone.run).run()
    assert before is not None
    for path in someone.run.path.glob("journal*"):
        path.unlink()
    _, out, _ = someone.do("status", name)
    assert "journal lost" in out
    assert "--from-storage" in out
    code, _, errors = someone.do("resume")
    assert code == 2
    assert "the run's journal records no machine" in errors
    code, out, errors = someone.do("resume", "--from-storage")
    assert code == 0
    assert "goes on from its checkpoints" in errors
    assert "is unknown, since its journal was lost" in out
    assert "done" in out
    assert not someone.machines()
    kept, found = journal_of(someone.run).run(), from_storage_of(journal_of(someone.run))
    assert kept is not None
    assert found is not None
    assert found.first_machine == len(before["engine"]["leases"])
    # A whole journal is not thrown away.
    code, _, errors = someone.do("resume", "--from-storage")
    assert (code, "has all of it" in errors) == (2, True)
    assert FromStorage.decode(journal_of(someone.run).state(FROM_STORAGE)) == found
    assert json.loads(someone.do("status", name, "--json")[1])["unknown"]
