"""The contract of policies refuses policies that break it, each by the test that says so."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.testing.contracts.policies import PolicyContract


class Good:
    """Rents the cheapest machine that can run the job; each test spoils one thing."""

    name = "good"
    wakes_on: frozenset[eb.policies.Wake] = frozenset()

    def decide(self, view: eb.policies.View) -> Iterable[eb.policies.Action]:
        for job in view.jobs:
            if job.is_finished or view.leases_of(job.job_id):
                continue
            market = min(self.able(view, job), key=view.price, default=None)
            refused = any(event.wake is eb.policies.Wake.LAUNCH_FAILED for event in view.events)
            if market is None or refused:
                yield eb.policies.WakeAt(view.now_s + 300.0)
            else:
                yield eb.policies.Request(market, job=job.job_id)

    def able(self, view: eb.policies.View, job: eb.policies.JobView) -> list[eb.Market]:
        return [market for market in view.markets if view.steps_per_s(job.job, market) > 0]


class Padded(Good):
    name = " mine"


class Idle(Good):
    def decide(self, _view: eb.policies.View) -> Iterable[eb.policies.Action]:
        return []


class Guessing(Good):
    def decide(self, view: eb.policies.View) -> Iterable[eb.policies.Action]:
        for job in view.jobs:
            if not job.is_finished and not view.leases_of(job.job_id):
                yield eb.policies.Request(random.choice(view.markets), job=job.job_id)
                yield eb.policies.WakeAt(view.now_s + random.random())


class Counting(Good):
    """Keeps in itself how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def decide(self, view: eb.policies.View) -> Iterable[eb.policies.Action]:
        self.asked += 1
        yield from super().decide(view)
        yield eb.policies.WakeAt(view.now_s + 100.0 + self.asked)


class Remembering(Good):
    """Puts something into the memory at its first decision."""

    value: Any = None

    def decide(self, view: eb.policies.View) -> Iterable[eb.policies.Action]:
        view.memory.setdefault("kept", self.value)
        return super().decide(view)


class Numpy(Remembering):
    value: Any = np.float64(3.0)


class Pairs(Remembering):
    value: Any = ((1, 2),)


class Numbered(Remembering):
    value: Any = MappingProxyType({1: "one"}).copy()


class Meddling(Good):
    def decide(self, view: eb.policies.View) -> Iterable[eb.policies.Action]:
        for job in view.jobs:
            object.__setattr__(job.job, "steps", 1)
        return super().decide(view)


class Greedy(Good):
    def decide(self, view: eb.policies.View) -> Iterable[eb.policies.Action]:
        yield eb.policies.Request(view.markets[0], job=7)


class Careless(Good):
    """Forgets that a job cannot run everywhere."""

    def able(self, view: eb.policies.View, _job: eb.policies.JobView) -> list[eb.Market]:
        return list(view.markets)


class Hasty(Good):
    """Gives nothing another try."""

    def decide(self, view: eb.policies.View) -> Iterable[eb.policies.Action]:
        starts = any(event.wake is eb.policies.Wake.START for event in view.events)
        return super().decide(view) if starts else []


class Insisting(Good):
    """Asks again at once for a machine that was refused."""

    def decide(self, view: eb.policies.View) -> Iterable[eb.policies.Action]:
        for job in view.jobs:
            if not job.is_finished and not view.leases_of(job.job_id):
                yield eb.policies.Request(min(view.markets, key=view.price), job=job.job_id)


class GoodIsChecked(PolicyContract):
    kind: Callable[[], Any] = Good

    def make_policy(self) -> Any:
        return type(self).kind()


class TestGood(GoodIsChecked):
    pass


@pytest.mark.parametrize(
    ("kind", "check", "problem"),
    [
        (Padded, "it_has_a_name_and_says_what_wakes_it", "name ' mine' begins or ends with a blank"),
        (Idle, "it_finishes_a_small_job_or_says_why_not", "neither finished its jobs in .* nor gave up"),
        (
            Guessing,
            "the_same_seed_gives_the_same_decisions",
            "a second run of the same object .* draw from view.random",
        ),
        (Counting, "the_same_seed_gives_the_same_decisions", "decision 0 was .*; keep nothing in the object"),
        (
            Counting,
            "another_object_goes_on_from_the_stored_memory",
            "restarted between decisions it decides otherwise",
        ),
        (Numpy, "its_memory_is_what_json_can_hold", r"view.memory\['kept'\] is np.float64\(3.0\), a float64"),
        (Pairs, "its_memory_is_what_json_can_hold", r"view.memory\['kept'\] is \(\(1, 2\),\), a tuple"),
        (Numbered, "its_memory_is_what_json_can_hold", r"view.memory\['kept'\] has the key 1"),
        (Meddling, "it_leaves_what_it_is_shown_alone", "changed a job that it was shown"),
        (Greedy, "it_asks_for_nothing_impossible", "7 is no job"),
        (Careless, "it_asks_for_nothing_impossible", "cannot run there; view.steps_per_s"),
        (Hasty, "it_survives_the_loss_of_every_machine", "after a refusal or a loss ask again"),
        (Hasty, "it_survives_refusals", "after a refusal or a loss ask again"),
        (Insisting, "it_survives_an_empty_market", "it raised ValueError: min"),
    ],
)
def test_a_policy_that_breaks_it_is_refused(kind: Callable[[], Any], check: str, problem: str) -> None:
    class Checked(GoodIsChecked):
        def make_jobs(self) -> list[eb.Job]:
            found = super().make_jobs()
            if kind is not Careless:
                return found
            # Nothing but one instance type runs it.
            return [eb.Job(name="picky", steps=1_000, steps_per_hour={"p2.xlarge": 500.0})]

    Checked.kind = kind
    with pytest.raises(AssertionError, match=problem):
        getattr(Checked(), f"test_{check}")()


def test_a_class_without_a_policy_is_told_what_it_needs() -> None:
    with pytest.raises(NotImplementedError, match=r"needs make_policy\(self\)"):
        PolicyContract().test_it_has_a_name_and_says_what_wakes_it()
