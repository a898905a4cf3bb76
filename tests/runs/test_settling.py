"""`ebbtide down` of a run without a controller: its team is told that its machines have ended."""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.test_running import command
from tests.ui.made_run import made_run

from ebbtide.base.runtime import RUNTIME
from ebbtide.cli import runs as cli_runs
from ebbtide.clouds.local.server import BILLS
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller import run_state
from ebbtide.controller.journal.changes import split
from ebbtide.controller.journal.journal import Journal, journal_of
from ebbtide.controller.run_state import State, phase_of
from ebbtide.controller.team.account import TeamAccount
from ebbtide.controller.team.account_book import AccountBook, RunAccount, account_name
from ebbtide.controller.team.account_lines import AccountLine, month_of
from ebbtide.controller.team.team import Accounting, Team
from ebbtide.engine.snapshot import lease_of
from ebbtide.errors import InputError, JournalAwayError
from ebbtide.runs import settling
from ebbtide.runs.cost_summary import orphans_of
from ebbtide.runs.settling import lines_of_journal, settle
from ebbtide.runs.why import lease_named
from ebbtide.storage.objects import FolderStore


@pytest.fixture
def folder(tmp_path: Path, mid_month: None) -> RunFolder:
    """A run in the middle of its way, whose controller was killed."""
    found = made_run(tmp_path / "runs", 6, stops_after_h=2.2)
    team = Team(accounts=str(tmp_path / "team"), machines=3, monthly_budget_usd=100.0)
    Accounting("ann", {}, team).keep(found)
    account = TeamAccount.of(found, RUNTIME)
    assert account is not None
    assert account.reserve(3)
    assert account.note(lambda: lines_of_journal(found), 3, 0.5, "running") == ""
    return found


def accounts(folder: RunFolder) -> list[RunAccount]:
    damaged: dict[str, str] = {}
    store = FolderStore(folder.path.parents[1] / "team")
    found = AccountBook(store).read(month_of(time.time()), damaged)
    assert not damaged
    return found


def reads(folder: RunFolder, owner: str = "bob") -> TeamAccount:
    """The account of another run of the team, as it sees the others'."""
    team = Accounting.of(folder).team
    assert team is not None
    return TeamAccount(
        "another", folder.settings, Accounting(owner, {}, team), FolderStore(Path(team.accounts)), RUNTIME
    )


def test_down_frees_machines_and_keeps_every_cent(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (before,) = accounts(folder)
    assert before.machines == 3
    assert not reads(folder).reserve(1)
    code, out, errors = command(capsys, "down", folder.path.name, "--runs", folder.path.parent)
    assert (code, errors) == (0, ""), out
    (after,) = accounts(folder)
    assert (after.name, after.state) == (account_name(folder), "down")
    assert (after.machines, after.usd_per_hour) == (0, 0.0)
    figures = journal_of(folder, read_only=True).figures()
    assert figures is not None
    assert after.spent_usd == pytest.approx(figures["spent_usd"])
    assert after.spent_usd == pytest.approx(math.fsum(line.usd for line in after.lines))
    assert after.spent_usd >= before.spent_usd > 0.0
    assert reads(folder).reserve(3)


@pytest.mark.parametrize("state", [State.STOPPED, State.BROKEN, State.REFUSED, State.RUNNING])
def test_a_run_that_may_be_continued_by_itself_is_ended(folder: RunFolder, state: State) -> None:
    """Before, a scheduled run that was stopped, and then ended by `ebbtide down`, was resumed the next night."""
    journal = journal_of(folder)
    phase = phase_of(journal)
    assert phase is not None
    journal.keep({"phase": replace(phase, state=state, why="said before").encode()})
    assert settle(folder, {}) == ""
    ended = phase_of(journal)
    assert ended is not None
    assert ended.state is State.DOWN
    assert ended.why == ("" if state is State.RUNNING else "said before")


@pytest.mark.parametrize("state", [State.FINISHED, State.FAILED, State.GAVE_UP])
def test_a_run_that_has_ended_stays_as_it_is(folder: RunFolder, state: State) -> None:
    journal = journal_of(folder)
    phase = phase_of(journal)
    assert phase is not None
    journal.keep({"phase": replace(phase, state=state).encode()})
    settle(folder, {})
    assert phase_of(journal) == replace(phase, state=state)


def test_where_the_accounts_are_gone_none_begin_anew(folder: RunFolder, tmp_path: Path) -> None:
    """Before, they did, and a run that was resumed then had the whole budget again."""
    (tmp_path / "team").rename(tmp_path / "not-mounted")
    assert "lacks the accounts that were there" in settle(folder, {})
    assert not (tmp_path / "team").exists()


def test_a_journal_that_went_back_in_time_lowers_no_account(folder: RunFolder, tmp_path: Path) -> None:
    (before,) = accounts(folder)
    rented = {line.lease_id for line in lines_of_journal(folder)}
    older = made_run(tmp_path / "older" / "runs", 6, stops_after_h=0.7)
    for path in folder.path.glob("journal.sqlite*"):
        path.unlink()
    for path in older.path.glob("journal.sqlite*"):
        shutil.copy(path, folder.path / path.name)
    assert {line.lease_id for line in lines_of_journal(folder)} < rented
    assert settle(folder, {}) == ""
    (after,) = accounts(folder)
    assert after.spent_usd >= before.spent_usd - 1e-12
    assert {line.lease_id for line in after.lines} >= {line.lease_id for line in before.lines}


def test_down_does_not_take_a_controller_that_it_cannot_see_for_none(
    folder: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a controller on another host rented new machines, and the team was told that all had ended."""
    (before,) = accounts(folder)

    def away(_: Journal) -> bool:
        raise JournalAwayError("since its database does not answer")

    monkeypatch.setattr(Journal, "is_controlled", away)
    monkeypatch.setattr(cli_runs, "RENTED", {folder.settings.provider})
    settings = json.loads((folder.path / "run.json").read_text())
    (folder.path / "run.json").write_text(json.dumps(settings | {"journal": "postgresql://127.0.0.1/runs"}))
    monkeypatch.setattr(run_state, "journal_of", lambda *_, **__: Journal(folder.journal))
    code, _, errors = command(capsys, "down", folder.path.name, "--runs", folder.path.parent)
    assert code == 1
    assert "a controller on another host may still run and rent, since its database does not answer" in errors
    assert accounts(folder) == [before]


def test_machines_that_are_left_count_on(folder: RunFolder) -> None:
    assert settle(folder, {"m0001": "refused"}) == ""
    (after,) = accounts(folder)
    assert (after.machines, after.usd_per_hour > 0.0) == (1, True)
    assert reads(folder).room().machines == 2


@pytest.mark.parametrize("content", [b"torn", None])
def test_without_its_journal_the_run_s_last_account_says_what_was_spent(
    content: bytes | None, folder: RunFolder
) -> None:
    (before,) = accounts(folder)
    journal = folder.path / "journal.sqlite"
    journal.unlink() if content is None else journal.write_bytes(content)
    assert settle(folder, {}) == ""
    (after,) = accounts(folder)
    assert (after.machines, after.spent_usd, after.lines) == (0, before.spent_usd, before.lines)


def test_a_store_that_does_not_answer_is_told(
    folder: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TeamAccount, "note", lambda *_, **__: "no space is left")
    code, _, errors = command(capsys, "down", folder.path.name, "--runs", folder.path.parent)
    assert code == 0
    assert "its team's account could not be written, where its machines count on: no space is left" in errors


def test_a_run_that_a_controller_has_is_left_alone(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "controller_of", lambda _folder: 7)
    assert settle(folder, {}) == ""
    assert accounts(folder)[0].machines == 3


def test_of_one_that_went_on_from_storage_each_machine_has_its_own_bill(folder: RunFolder) -> None:
    journal = journal_of(folder)
    kept = journal.run()
    assert kept is not None
    journal.keep({}, changes=split({**kept, "provider": {**kept["provider"], "first_machine": 40}}))
    still_open = [values["lease_id"] for values in kept["engine"]["leases"] if lease_of(values).is_open]
    name = folder.path.name
    bills = [{"token": f"{name}-m{number:04d}", "usd": 1_000.0} for number in range(40)]
    bills += [{"token": f"{name}-m{40 + number:04d}", "usd": 2.0} for number in still_open]
    (folder.path / "cloud").mkdir()
    (folder.path / "cloud" / BILLS).write_text(json.dumps(bills))
    found = orphans_of(folder)
    assert found is not None
    figures, ended = found
    assert ended == set(still_open)
    assert dict(figures["open_usd"]) == dict.fromkeys(still_open, 2.0)
    assert figures["spent_usd"] is not None
    assert figures["spent_usd"] < 500.0
    # Its machines have the names that the cloud and the log give them.
    assert lease_named(folder, "m0041") == lease_named(folder, f"{name}-m0041") == lease_named(folder, "1") == 1
    with pytest.raises(InputError, match="is of a journal that was lost"):
        lease_named(folder, "m0039")


def test_a_damaged_account_is_written_anew_by_a_whole_journal(folder: RunFolder) -> None:
    (path,) = (folder.path.parents[1] / "team").rglob("accounts/*/*.json")
    path.write_bytes(b"torn")
    assert settle(folder, {}) == ""
    assert accounts(folder)[0].machines == 0


def line(entry: str, lease_id: int, usd: float) -> AccountLine:
    return AccountLine("2026-11", entry, lease_id, "m", False, "a", "b", None, usd)


def test_what_a_journal_lacks_is_taken_of_the_account_lease_by_lease() -> None:
    known = [line("open", 0, 40.0), line("charge", 1, 30.0), line("charge", 3, 2.0)]
    older = [line("open", 0, 1.0), line("open", 1, 2.0), line("charge", 2, 5.0), line("charge", 3, 1.5)]
    found = settling._with_known(older, known)
    # That of lease 3 is final: part of what the account had was refunded.
    assert [(each.lease_id, each.usd) for each in found] == [(0, 40.0), (1, 30.0), (2, 5.0), (3, 1.5)]
    assert settling._with_known([], known) == known
