"""An account with a team: what its limits leave, with others who are away, gone, damaged or quick."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runs.teams import NOW_S, UNATTENDED_S, ShakyStore, WallTime, account, member, note

from ebbtide.base.utc import to_epoch_s
from ebbtide.controller.team.account import READ_EVERY_S, Room, is_of_team
from ebbtide.controller.team.account_book import AccountBook
from ebbtide.controller.team.account_lines import AccountLine, month_of
from ebbtide.controller.team.team import Team
from ebbtide.errors import InputError


def team(**limits: object) -> Team:
    return Team.model_validate({"accounts": "accounts"} | limits)


@pytest.fixture
def store(tmp_path: Path) -> ShakyStore:
    return ShakyStore(tmp_path)


@pytest.fixture
def clock() -> WallTime:
    return WallTime()


def torn(store: ShakyStore, run: str, content: bytes = b"") -> None:
    (store._folder / "accounts" / "2026-11" / f"{run}.json").write_bytes(content)


def test_what_others_have_spent_is_not_there_any_more(store: ShakyStore, clock: WallTime) -> None:
    book = AccountBook(store)
    own = {"ann": {"monthly_budget_usd": 4.0, "machines": 3}, "bob": {}}
    limits = team(monthly_budget_usd=10.0, machines=6, owners=own)
    limit = "ann's budget of 4 USD for 2026-11"
    assert member(store, clock, limits).room() == Room(4.0, 3, limit, "ann's quota of 3 machines")
    book.write(account("mine", 1.0))  # its own counts by its own books
    book.write(account("other", 1.0, machines=1))
    book.write(account("bobs", 7.5, owner="bob", machines=4))
    fresh = member(store, clock, limits)
    assert fresh.room().usd == pytest.approx(1.5)
    assert (fresh.room().machines, fresh.room().machines_limit) == (1, "the team's quota of 6 machines")
    # What machines cost until the account is read again is counted as well: three minutes at 20 USD an hour.
    book.write(account("bobs", 7.5, owner="bob", machines=4, usd_per_hour=20.0))
    assert member(store, clock, limits).room().usd == pytest.approx(0.5, abs=0.1)
    book.write(account("bobs", 9.5, owner="bob"))
    spent = member(store, clock, limits)
    assert spent.room().usd == 0.0
    with pytest.raises(InputError, match="the team's budget of 10 USD for 2026-11 is spent"):
        spent.check()


def test_what_a_resumed_run_spent_in_another_month_is_none_of_this_one(store: ShakyStore, clock: WallTime) -> None:
    mine = member(store, clock, team(monthly_budget_usd=10.0))
    spent = AccountLine("2020-01", "charge", 0, "m", False, "", "", None, 10.0)
    mine.go_on([spent])
    assert mine.room().usd == 20.0
    mine.check()
    mine.go_on([replace(spent, month="2026-11")])
    AccountBook(store).write(account("mine", 10.0))
    assert mine.room().usd == 10.0
    with pytest.raises(InputError, match="is spent"):
        mine.check()


def test_what_a_lost_journal_has_paid_counts_in_the_team_s_budget(store: ShakyStore, clock: WallTime) -> None:
    mine = member(store, clock, team(monthly_budget_usd=10.0))
    lost = AccountLine("2026-11", "charge", 0, "m", False, "", "", None, 4.0)
    earlier = replace(lost, month="2026-10", usd=3.0)
    AccountBook(store).write(account("mine", 4.0))
    mine.go_on([earlier, lost], [earlier, lost])
    # Of what its new journal knows: nothing yet.
    assert mine.room().usd == 6.0
    mine.check()
    mine.go_on([earlier, lost, replace(lost, usd=5.0), replace(earlier, usd=1.0)], [earlier, lost])
    assert mine.room().usd == 7.0
    mine.go_on([earlier, lost, replace(lost, usd=6.0)], [earlier, lost])
    with pytest.raises(InputError, match="is spent"):
        mine.check()


# The quota of machines.


def test_two_who_see_the_same_machines_free_do_not_both_get_them(store: ShakyStore, clock: WallTime) -> None:
    a, b = (member(store, clock, team(machines=4), run) for run in "ab")
    assert (a.room().machines, b.room().machines) == (4, 4)
    assert a.reserve(4)
    clock.now_s += 2.0
    assert not b.reserve(1)
    # What it gives back is free at once, whatever was read before.
    note(a, 3)
    clock.now_s += READ_EVERY_S
    assert b.reserve(1)
    assert not b.reserve(2)


def test_a_resumed_run_requests_no_machines_that_others_have_taken(store: ShakyStore, clock: WallTime) -> None:
    """Its journal may be older than its account: before, its former requests were repeated beside the others'."""
    former, other = (member(store, clock, team(machines=4), run) for run in ("mine", "other"))
    assert former.reserve(2)
    note(former, 0, is_last=True)
    assert other.reserve(3)
    resumed = member(store, clock, team(machines=4))
    note(resumed, 2)
    assert not resumed.holds(2)
    assert resumed.holds(0)
    note(other, 1)
    clock.now_s += READ_EVERY_S
    assert resumed.holds(2)
    # Without asking the store.
    store.is_away = True
    assert resumed.holds(2)
    assert not resumed.holds(3)


def test_what_was_given_back_is_reserved_again(store: ShakyStore, clock: WallTime) -> None:
    a, b = (member(store, clock, team(machines=4), run) for run in "ab")
    assert a.reserve(3)
    note(a, 1)
    assert b.reserve(3)
    assert not a.holds(3)


def test_what_was_being_reserved_is_given_back(
    store: ShakyStore, clock: WallTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that is taken too long to decide is interrupted, at whatever line it is."""
    a, b = (member(store, clock, team(machines=4), run) for run in "ab")
    note(a, 0)
    put_once = store.put_once

    def interrupted(key: str, content: bytes) -> bool:
        put_once(key, content)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "put_once", interrupted)
        with pytest.raises(KeyboardInterrupt):
            a.reserve(4)
    note(a, 0)
    assert b.reserve(4)


def test_an_account_is_written_at_once_where_its_machines_change(store: ShakyStore, clock: WallTime) -> None:
    a, b = (member(store, clock, team(machines=4), run) for run in "ab")
    note(a, 0)
    clock.now_s += 1.0
    a.reserve(3)
    note(a, 3, rate=1.0)
    assert b.room().machines == 1
    clock.now_s += 1.0
    note(a, 3, usd=5.0, rate=1.0)
    assert AccountBook(store).read("2026-11", {})[0].spent_usd == 0.0, "money alone is written every half minute"
    clock.now_s += 30.0
    note(a, 3, usd=5.0, rate=1.0)
    assert AccountBook(store).read("2026-11", {})[0].spent_usd == 5.0


def test_each_owner_s_quota_and_the_team_s_are_kept(store: ShakyStore, clock: WallTime) -> None:
    limits = team(machines=5, owners={"ann": {"machines": 3}, "bob": {}})
    one, two = member(store, clock, limits, "one"), member(store, clock, limits, "two")
    bobs = member(store, clock, limits, "bobs", "bob")
    assert one.reserve(2)
    assert not two.reserve(2)
    assert two.reserve(1)
    assert not bobs.reserve(3)
    assert bobs.reserve(2)


def test_machines_of_a_controller_that_was_killed_are_free_when_they_have_ended(
    store: ShakyStore, clock: WallTime
) -> None:
    a, b = (member(store, clock, team(machines=1), run) for run in "ab")
    a.reserve(1)
    note(a, 1, usd=2.0, rate=1.0)
    for passed_s in (0.0, 600.0, 1_000.0):
        clock.now_s = NOW_S + passed_s
        note(b, 0)
        assert b.room().machines == 0
        assert not b.reserve(1)
    clock.now_s = NOW_S + UNATTENDED_S + 181.0
    note(b, 0)
    assert b.room().machines == 1
    assert b.reserve(1)
    # One that comes back has none, until the other gives it back.
    assert not member(store, clock, team(machines=1), "a").reserve(1)


@pytest.mark.parametrize("behind_s", [0.0, 500.0])
def test_machines_of_others_count_on_over_the_end_of_a_month(store: ShakyStore, behind_s: float) -> None:
    """Of a controller that was killed, or whose clock is still in the month before."""
    wrong, right = WallTime(-behind_s), WallTime()
    a, b = member(store, wrong, team(machines=4), "a"), member(store, right, team(machines=4), "b")
    wrong.now_s = right.now_s = to_epoch_s("2026-11-29T12:00:00Z")
    assert a.reserve(3)
    ends_s = to_epoch_s("2026-12-01T00:00:00Z")
    for at_s in (-3600.0, -60.0, 60.0, 200.0, 400.0, 600.0):
        wrong.now_s = right.now_s = ends_s + at_s
        if behind_s or at_s < 0.0:
            lines = [AccountLine(month_of(wrong.epoch_s()), "charge", 0, "m", False, "", "", None, 1.0)]
            a.note(lambda lines=lines: lines, 3, 1.0, "running")  # type: ignore[misc]
        note(b, 0)
        assert b.room().machines == 1, at_s
        assert not b.reserve(2), at_s


def test_a_run_that_is_settled_has_given_its_machines_back(store: ShakyStore, clock: WallTime) -> None:
    limits = team(machines=1, monthly_budget_usd=10.0)
    a, b = (member(store, clock, limits, run) for run in "ab")
    a.reserve(1)
    note(a, 1, usd=2.0, rate=100.0)
    assert b.room().machines == 0
    # Another process does that for it.
    note(member(store, clock, limits, "a"), 0, usd=3.0, is_last=True)
    clock.now_s += READ_EVERY_S
    assert (b.room().machines, b.room().usd) == (1, 7.0)
    assert b.reserve(1)


@pytest.mark.parametrize("ahead_s", [-7200.0, 7200.0])
def test_a_clock_that_is_wrong_frees_no_machine_of_one_who_writes(ahead_s: float, store: ShakyStore) -> None:
    wrong, right = WallTime(ahead_s), WallTime()
    a, b = member(store, wrong, team(machines=4), "a"), member(store, right, team(machines=4), "b")
    a.reserve(3)
    for _ in range(40):
        wrong.now_s = right.now_s = right.now_s + 31.0
        note(a, 3)
        note(b, 0)
        machines = b.room().machines
    assert machines == 1
    # And holds none of one who is gone.
    right.now_s += UNATTENDED_S + 181.0
    note(b, 0)
    assert b.room().machines == 4


def test_accounts_of_versions_without_reservations_count(store: ShakyStore, clock: WallTime) -> None:
    AccountBook(store).write(account("old", 0.0, machines=3))
    mine = member(store, clock, team(machines=4))
    assert mine.room().machines == 1
    assert not mine.reserve(2)
    assert mine.reserve(1)


# Accounts that are damaged, and a store that is away.


def test_a_damaged_account_refuses_nobody_and_counts_as_it_was_read_last(
    store: ShakyStore, clock: WallTime, caplog: pytest.LogCaptureFixture
) -> None:
    limits = team(monthly_budget_usd=10.0, machines=4)
    AccountBook(store).write(account("other", 6.0, machines=3))
    mine = member(store, clock, limits)
    mine.check()
    torn(store, "other")
    for _ in range(3):
        clock.now_s += READ_EVERY_S
        assert (mine.room().usd, mine.room().machines) == (4.0, 1)
    assert caplog.text.count("other.json of the team's store cannot be read: it is empty") == 1
    assert "what was last read of it counts" in caplog.text
    # One who never read it is told so, and may rent.
    fresh = member(store, clock, limits, "fresh")
    fresh.check()
    assert fresh.room().usd == 10.0
    assert "nothing was ever read of it" in caplog.text


def test_a_run_whose_machines_go_on_for_weeks_counts(store: ShakyStore, clock: WallTime) -> None:
    """Before, its account was taken for damaged, and its spending and machines counted for nobody."""
    limits = team(monthly_budget_usd=10.0, machines=4)
    AccountBook(store).write(replace(account("other", 9.0, machines=3), unattended_s=1_209_600.0))
    mine = member(store, clock, limits)
    mine.check()
    assert mine.room().usd == pytest.approx(1.0)
    assert mine.room().machines == 1
    assert not mine.reserve(2)


def test_an_absurd_account_gives_nobody_room(
    store: ShakyStore, clock: WallTime, caplog: pytest.LogCaptureFixture
) -> None:
    mine = member(store, clock, team(monthly_budget_usd=10.0, machines=4))
    AccountBook(store).write(account("other", -1e6, machines=-50))
    assert (mine.room().usd, mine.room().machines) == (10.0, 4)
    assert "spent_usd is '-1000000.0'" in caplog.text


def test_an_account_that_a_list_lacks_counts_for_a_while(
    store: ShakyStore, clock: WallTime, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a store whose lists are old, or that is not mounted; one that was removed counts no more then."""
    AccountBook(store).write(account("other", 9.0, clock, machines=3))
    mine = member(store, clock, team(monthly_budget_usd=10.0, machines=4))
    assert (mine.room().usd, mine.room().machines) == (1.0, 1)
    file = store._folder / "accounts" / "2026-11" / "other.json"
    away = file.rename(store._folder / "away")
    clock.now_s += READ_EVERY_S
    assert (mine.room().usd, mine.room().machines) == (1.0, 1)
    assert "the team's account of other is gone; it counts for 900 s more" in caplog.text
    away.rename(file)
    clock.now_s += READ_EVERY_S
    assert mine.room().usd == 1.0
    file.unlink()
    for _ in range(3):
        note(mine, 0)
        assert mine.room().usd == 1.0
        clock.now_s += UNATTENDED_S / 2.0 + 1.0
    note(mine, 0)
    assert (mine.room().usd, mine.room().machines) == (10.0, 4)


def test_a_limit_counts_as_reached_once_the_accounts_are_away_for_long(
    store: ShakyStore, clock: WallTime, caplog: pytest.LogCaptureFixture
) -> None:
    AccountBook(store).write(account("other", 1.0, machines=1, usd_per_hour=1.0))
    mine = member(store, clock, team(monthly_budget_usd=10.0, machines=4))
    mine.check()
    note(mine, 1)
    store.is_away = True
    clock.now_s += UNATTENDED_S - 1.0
    note(mine, 1)
    assert mine.room().usd == pytest.approx(10.0 - 1.0 - (UNATTENDED_S - 1.0 + 180.0) / 3600.0)
    assert not mine.reserve(2), "none is reserved unwritten"
    clock.now_s += 2.0
    why = "the grace of 900 s without the team's accounts in accounts"
    assert mine.room() == Room(0.0, 0, why, why)
    assert "is tried again" in caplog.text
    store.is_away = False
    clock.now_s += READ_EVERY_S
    note(mine, 1)
    assert mine.room().machines == 3


def test_limits_count_as_reached_where_the_accounts_folder_is_not_mounted_any_more(
    clock: WallTime, tmp_path: Path
) -> None:
    """Before, an empty folder in its place lifted all limits after a while."""
    mounted, away = tmp_path / "mount", tmp_path / "away"
    store = ShakyStore(mounted)
    limits = team(monthly_budget_usd=100.0, machines=4)
    AccountBook(store).write(account("over", 95.0, clock, state="finished"))
    mine = member(store, clock, limits)
    mine.check()
    assert note(mine, 1, 4.0) == ""
    mounted.rename(away)
    mounted.mkdir()
    for _ in range(20):
        clock.now_s += 60.0
        assert "is it mounted?" in note(mine, 1, 4.0)
        assert mine.room().usd <= 5.0
        assert not mine.reserve(2)
    assert mine.room() == Room(0.0, 0.0, mine.room().usd_limit, mine.room().machines_limit)
    assert not any(mounted.iterdir())
    mounted.rmdir()
    away.rename(mounted)
    clock.now_s += 60.0
    assert note(mine, 1, 4.0) == ""
    assert mine.room().usd == pytest.approx(5.0)


def test_a_resumed_run_begins_no_new_accounts_where_those_that_were_there_are_gone(
    store: ShakyStore, clock: WallTime
) -> None:
    """Before, one that was resumed without its share had the whole budget again."""
    limits = team(monthly_budget_usd=10.0)
    spent = AccountLine("2026-11", "charge", 0, "m", False, "", "", None, 1.0)
    resumed = member(store, clock, limits)
    resumed.go_on([spent])
    with pytest.raises(InputError, match="lacks the accounts that were there: is it mounted"):
        resumed.check()
    # Its own account may be removed where others are left.
    AccountBook(store).write(account("other", 1.0))
    resumed.check()
    # One that was not there for two months has left none that must be.
    idle = member(ShakyStore(store._folder / "elsewhere"), clock, limits)
    idle.go_on([replace(spent, month="2026-08")])
    idle.check()


def test_a_limit_of_the_team_is_told_apart_from_the_run_s_own(store: ShakyStore, clock: WallTime) -> None:
    """Searches continue a trial that its team has ended, and take one that reached its own budget for complete."""
    for limits in ({"monthly_budget_usd": 1.0}, {"owners": {"ann": {"monthly_budget_usd": 1.0}}}):
        mine = member(store, clock, team(**limits))
        assert is_of_team(f"{mine.room().usd_limit} reached: this run has spent 1 USD")
        clock.now_s += 2 * UNATTENDED_S
        store.is_away = True
        assert is_of_team(f"{mine.room().usd_limit} reached")
        store.is_away = False
    assert not is_of_team("budget of 1 USD reached: 1 USD spent")


def test_a_store_that_cannot_be_written_is_told_before_anything_is_rented(
    store: ShakyStore, clock: WallTime
) -> None:
    """Before, a run rented, wrote no account, and could be resumed nowhere, since its account was missed."""
    store.refuses_writes = True
    with pytest.raises(InputError, match="accounts in accounts cannot be written: "):
        member(store, clock, team(monthly_budget_usd=10.0)).check()


def test_a_run_whose_own_account_is_removed_writes_it_anew_where_others_are_there(
    store: ShakyStore, clock: WallTime
) -> None:
    """Without any account the folder may not be mounted: another member may be spending the same budget elsewhere."""
    own = f"accounts/{month_of(clock.epoch_s())}/mine.json"
    AccountBook(store).write(account("over", 95.0, clock, state="finished"))
    mine = member(store, clock, team(monthly_budget_usd=100.0, machines=4))
    mine.check()
    assert note(mine, 1, 4.0) == ""
    store.delete(own)
    clock.now_s += 60.0
    assert note(mine, 1, 4.0) == ""
    assert store.has(own)
    store.delete(own)
    store.delete(own.replace("mine", "over"))
    clock.now_s += 60.0
    assert "is it mounted?" in note(mine, 1, 4.0)
    assert not store.has(own)


def test_one_whose_own_account_cannot_be_written_does_not_run_on_for_long(
    store: ShakyStore, clock: WallTime
) -> None:
    """The others count its machines no more then."""
    mine = member(store, clock, team(machines=4))
    note(mine, 1)
    store.refuses_writes = True
    for _ in range(31):
        clock.now_s += 30.0
        note(mine, 1)
    assert mine.room().machines == 0


def test_a_limit_that_does_not_exist_is_not_reached(store: ShakyStore, clock: WallTime) -> None:
    store.is_away = True
    mine = member(store, clock, team())
    clock.now_s += 10 * UNATTENDED_S
    assert mine.room() == Room()
    assert mine.reserve(1000)


def test_a_store_that_is_away_is_not_asked_at_each_look(
    store: ShakyStore, clock: WallTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = member(store, clock, team(monthly_budget_usd=1.0))
    asked: list[float] = []

    def keys(_prefix: str = "") -> Iterator[str]:
        asked.append(clock.now_s)
        raise OSError("the store is away")

    monkeypatch.setattr(store, "keys", keys)
    for _ in range(100):
        clock.now_s += 1.0
        mine.room()
    assert len(asked) == 5


def test_the_last_account_is_tried_again(
    store: ShakyStore, clock: WallTime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    mine = member(store, clock, team(machines=1))
    store.is_away = True
    assert note(mine, 0, is_last=True) == "the store is away"
    assert clock.now_s == NOW_S + 3.0


# The end of a month.


def test_at_the_turn_of_a_month_what_others_rent_counts_on(store: ShakyStore) -> None:
    clock = WallTime()
    clock.now_s = to_epoch_s("2026-11-30T23:59:50Z")
    AccountBook(store).write(account("other", 9.0, clock, machines=3, usd_per_hour=10.0))
    mine = member(store, clock, team(monthly_budget_usd=10.0, machines=4))
    assert mine.room().usd == pytest.approx(10.0 - 9.0 - 0.5)
    clock.now_s += 30.0
    assert mine.room().machines == 1
    assert mine.room().usd == pytest.approx(10.0 - 10.0 * (30.0 + 180.0) / 3600.0)
    assert mine.room().usd_limit == "the team's budget of 10 USD for 2026-12"
    # Its account of the new month is written at once.
    note(mine, 1)
    assert [one.name for one in AccountBook(store).read("2026-12", {})] == ["mine"]


def test_runs_that_ended_last_month_are_not_missed_in_the_next(
    store: ShakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    clock = WallTime()
    clock.now_s = to_epoch_s("2026-11-30T23:50:00Z")
    AccountBook(store).write(account("over", 9.0, clock))
    mine = member(store, clock, team(monthly_budget_usd=10.0))
    mine.check()
    for _ in range(200):
        clock.now_s += 60.0
        mine.room()
        note(mine, 1)
    assert "is gone" not in caplog.text


@pytest.mark.parametrize(
    ("written", "read"),
    [("2026-11-30T12:00:00Z", "2026-12-01T12:00:00Z"), ("2026-02-10T00:00:00Z", "2026-03-02T00:00:00Z")],
)
def test_the_last_lines_are_those_of_last_month_too(
    written: str, read: str, store: ShakyStore, clock: WallTime
) -> None:
    """Before, a month of 30 days or less was forgotten on the day after its end."""
    clock.now_s = to_epoch_s(written)
    one = member(store, clock, team())
    line = AccountLine(written[:7], "charge", 0, "m", False, "", "", None, 1.5)
    one.note(lambda: [line], 0, 0.0, "running", is_last=True)
    clock.now_s = to_epoch_s(read)
    assert member(store, clock, team()).last_lines() == [line]
