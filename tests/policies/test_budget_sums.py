"""The sums of a budget, by hand: what is rented, saved and moved at the most."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import pytest
from tests.markets import C3, R3, START_S, history

import ebbtide as eb
from ebbtide.jobs.job import Checkpointing, Coupling, Dataset
from ebbtide.jobs.transfers import Bucket
from ebbtide.market.billing import billing_preset
from ebbtide.market.egress import GIB
from ebbtide.policies import budget
from ebbtide.policies.api.actions import Action, GiveUp, Release, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.view import View
from ebbtide.policies.budget import WithinBudget
from ebbtide.testing.scripted import Scripted, replay

_Found = TypeVar("_Found")

EAST = eb.Market("aws", "us-east-1", "us-east-1a", "g2.2xlarge")
EUROPE = eb.Market("aws", "eu-west-1", "eu-west-1a", "g2.2xlarge")
AZURE = eb.Market("azure", "us-east", "us-east", "NC6")
WEST = Bucket(cloud="aws", region="us-west-2")
PRICES = {EAST: [(0, 0.1)], EUROPE: [(0, 0.2)], AZURE: [(0, 0.3)], C3: [(0, 0.05)], R3: [(0, 0.03), (500, 0.9)]}
# A save of two GiB costs four cents in another region of AWS, and takes so many seconds at the least.
SAVE_USD, UPLOAD_S = 0.04, 2 * GIB / 0.25e9


def job(interval_s: float | None = None, save_s: float = 10.0, **more: object) -> eb.Job:
    return eb.Job(
        name="g",
        steps=360_000,
        steps_per_hour=dict.fromkeys(("g2.2xlarge", "NC6", "c3.xlarge", "r3.large"), 3600.0),
        checkpoint=Checkpointing(save_s=save_s, restore_s=10.0, size_bytes=2 * GIB, interval_s=interval_s),
        **more,
    )  # type: ignore[arg-type]


def seen(
    look: Callable[[View], _Found],
    *requests: Request,
    jobs: Sequence[eb.Job] = (),
    at_s: float = 320.0,
    billing: str = "ec2-second",
) -> _Found:
    """What a look finds so many seconds after these requests; a machine is charged from 20 s on."""
    found: list[_Found] = []

    def looks(view: View, _event: object) -> Iterable[Action]:
        found.append(look(view))
        return [GiveUp("seen")]

    script = Scripted({Wake.START: lambda view, _event: [*requests, WakeAt(view.now_s + at_s)], Wake.TIMER: looks})
    replay(script, jobs or [job()], history(PRICES), billing)
    return found[0]


def within(usd: float = 100.0) -> WithinBudget:
    return WithinBudget(eb.policies.CheapestSpot(), usd)


@pytest.mark.parametrize(("interval_s", "every_s"), [(None, UPLOAD_S), (5.0, 5.0), (600.0, UPLOAD_S)])
def test_saves_follow_each_other_as_fast_as_they_are_made_and_uploaded(
    interval_s: float | None, every_s: float
) -> None:
    work = job(interval_s, save_s=1.0, bucket=WEST)
    usd_per_s = seen(
        lambda view: budget._saving_usd_per_s(view, view.leases, []), Request(EAST, job=0), jobs=[work]
    )
    assert usd_per_s == pytest.approx(SAVE_USD / every_s)


def test_saves_whose_size_is_not_known_cost_nothing() -> None:
    """An empty checkpoint takes no time to upload."""
    empty = job(bucket=WEST).model_copy(
        update={"checkpoint": Checkpointing(save_s=10.0, restore_s=10.0, size_bytes=0)}
    )
    assert (
        seen(lambda view: budget._saving_usd_per_s(view, view.leases, []), Request(EAST, job=0), jobs=[empty])
        == 0.0
    )


def test_who_has_no_machine_saves_nothing() -> None:
    jobs = [job(bucket=WEST), job(bucket=WEST)]

    def uploads(view: View) -> list[tuple[int, float]]:
        return [(one.job_id, usd) for one, usd in budget._uploads_usd(view, view.leases, [])]

    assert seen(uploads, jobs=jobs) == []
    assert seen(uploads, Request(EAST, job=1), jobs=jobs) == [(1, pytest.approx(SAVE_USD))]
    # One that no job has yet is for any of those that a request is for.
    asked = seen(lambda view: list(budget._uploads_usd(view, [], [Request(EAST)])), jobs=jobs)
    assert [(one.job_id, usd) for one, usd in asked] == [
        (0, pytest.approx(SAVE_USD)),
        (1, pytest.approx(SAVE_USD)),
    ]
    asked = seen(lambda view: list(budget._uploads_usd(view, [], [Request(EAST, job=0)])), jobs=jobs)
    assert [one.job_id for one, _ in asked] == [0]


@pytest.mark.parametrize(("coupling", "saves"), [(Coupling.GANG, 1), (Coupling.INDEPENDENT, 3)])
def test_machines_that_work_as_one_save_once_and_others_each_by_itself(coupling: Coupling, saves: int) -> None:
    work = job(bucket=WEST, machines={"min": 1, "max": 3}, coupling=coupling)
    held = seen(
        lambda view: [usd for _, usd in budget._uploads_usd(view, view.leases, [Request(EAST, job=0, count=2)])],
        Request(EAST, job=0),
        jobs=[work],
    )
    assert held == [pytest.approx(SAVE_USD * saves)]


def test_what_is_fixed_is_what_was_spent_two_saves_and_each_move() -> None:
    """A machine of ten cents an hour, for five minutes."""
    spent_usd = 0.1 * 300 / 3600

    def fixed(*coming: Request, bucket: Bucket | None = None, dataset: Dataset | None = None) -> float:
        return seen(
            lambda view: budget._fixed_usd(view, view.leases, coming),
            Request(EAST, job=0),
            jobs=[job(bucket=bucket, dataset=dataset)],
        )

    assert fixed() == pytest.approx(spent_usd)
    assert fixed(bucket=WEST) == pytest.approx(spent_usd + 2 * SAVE_USD + SAVE_USD)
    assert fixed(Request(EUROPE, job=0)) == pytest.approx(spent_usd + SAVE_USD)
    assert fixed(Request(EUROPE, job=0, count=2)) == pytest.approx(spent_usd + 2 * SAVE_USD)
    # For no job in particular: the most that any of them costs.
    assert fixed(Request(EUROPE)) == pytest.approx(spent_usd + SAVE_USD)
    home = Dataset(size_bytes=10 * GIB, cloud="aws", region="us-east-1")
    assert fixed(dataset=home) == pytest.approx(spent_usd)
    assert fixed(Request(AZURE, job=0), dataset=home) == pytest.approx(spent_usd + 2 * 0.09 + 10 * 0.09)


def test_of_a_job_that_has_stored_nothing_nothing_is_downloaded() -> None:
    assert seen(lambda view: budget._move_usd(view, view.jobs[0], EUROPE), jobs=[job(bucket=WEST)]) == 0.0
    without = job().model_copy(update={"checkpoint": None})
    assert seen(lambda view: budget._move_usd(view, view.jobs[0], EUROPE), jobs=[without]) == 0.0


@pytest.mark.parametrize(
    ("billing", "used_s", "paid_s"),
    [
        ("per-second", 0.0, 0.0),
        ("per-second", 61.5, 62.0),
        ("gcp-spot", 0.0, 60.0),
        ("gcp-spot", 60.0, 60.0),
        ("gcp-spot", 60.5, 61.0),
        ("ec2-hourly", 3600.0, 3600.0),
        ("ec2-hourly", 3600.0 + 1e-7, 3600.0),
        ("ec2-hourly", 3601.0, 7200.0),
    ],
)
def test_whole_periods_are_paid(billing: str, used_s: float, paid_s: float) -> None:
    assert budget._paid_s(billing_preset(billing), used_s) == paid_s


def test_what_a_machine_may_still_cost_is_counted_from_what_is_paid() -> None:
    """Charged since 300 s, at 0.07 USD an hour at the most: until 1000 s, with 2 x 10 + 15 s for its end."""
    request = Request(C3, 0.07, job=0)

    def rented(view: View) -> budget._Rented:
        (found,) = within()._held(view, view.leases)
        return found

    held = seen(rented, request)
    assert (held.usd_per_hour, held.paid_s, held.least_s, held.ending_s) == (0.07, 300.0, 0.0, 35.0)
    assert held.started_s == START_S + 20.0
    until_s = START_S + 1020.0
    assert budget._renting_usd([held, held], until_s) == pytest.approx(2 * 0.07 * (1000 + 35 - 300) / 3600)
    assert held.least_usd(until_s) == pytest.approx(0.07 * (1000 + 35 - 300) / 3600)
    # Above it, a minute and a second: what rounding and the least charge can add.
    assert held.most_usd(until_s) == pytest.approx(0.07 * (1000 + 35 - 300 + 61) / 3600)
    assert held.most_usd(START_S - 1e6) == 0.0


def test_a_machine_on_its_way_is_counted_from_now_and_a_new_one_for_ten_minutes() -> None:
    request = Request(C3, 0.07, job=0)
    (coming,) = seen(lambda view: within()._held(view, view.leases, []), request, at_s=10.0)
    assert (coming.started_s, coming.paid_s, coming.least_s) == (START_S + 10.0, 0.0, 600.0)
    assert budget._renting_usd([coming], START_S + 10.0) == pytest.approx(0.07 * 635 / 3600)
    (known,) = seen(lambda view: within()._held(view, view.leases, [0]), request, at_s=10.0)
    assert known.least_s == 0.0
    asked = seen(lambda view: within()._asked_for(view, [Request(C3, 0.07, count=3)]), at_s=10.0)
    assert [(one.usd_per_hour, one.started_s, one.paid_s, one.least_s, one.ending_s) for one in asked] == [
        (pytest.approx(3 * 0.07), START_S + 10.0, 0.0, 600.0, 35.0)
    ]


def test_a_price_above_a_max_price_is_what_a_machine_costs_until_it_is_taken() -> None:
    """It rises to 0.90 USD at 500 s; the notice takes two minutes."""
    request = Request(R3, 0.05, job=0)

    def look(view: View) -> tuple[list[int], list[float]]:
        return [lease.lease_id for lease in budget._above(view)], [
            one.usd_per_hour for one in within()._held(view, view.leases)
        ]

    assert seen(look, request, at_s=499.0) == ([], [0.05])
    assert seen(look, request, at_s=501.0) == ([0], [0.9])
    # One on demand costs what it costs.
    assert seen(look, Request(R3, on_demand=True, job=0), at_s=501.0) == ([], [0.175])


def test_a_request_without_a_max_price_gets_the_list_price_or_thrice_the_price_where_there_is_none() -> None:
    unlisted = eb.Market("aws", "us-east-1", "us-east-1a", "m5.large")
    most: list[float] = []

    def capped(view: View, _event: object) -> Iterable[Action]:
        for asked in (Request(C3), Request(R3), Request(unlisted), Request(C3, 0.3), Request(C3, on_demand=True)):
            found = within()._capped(view, asked)
            assert isinstance(found, Request)
            most.append(found.max_price_usd_per_hour)
        return [GiveUp("seen")]

    prices = history({C3: [(0, 0.05)], R3: [(0, 0.9)], unlisted: [(0, 0.1)]})
    replay(Scripted({Wake.START: capped}), [job()], prices)
    assert most == [0.21, 0.9, pytest.approx(0.3), 0.3, math.inf]


def test_jobs_that_share_a_machine_save_at_the_same_time() -> None:
    jobs = [job(share=0.3), job().model_copy(update={"checkpoint": None})]
    assert seen(lambda view: within()._ending_s(view, C3), jobs=jobs) == 2 * 3 * 10 + 15


def test_ten_days_that_can_be_paid_have_no_limit() -> None:
    """Ten days, and 35 seconds for the end, less the five minutes that are paid."""
    left_s = 10 * 86_400 + 35
    usd = (0.1 * 300 + 0.2 * left_s) / 3600

    def limit(view: View, usd: float) -> float:
        return within(usd)._limit_s(view) - view.now_s

    request = Request(EAST, 0.2, job=0)
    assert seen(lambda view: limit(view, usd + 1e-6), request, billing="per-second") == math.inf
    nearly_s = seen(lambda view: limit(view, usd - 1e-3), request, billing="per-second")
    assert nearly_s == pytest.approx(10 * 86_400 - 18, abs=2)


def test_what_is_rented_can_be_paid_until_the_rest_is_for_its_end() -> None:
    """Five minutes are spent: another 35 s for the end, and so many seconds to use."""

    def left_s(use_s: float) -> float:
        usd = (0.1 * 300 + 0.2 * (35 + use_s)) / 3600
        return seen(
            lambda view: within(usd).affordable_until_s(view) - view.now_s,
            Request(EAST, 0.2, job=0),
            billing="per-second",
        )

    assert [left_s(use_s) <= 1.0 for use_s in (0.0, 1.5, 3.5)] == [True, True, False]


def test_a_machine_that_its_provider_was_to_take_is_given_back_whenever_the_budget_is_next_asked() -> None:
    """The wake-up came late: the time until which it was to be taken is over by a second."""
    limit = within(0.01)

    def late(view: View) -> list[type[Action]]:
        limit._memory(view)["gives_up_s"] = view.now_s - 1.0
        return [type(action) for action in limit._give_up_when_revoked(view, budget._above(view))]

    assert seen(late, Request(R3, 0.05, job=0), at_s=501.0) == [Release, GiveUp]

    def early(view: View) -> list[type[Action]]:
        limit._memory(view)["gives_up_s"] = view.now_s + 1.0
        return [type(action) for action in limit._give_up_when_revoked(view, budget._above(view))]

    assert seen(early, Request(R3, 0.05, job=0), at_s=501.0) == []
