"""Every registered policy says why it rents, in replay and live alike; and the deadline table's costs are its own."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tests.harness.parity.tape_cloud import run_live
from tests.harness.parity.tapes import BILLINGS, scenario_of, small_bundle, tapes
from tests.markets import C3, R3, START_S, history, job

import ebbtide as eb
from ebbtide.base.compiled_records import GO_ON_DEMAND, SPOT, WAIT
from ebbtide.base.utc import HOUR_S
from ebbtide.engine.decisions import HELD, NO_REASON, REQUESTED, Decision
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.policies.api.view import View
from ebbtide.policies.deadline import policy as deadline
from ebbtide.policies.deadline.policy import Deadline
from ebbtide.policies.deadline.rules import by_table, cost_by_table, costs_by_table
from ebbtide.policies.registry import POLICIES
from ebbtide.testing.scripted import replay

_tapes = cache(tapes)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> eb.types.ModelBundle:
    return small_bundle(_tapes()[0].known, tmp_path_factory.mktemp("bundle") / "models")


def _told(made: Decision) -> tuple[object, ...]:
    chosen = made.chosen
    return (
        made.action,
        made.job_id,
        made.lease_ids,
        made.market,
        made.why,
        chosen and (chosen.choice, chosen.market),
    )


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_says_why_live_as_in_replay(name: str, models: eb.types.ModelBundle) -> None:
    number = list(POLICIES).index(name)
    tape = _tapes()[0 if name.startswith("spottune") else number % 3]
    scenario = scenario_of(name, tape, BILLINGS[number % 2])
    made = eb.policy(name, models)
    replayed = scenario.run(made, tape.start_s, record=True)
    lived = run_live(scenario, made, tape.start_s)
    asked = [one for one in replayed.made if one.action in (REQUESTED, HELD)]
    assert asked
    assert [one.why for one in asked if not one.why or one.why.startswith(NO_REASON)] == []
    assert all(len(one.offered) <= one.markets and one.markets > 0 for one in asked if one.action == REQUESTED)
    assert list(map(_told, lived.made)) == list(map(_told, replayed.made))
    # What leases there were is what was asked for, each by one decision.
    ids = [lease_id for one in replayed.made if one.action == REQUESTED for lease_id in one.lease_ids]
    assert ids == list(range(len(replayed.leases)))


def test_the_costs_of_the_table_agree_with_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ways to the same choice: the least of the costs that are told, and what the policy does."""
    seen: list[tuple[int, int]] = []
    answer_of = Deadline._answer

    def checked(self: Deadline, view: View, job, now, own, memory):  # type: ignore[no-untyped-def]
        answer = answer_of(self, view, job, now, own, memory)
        table = deadline.table_for(self._question(view, own, memory))
        usd = costs_by_table(table.costs, table.problem.task, now)
        asked = {WAIT: 0, GO_ON_DEMAND: 1}.get(answer, 2 + answer)
        assert usd[:2].min() >= usd[asked]
        if now.held != SPOT:
            # What is held may be exchanged only at some times, and is then judged by the mean over ages as well.
            assert usd.min() == usd[asked] == cost_by_table(table.costs, table.problem.task, now)
        assert by_table(table.costs, table.problem.task, now) == answer
        seen.append((int(now.held), asked))
        return answer

    monkeypatch.setattr(Deadline, "_answer", checked)
    random = np.random.default_rng(1)
    for times in (1.1, 1.3, 1.6, 2.5):
        for _ in range(3):
            hours = np.cumsum(random.exponential(3.0, 40))
            points = [(0.0, 1), *((float(at), number % 2) for number, at in enumerate(hours))]
            series = {market: capacity(*points[shift:]) for shift, market in ((0, C3), (1, R3))}
            prices = history({C3: [(0, 0.06), (40_000, 0.2), (60_000, 0.05)], R3: [(0, 0.03)]}, hours=300)
            work = job(30_000, save_s=10, restore_s=20)
            policy = Deadline(deadline_s=times * 30_000, ask_every_s=HOUR_S, may_lose=100.0)
            outcome = replay(policy, [work], prices, "gcp-spot", availability=Availability(series))
            assert outcome.finished
    assert {asked for _, asked in seen} >= {0, 1, 2}
    assert len(seen) > 100


def capacity(*points: tuple[float, int]) -> CapacitySeries:
    """From (hours after START_S, machines) pairs."""
    times, nodes = zip(*points, strict=True)
    times_s = START_S + HOUR_S * np.array(times, float)
    return CapacitySeries(times_s - (times_s[0] - START_S), np.array(nodes), START_S + 300 * HOUR_S)
