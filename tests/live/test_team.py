"""Teams: every cent has its line and month, controllers of one store keep a common budget and quota."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.markets import C3, R3, START_S, history, job

from ebbtide._utc import HOUR_S, to_epoch_s
from ebbtide.engine.decisions import HELD
from ebbtide.errors import InputError
from ebbtide.jobs.job import Coupling
from ebbtide.live.account_book import Account, AccountBook
from ebbtide.live.account_lines import WallClock, _by_month, checked_month, lines_of, month_of, sums_by_month
from ebbtide.live.runtime import RUNTIME
from ebbtide.live.settings import LiveSettings
from ebbtide.live.storage import object_store
from ebbtide.live.team import Accounting, Team, accounting_of, read_team
from ebbtide.live.team_account import Room, TeamAccount, WithinTeam
from ebbtide.policies.api.actions import Action, WakeAt
from ebbtide.policies.api.view import View
from ebbtide.policies.baselines import OnDemand, Reactive
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.testing.contracts.policies import PolicyContract
from ebbtide.testing.scripted import replay

NOVEMBER_S = to_epoch_s("2026-11-30T23:00:00Z")


# Lines of the audit.


@given(st.floats(0, 3e9), st.floats(0, 2e7), st.floats(-100, 100))
def test_a_span_is_cut_where_months_end_and_loses_no_cent(start_s: float, length_s: float, usd: float) -> None:
    parts = list(_by_month(start_s, start_s + length_s, usd))
    assert math.fsum(part for _, _, part in parts) == pytest.approx(usd, abs=1e-9)
    assert parts[0][0] == start_s
    assert parts[-1][1] == start_s + length_s
    for one, other in itertools.pairwise(parts):
        assert one[1] == other[0]
    for begins_s, ends_s, _ in parts:
        assert month_of(begins_s) == month_of(max(ends_s - 1e-3, begins_s))


def test_a_charge_over_the_end_of_a_month_is_two_lines() -> None:
    prices = history({C3: [(0, 0.12)], R3: [(0, 9.0)]})
    outcome = replay(Reactive(), [job(7200, save_s=10, restore_s=20)], prices, billing="gcp-spot")
    # The market's clock is elsewhere; on the wall the run began an hour before December.
    clock = WallClock(START_S, NOVEMBER_S, 1.0)
    lines = lines_of(outcome.ledger, outcome.leases, {}, clock)
    assert [(line.month, line.entry) for line in lines] == [("2026-11", "charge"), ("2026-12", "charge")]
    assert math.fsum(line.usd for line in lines) == pytest.approx(outcome.cost_usd)
    (lease,) = outcome.leases
    held_s, before_s = lease.ended_s - lease.started_s, HOUR_S - (lease.started_s - START_S)
    assert lines[0].usd == pytest.approx(outcome.cost_usd * before_s / held_s, rel=1e-3)
    assert lines[0].end == lines[1].start == "2026-12-01T00:00:00Z"
    assert sums_by_month(lines) == {"2026-11": lines[0].usd, "2026-12": lines[1].usd}


def test_what_still_runs_has_a_line_and_a_faster_clock_is_turned_back() -> None:
    prices = history({C3: [(0, 0.1), (1000, 0.5)], R3: [(0, 0.12)]})
    outcome = replay(Reactive(), [job(3600)], prices)
    open_lease = replace(outcome.leases[0], ended_s=math.nan)
    lines = lines_of(
        outcome.ledger, [open_lease, *outcome.leases[1:]], {0: 0.25}, WallClock(START_S + 3600, NOVEMBER_S, 60.0)
    )
    last = lines[-1]
    assert (last.entry, last.usd, last.lease_id) == ("open", 0.25, 0)
    # An hour of the market is a minute on the wall.
    assert last.end == "2026-11-30T23:00:00Z"
    assert last.start >= "2026-11-30T22:59:00Z"


@pytest.mark.parametrize("month", ["2026-13", "November", "2026", "2026-11-01", "", "../2026-11"])
def test_what_is_no_month_is_an_error(month: str) -> None:
    with pytest.raises(InputError, match="is no month"):
        checked_month(month)


# Who pays.


def test_a_team_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "team.yaml"
    file.write_text(
        "accounts: /accounts\nmonthly_budget_usd: 500\nowners:\n  ann: {monthly_budget_usd: 200, machines: 8}\n"
    )
    team = read_team(file)
    assert (team.monthly_budget_usd, team.machines, team.owners["ann"].machines) == (500.0, None, 8)
    monkeypatch.setenv("EBBTIDE_TEAM", str(file))
    assert accounting_of("ann").team == team
    with pytest.raises(InputError, match="'bob' is not of the team; its owners are ann"):
        accounting_of("bob")
    monkeypatch.delenv("EBBTIDE_TEAM")
    assert accounting_of() == Accounting()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("monthly_budget_usd: 5\n", "accounts"),
        ("accounts: a\nmonthly_budget_usd: -1\n", "monthly_budget_usd"),
        ("accounts: a\nmonthly_budgt_usd: 1\n", "monthly_budget_usd"),
        ("accounts: a\nowners: {ann: {machines: 0}}\n", "machines"),
        ("[]", "holds no team"),
    ],
)
def test_a_file_that_is_no_team_is_an_error(content: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text(content)
    with pytest.raises(InputError, match=problem):
        read_team(tmp_path / "team.yaml")


@pytest.mark.parametrize(
    ("owner", "tags"),
    [("Ann", {}), ("ann smith", {}), ("ann", {"Project": "x"}), ("ann", {"a": "b/../c"}), ("1a", {})],
)
def test_names_that_no_cloud_takes_are_refused(owner: str, tags: dict[str, str]) -> None:
    with pytest.raises(InputError, match="is no tag that every cloud takes"):
        Accounting(owner, tags)


# The book, and the limits.


def account(
    run: str,
    spent_usd: float,
    *,
    owner: str = "ann",
    machines: int = 0,
    rate: float = 0.0,
    at_s: float | None = None,
) -> Account:
    now_s = RUNTIME.epoch_s() if at_s is None else at_s
    return Account(
        run, run, month_of(now_s), owner, {"a": "b"}, "ec2", "ebbtide", "running", spent_usd, machines, rate, now_s
    )


def test_accounts_are_read_as_they_were_written(tmp_path: Path) -> None:
    book = AccountBook(object_store(str(tmp_path)))
    lines = lines_of(
        replay(Reactive(), [job(3600)], history({C3: [(0, 0.12)], R3: [(0, 0.09)]})).ledger,
        [],
        {},
        WallClock(0.0, 0.0, 1.0),
    )
    first = replace(account("one", 1.5), lines=tuple(lines))
    book.write(replace(first, spent_usd=0.5))
    book.write(first)
    book.write(account("two", 2.0))
    assert book.read(first.month) == [first, account("two", 2.0, at_s=book.read(first.month)[1].at_epoch_s)]
    assert book.read("1999-01") == []
    (tmp_path / "accounts" / first.month / "three.json").write_text("{}")
    with pytest.raises(InputError, match="three.json of the team's store cannot be read"):
        book.read(first.month)
    (tmp_path / "accounts" / first.month / "three.json").unlink()
    book.write(replace(first, lines=(replace(first.lines[0], usd="1"),)))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="one.json of the team's store cannot be read"):
        book.read(first.month)


def team_account(tmp_path: Path, team: Team, owner: str = "ann", run: str = "mine") -> TeamAccount:
    settings = LiveSettings(run, "ec2", "ebbtide", {}, "", "", {})
    return TeamAccount(
        run, settings, Accounting(owner, {}, team), AccountBook(object_store(str(tmp_path))), RUNTIME
    )


def test_what_others_have_spent_is_not_there_any_more(tmp_path: Path) -> None:
    book = AccountBook(object_store(str(tmp_path)))
    team = Team(
        accounts=str(tmp_path), monthly_budget_usd=10.0, machines=6,
        owners={"ann": {"monthly_budget_usd": 4.0, "machines": 3}, "bob": {}},
    )  # fmt: skip
    mine = team_account(tmp_path, team)
    assert mine.room() == Room(4.0, 3, mine.room().usd_limit, "ann's quota of 3 machines")
    assert mine.room().usd_limit.startswith("ann's budget of 4 USD for 20")
    book.write(account("mine", 1.0))  # its own counts by its own books
    book.write(account("other", 1.0, machines=1))
    book.write(account("bobs", 7.5, owner="bob", machines=4))
    fresh = team_account(tmp_path, team)
    assert fresh.room().usd == pytest.approx(1.5)
    assert (fresh.room().machines, fresh.room().machines_limit) == (1, "the team's quota of 6 machines")
    # What machines cost until the account is read again is counted as well: three minutes at 20 USD an hour.
    book.write(account("bobs", 7.5, owner="bob", machines=4, rate=20.0))
    assert team_account(tmp_path, team).room().usd == pytest.approx(0.5, abs=0.1)
    book.write(account("bobs", 9.5, owner="bob"))
    spent = team_account(tmp_path, team)
    assert spent.room().usd == 0.0
    with pytest.raises(InputError, match="the team's budget of 10 USD for .* is spent"):
        spent.check()


def test_an_account_of_a_controller_that_is_gone_counts_until_its_machines_have_ended() -> None:
    hour_ago = account("gone", 1.0, machines=2, rate=6.0, at_s=RUNTIME.epoch_s() - 3600.0)
    assert hour_ago.committed_usd(RUNTIME.epoch_s()) == pytest.approx(1.0 + 6.0 * (1800 + 180) / 3600)


@dataclass
class Given:
    """Gives room as it is told, and takes note of how often it is asked."""

    rooms: list[Room]
    asked: list[int] = field(default_factory=list)

    def room(self) -> Room:
        self.asked.append(1)
        return self.rooms[min(len(self.asked), len(self.rooms)) - 1]


PRICES = history({C3: [(0, 0.12)], R3: [(0, 0.09)]}, hours=200.0)


def test_limits_that_leave_enough_change_nothing() -> None:
    jobs = [job(7200), job(3600)]
    free = replay(Ebbtide(), jobs, PRICES, billing="gcp-spot")
    within = replay(
        WithinTeam(Ebbtide(), Given([Room(1e6, 100)]), has_budget=True), jobs, PRICES, billing="gcp-spot"
    )
    assert within.cost_usd == free.cost_usd
    assert [one.market for one in within.leases] == [one.market for one in free.leases]


def test_a_quota_of_machines_has_jobs_wait_for_each_other() -> None:
    jobs = [job(3600), job(3600), job(3600)]
    outcome = replay(
        WithinTeam(Reactive(), Given([Room(machines=1, machines_limit="the quota")]), has_budget=False),
        jobs,
        PRICES,
    )
    assert outcome.finished
    assert len(outcome.leases) == 3
    for one, other in itertools.pairwise(outcome.leases):
        assert one.ended_s <= other.requested_s
    assert {made.why for made in outcome.made if made.action == HELD} == {"the quota leaves none for it now"}


def test_machines_that_work_as_one_are_not_rented_in_part() -> None:
    work = job(3600, coupling=Coupling.GANG, machines=4)
    outcome = replay(
        WithinTeam(Reactive(), Given([Room(machines=3)] * 3 + [Room(machines=4)]), has_budget=False),
        [work],
        PRICES,
    )
    assert outcome.finished
    assert len(outcome.leases) == 4
    assert len({lease.requested_s for lease in outcome.leases}) == 1


@pytest.mark.parametrize("billing", ["gcp-spot", "ec2-second"])
def test_what_others_spend_meanwhile_ends_the_run_before_the_budget_does(billing: str) -> None:
    """The common budget shrinks under a running job, from much to half an hour of it."""
    reader = Given([Room(10.0, usd_limit="the team's budget")] * 5 + [Room(0.25, usd_limit="the team's budget")])
    outcome = replay(WithinTeam(Reactive(), reader, has_budget=True), [job(36_000)], PRICES, billing=billing)
    assert not outcome.finished
    assert outcome.gave_up.startswith("the team's budget reached: this run has spent 0.2")
    assert outcome.cost_usd <= 0.25 + 1e-9
    assert outcome.steps_lost == 0


class TestWithinTeam(PolicyContract):
    def make_policy(self) -> WithinTeam:
        return WithinTeam(Reactive(), Given([Room(50.0, 30, "budget", "quota")]), has_budget=True)


def test_a_run_that_is_resumed_rents_again() -> None:
    """Its first event is a timer that its policy did not ask for."""
    memory: dict[str, object] = {}
    first = WithinTeam(OnDemand(), Given([Room(10.0)]), has_budget=True)
    resumed = WithinTeam(OnDemand(), Given([Room(10.0)]), has_budget=True)
    asked: list[int] = []

    class Both:
        """Whoever is asked first is given no answer: a controller that reached its budget."""

        name, wakes_on = "both", first.wakes_on

        def decide(self, view: View) -> list[Action]:
            if not asked:
                asked.append(1)
                list(first.decide(view))
                memory.update(view.memory)
                return [WakeAt(view.now_s + 60.0)]
            return list(resumed.decide(view))

    outcome = replay(Both(), [job(600)], PRICES)
    assert memory["team"]
    assert outcome.finished


def test_what_a_resumed_run_spent_in_another_month_is_none_of_this_one(tmp_path: Path) -> None:
    mine = team_account(tmp_path, Team(accounts=str(tmp_path), monthly_budget_usd=10.0))
    ledger = replay(Reactive(), [job(3600)], PRICES).ledger
    spent = replace(lines_of(ledger, [], {}, WallClock(0.0, 0.0, 1.0))[0], usd=10.0)
    mine.go_on([replace(spent, month="2020-01")])
    assert mine.room().usd == 20.0
    mine.check()
    mine.go_on([replace(spent, month=month_of(RUNTIME.epoch_s()))])
    assert mine.room().usd == 10.0
    with pytest.raises(InputError, match="is spent"):
        mine.check()
