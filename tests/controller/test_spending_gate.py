"""The gate of a run's money: every limit ends it, whatever the controller waits for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.markets import C3, R3, history, job
from tests.runs.teams import ShakyStore, WallTime, account, member, note

from ebbtide.controller.spending_gate import SpendingGate, WithinTeam
from ebbtide.controller.team.account import READ_EVERY_S, Room
from ebbtide.controller.team.account_book import AccountBook
from ebbtide.controller.team.team import Team
from ebbtide.engine.decisions import HELD
from ebbtide.errors import CloudError
from ebbtide.jobs.job import Coupling
from ebbtide.policies.api.actions import Action, Request, WakeAt
from ebbtide.policies.api.view import View
from ebbtide.policies.baselines import Reactive
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.testing.contracts.policies import PolicyContract
from ebbtide.testing.scripted import replay


@dataclass
class Given:
    """Gives room as it is told, and takes note of how often it is asked."""

    rooms: list[Room]
    asked: list[int] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    taken: bool = False

    def room(self) -> Room:
        self.asked.append(1)
        return self.rooms[min(len(self.asked), len(self.rooms)) - 1]

    def reserve(self, machines: int) -> bool:
        self.reserved.append(machines)
        return not self.taken


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


class TestWithinTeam(PolicyContract):
    def make_policy(self) -> WithinTeam:
        return WithinTeam(Reactive(), Given([Room(50.0, 30, "budget", "quota")]), has_budget=True)


def test_machines_whose_end_was_refused_count() -> None:
    reader = Given([Room(machines=3, machines_limit="the quota")])
    outcome = replay(WithinTeam(Reactive(), reader, has_budget=False, unended=lambda: 2), [job(3600)], PRICES)
    assert outcome.finished
    assert reader.reserved == [3]


def test_what_cannot_be_reserved_is_not_rented() -> None:
    reader = Given([Room(machines=3, machines_limit="the quota")], taken=True)
    looks = history({C3: [(0, 0.12)], R3: [(0, 0.09)]}, hours=1.0)
    outcome = replay(WithinTeam(Reactive(), reader, has_budget=False), [job(3600)], looks)
    assert not outcome.leases
    assert set(reader.reserved) == {1}
    assert {made.why for made in outcome.made if made.action == HELD} == {"the quota leaves none for it now"}


# The gate.


@dataclass
class Asked:
    """A policy that rents one machine, and has the gate asked at each of its looks.

    Attributes:
        gate: The gate.
        at_poll: Whether it is asked as at a poll.
        before: Called before it is asked, with the seconds since the start.
        answers: Seconds since the start, and what the gate answered.
    """

    gate: SpendingGate
    at_poll: bool = False
    before: Any = None
    answers: list[tuple[float, bool]] = field(default_factory=list)
    name: str = "asked"
    wakes_on: Any = frozenset()
    began_s: list[float] = field(default_factory=list)

    def decide(self, view: View) -> Iterator[Action]:
        if not self.began_s:
            self.began_s.append(view.now_s)
            yield Request(R3, 0.09, job=0)
        passed_s = view.now_s - self.began_s[0]
        if self.before is not None:
            self.before(passed_s)
        closes = self.gate.closes_at_poll(view) if self.at_poll else self.gate.closes(view, "the test ran")
        self.answers.append((passed_s, closes))
        if not closes:
            yield WakeAt(view.now_s + 60.0)


def closes_after_s(asked: Asked, hours: float = 20.0) -> float:
    replay(asked, [job(360_000)], history({C3: [(0, 0.12)], R3: [(0, 0.09)]}, hours=hours), billing="per-second")
    return next((passed_s for passed_s, closes in asked.answers if closes), float("inf"))


def gate_of(budget_usd: float | None, team: Any = None, lead_s: float = 60.0) -> SpendingGate:
    return SpendingGate(Reactive(), budget_usd, team, lead_s, WallTime())


def test_the_run_s_own_budget_is_reached_before_it_is_spent() -> None:
    gate = gate_of(0.09)
    # An hour at 0.09 USD, less a look and what the end takes.
    assert 3300.0 < closes_after_s(Asked(gate)) <= 3540.0
    assert gate.why == "budget of 0.09 USD reached while the test ran"
    # At a poll its policy keeps it.
    assert closes_after_s(Asked(gate_of(0.09), at_poll=True)) == float("inf")
    assert closes_after_s(Asked(gate_of(None))) == float("inf")


@pytest.mark.parametrize("at_poll", [False, True])
def test_the_team_s_budget_is_reached_as_others_spend(at_poll: bool, tmp_path: Path) -> None:
    store, clock = ShakyStore(tmp_path), WallTime()
    mine = member(store, clock, Team(accounts="accounts", monthly_budget_usd=10.0))

    def others_spend(passed_s: float) -> None:
        clock.now_s += READ_EVERY_S
        note(mine, 1)
        AccountBook(store).write(account("other", 1.0 if passed_s < 1800 else 9.955, clock))

    gate = gate_of(None, mine)
    assert 1740.0 <= closes_after_s(Asked(gate, at_poll, others_spend)) <= 1860.0
    assert gate.why == "the team's budget of 10 USD for 2026-11 reached" + " while the test ran" * (not at_poll)


@pytest.mark.parametrize("limits", [{"monthly_budget_usd": 10.0}, {"machines": 4}], ids=["budget", "quota"])
@pytest.mark.parametrize("at_poll", [False, True])
def test_accounts_that_are_away_for_long_close_it(at_poll: bool, limits: dict[str, Any], tmp_path: Path) -> None:
    """Also where machines alone are limited: others stop counting them, and rent what the quota leaves."""
    store, clock = ShakyStore(tmp_path), WallTime()
    mine = member(store, clock, Team(accounts="accounts", **limits))

    def away(passed_s: float) -> None:
        clock.now_s += 60.0
        note(mine, 1)
        store.is_away = passed_s >= 600.0

    gate = gate_of(None, mine)
    assert closes_after_s(Asked(gate, at_poll, away)) == pytest.approx(600.0 + 900.0, abs=61.0)
    assert gate.why.startswith("the grace of 900 s without the team's accounts in accounts reached")


@pytest.mark.parametrize("answers_s", [0.0, 18.0])
def test_a_slow_store_of_accounts_delays_no_limit(answers_s: float, tmp_path: Path) -> None:
    """Between two reads what is known counts, and what the machines have cost since."""
    clock = WallTime()

    class Slow(ShakyStore):
        def keys(self, prefix: str = "") -> Iterator[str]:
            clock.now_s += answers_s
            return super().keys(prefix)

    mine = member(Slow(tmp_path), clock, Team(accounts="accounts", monthly_budget_usd=100.0))
    usd_per_hour, gate = 98.0, SpendingGate(Reactive(), None, mine, 5.0, clock)
    mine.check()
    began_s = clock.now_s

    def affordable_until_s(limit: WithinBudget, view: Any) -> float:
        return float(view.now_s + (limit.budget_usd - view.spent_usd) / usd_per_hour * 3600.0)

    spent_usd = 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WithinBudget, "affordable_until_s", affordable_until_s)
        while spent_usd < 110.0:
            clock.now_s += 2.0
            spent_usd = usd_per_hour * (clock.now_s - began_s) / 3600.0
            note(mine, 1, spent_usd, usd_per_hour)
            view: Any = SimpleNamespace(leases=[1], now_s=clock.now_s, spent_usd=spent_usd)
            if gate.closes_at_poll(view):
                break
    # One answer may come in between: eighteen seconds cost half a dollar.
    assert spent_usd <= 100.0 + 2.5 * usd_per_hour * answers_s / 3600.0


def test_while_prices_are_not_known_what_was_known_last_counts() -> None:
    gate, now = gate_of(0.09), [0.0]
    asked = Asked(gate)
    view: Any = SimpleNamespace(leases=[1], now_s=0.0)

    def limit(_view: Any) -> float:
        if now[0] > 0.0:
            raise CloudError("does not answer")
        return 1000.0

    assert asked.gate._own is not None
    object.__setattr__(gate._own, "affordable_until_s", limit)
    assert not gate.closes(view, "the test ran")
    now[0] = 1.0
    view.now_s = 900.0
    assert not gate.closes(view, "the test ran")
    view.now_s = 941.0
    assert gate.closes(view, "the test ran")


def test_a_run_that_rents_nothing_is_not_ended(tmp_path: Path) -> None:
    store, clock = ShakyStore(tmp_path), WallTime()
    AccountBook(store).write(account("other", 10.0))
    gate = gate_of(1e-9, member(store, clock, Team(accounts="accounts", monthly_budget_usd=10.0)))
    view: Any = SimpleNamespace(leases=[], now_s=0.0)
    assert not gate.closes(view, "the test ran")
    assert not gate.closes_at_poll(view)
