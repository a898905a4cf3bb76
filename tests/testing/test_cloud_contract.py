"""The contract of clouds: a cloud in memory keeps it, and clouds that break it are refused by the test that says so."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.waiting import LIMIT_S

import ebbtide as eb
from ebbtide.clouds.cloud import Cloud, Instance, MachineRequest
from ebbtide.errors import CloudError
from ebbtide.market.leases import LeaseState
from ebbtide.market.price_series import PriceSeries
from ebbtide.testing.contracts.clouds import CloudContract
from ebbtide.testing.metadata_server import MetadataServer

HERE = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")


class InMemory:
    """A cloud whose machines are entries in a dictionary; each test spoils one thing."""

    is_over = False
    markets: Sequence[eb.Market] = (HERE,)

    def __init__(self) -> None:
        self.machines: dict[str, Instance] = {}
        self.taken: dict[str, float] = {}
        self.is_silent = False
        self.metadata = MetadataServer()

    @property
    def now_s(self) -> float:
        return time.time()

    def prices(self, _market: eb.Market) -> PriceSeries:
        return PriceSeries(np.array([time.time() - 3600.0]), np.array([0.05]))

    def time_of(self, epoch_s: float) -> float:
        return epoch_s

    def launch(self, wanted: MachineRequest) -> None:
        self._answer()
        now_s = self.now_s
        ok = wanted.max_price_usd_per_hour >= 0.05
        state, why = (LeaseState.RUNNING, "") if ok else (LeaseState.FAILED, "the price is above the max price")
        times_s = (now_s, now_s, math.nan) if ok else (math.nan, math.nan, now_s)
        self.machines.setdefault(wanted.token, Instance(wanted.token, state, *times_s, why))

    def terminate(self, token: str) -> float | None:
        self._answer()
        found = self.machines.get(token)
        if found is None:
            return None
        if math.isnan(found.ended_s):
            found = replace(found, state=LeaseState.RELEASED, ended_s=self.now_s)
            self.machines[token] = found
        return found.ended_s

    def instances(self) -> Sequence[Instance]:
        self._answer()
        for token, taken_at_s in self.taken.items():
            if self.now_s >= taken_at_s:
                ended = {"state": LeaseState.REVOKED, "ended_s": taken_at_s, "why": "no capacity left"}
                self.machines[token] = replace(self.machines[token], **ended)  # type: ignore[arg-type]
        return list(self.machines.values())

    def take(self, token: str) -> None:
        self.taken[token] = self.metadata.taken_at_s = self.now_s + 3.0

    def _answer(self) -> None:
        if self.is_silent:
            raise CloudError("the cloud does not answer")


class InMemoryContract(CloudContract):
    kind: Callable[[], Any] = InMemory
    # Nothing here takes time; one that breaks the contract keeps the suite waiting for so long.
    within_s = 1.0

    @classmethod
    @contextmanager
    def make_cloud(cls, folder: Path) -> Iterator[Cloud]:  # noqa: ARG003
        cloud = cls.kind()
        try:
            yield cloud
        finally:
            cloud.metadata.close()

    def make_wanted(self, cloud: Cloud, token: str) -> MachineRequest:
        return MachineRequest(token, cloud.markets[0], math.inf, False, {})

    def make_refused(self, cloud: Cloud, token: str) -> MachineRequest:
        return MachineRequest(token, cloud.markets[0], 0.01, False, {})

    def revoke(self, cloud: Any, token: str) -> str:
        cloud.take(token)
        return str(cloud.metadata.url)

    @contextmanager
    def silenced(self, cloud: Any) -> Iterator[None]:
        cloud.is_silent = True
        yield
        cloud.is_silent = False


class TestInMemory(InMemoryContract):
    within_s = LIMIT_S


class RentsAgain(InMemory):
    """Forgets a token when its machine has ended."""

    def launch(self, wanted: MachineRequest) -> None:
        if wanted.token in self.machines and not math.isnan(self.machines[wanted.token].ended_s):
            del self.machines[wanted.token]
        super().launch(wanted)


class RentsTwice(InMemory):
    def instances(self) -> Sequence[Instance]:
        return [*super().instances(), *super().instances()]


class Forgets(InMemory):
    """Lists no machine that has ended."""

    def instances(self) -> Sequence[Instance]:
        return [one for one in super().instances() if math.isnan(one.ended_s)]


class NeverEnds(InMemory):
    def terminate(self, token: str) -> float | None:
        return self.now_s if token in self.machines else None


class Raises(InMemory):
    def terminate(self, token: str) -> float | None:
        if token not in self.machines:
            raise CloudError("no such machine")
        return super().terminate(token)


class StandsStill(InMemory):
    now_s = 1_700_000_000.0


class Free(InMemory):
    def prices(self, _market: eb.Market) -> PriceSeries:
        return PriceSeries(np.array([time.time() + 3600.0]), np.array([0.05]))


class Bare(InMemory):
    """Lets the errors of what it is built on through."""

    def _answer(self) -> None:
        if self.is_silent:
            raise ConnectionError("refused")


class TakesWithoutNotice(InMemory):
    def take(self, token: str) -> None:
        self.taken[token] = self.now_s


class TellsOfNotices(InMemory):
    def instances(self) -> Sequence[Instance]:
        found = super().instances()
        noticed = {token for token in self.taken if math.isnan(self.machines[token].ended_s)}
        return [replace(one, state=LeaseState.NOTICED) if one.token in noticed else one for one in found]


class Unexplained(InMemory):
    def instances(self) -> Sequence[Instance]:
        return [replace(one, why="") for one in super().instances()]


@pytest.mark.parametrize(
    ("kind", "check", "problem"),
    [
        (RentsAgain, "a_token_rents_one_machine", "rented another: running"),
        (RentsTwice, "a_token_rents_one_machine", "lists 2 machines with the token 'once'"),
        (Forgets, "what_is_given_back_is_released_and_stays_so", "lists 0 machines with the token"),
        (NeverEnds, "what_is_given_back_is_released_and_stays_so", "after terminate it is running"),
        (Raises, "a_machine_that_was_never_requested_has_no_end", "no such machine"),
        (StandsStill, "its_clock_goes_forward", "now_s stands still"),
        (Free, "every_market_has_a_price_now", "now is nan; a number of USD per hour is right"),
        (Bare, "silence_is_an_error_of_the_cloud", "raised ConnectionError: refused; CloudError is right"),
        (TakesWithoutNotice, "a_notice_is_told_to_the_machine_and_then_it_is_revoked", "waited 1 s for a notice"),
        (TellsOfNotices, "a_notice_is_told_to_the_machine_and_then_it_is_revoked", "tells of the notice"),
        (Unexplained, "a_refusal_is_a_machine_that_failed", "does not say why"),
    ],
)
def test_a_cloud_that_breaks_it_is_refused(
    kind: Callable[[], Any], check: str, problem: str, tmp_path: Path
) -> None:
    class Checked(InMemoryContract):
        pass

    Checked.kind = kind
    with Checked.make_cloud(tmp_path) as cloud, pytest.raises((AssertionError, CloudError), match=problem):
        getattr(Checked(), f"test_{check}")(cloud)
