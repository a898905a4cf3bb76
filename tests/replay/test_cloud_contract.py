"""The replay rents machines as clouds do: the provider that simulates it keeps the contract of clouds, too."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.runs.sweeps import START_S, A, B, flapping

import ebbtide as eb
from ebbtide.clouds.cloud import Cloud, Instance, MachineRequest
from ebbtide.clouds.metadata import MachineState
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.price_series import PriceSeries
from ebbtide.replay.replay import ReplayProvider
from ebbtide.replay.replayed_market import ReplayedMarket
from ebbtide.replay.start_delay import StartDelay
from ebbtide.testing.contracts.clouds import CloudContract
from ebbtide.testing.metadata_server import MetadataServer

# Seconds of the replay in a real second: a machine boots in three, and a notice lasts four.
SPEED = 30.0


class ReplayCloud:
    """The replay provider with the methods of a cloud; its clock follows the real one.

    Args:
        prices: Price histories of all markets.
        start_s: Start of the replay, seconds since 1970.
    """

    def __init__(self, prices: eb.PriceHistory, start_s: float) -> None:
        market = ReplayedMarket(prices, start_s, eb.billing_preset("ec2-hourly"), delay=StartDelay(30.0, 60.0))
        self._replay = ReplayProvider(market)
        self._replay.start([], watch_prices=False)
        self._began_s, self._epoch_s = start_s, time.time()
        self._leases: dict[str, Lease] = {}
        self._why: dict[int, str] = {}
        self.metadata = MetadataServer(self._state_of)

    @property
    def now_s(self) -> float:
        return self.time_of(time.time())

    @property
    def is_over(self) -> bool:
        return self._replay.is_over

    @property
    def markets(self) -> Sequence[eb.Market]:
        return self._replay.markets

    def prices(self, market: eb.Market) -> PriceSeries:
        return self._replay.prices(market)

    def time_of(self, epoch_s: float) -> float:
        return self._began_s + (epoch_s - self._epoch_s) * SPEED

    def go_to(self, time_s: float) -> None:
        """Set its clock to a later time of the replay."""
        self._epoch_s -= max(time_s - self.now_s, 0.0) / SPEED

    def launch(self, wanted: MachineRequest) -> None:
        self._go_on()
        if wanted.token not in self._leases:
            now_s = self._replay.now_s
            lease = Lease(len(self._leases), wanted.market, wanted.max_price_usd_per_hour, wanted.on_demand, now_s)
            self._leases[wanted.token] = lease
            self._replay.launch(lease)

    def terminate(self, token: str) -> float | None:
        self._go_on()
        lease = self._leases.get(token)
        if lease is None:
            return None
        if lease.is_open:
            self._replay.terminate(lease)
        return lease.ended_s

    def instances(self) -> Sequence[Instance]:
        self._go_on()
        return [self._instance(token, lease) for token, lease in self._leases.items()]

    def _instance(self, token: str, lease: Lease) -> Instance:
        state = LeaseState.RUNNING if lease.state is LeaseState.NOTICED else lease.state
        why = self._why.get(lease.lease_id, "")
        return Instance(token, state, lease.started_s, lease.running_s, lease.ended_s, why)

    def _go_on(self) -> None:
        """Go through all that has happened by now."""
        now_s = self.now_s
        while (event := self._replay.next_event(now_s)) is not None:
            if event.lease_id >= 0:
                self._why[event.lease_id] = event.detail

    def _state_of(self, token: str) -> MachineState:
        self._go_on()
        lease = self._leases[token]
        is_noticed = lease.state is LeaseState.NOTICED
        return MachineState(self._epoch_s + (lease.revoke_at_s - self._began_s) / SPEED if is_noticed else None)


class TestReplay(CloudContract):
    @classmethod
    @contextmanager
    def make_cloud(cls, folder: Path) -> Iterator[Cloud]:  # noqa: ARG003
        # Dear for the first time after 15 real minutes.
        prices = flapping(every_h=5.0)
        # A stays cheap.
        calm = {A: PriceSeries(prices[A].times_s[:1], prices[A].prices[:1]), B: prices[B]}
        cloud = ReplayCloud(eb.PriceHistory(calm, start_s=prices.start_s, end_s=prices.end_s), START_S)
        try:
            yield cloud
        finally:
            cloud.metadata.close()

    def make_wanted(self, cloud: Cloud, token: str) -> MachineRequest:  # noqa: ARG002
        return MachineRequest(token, A, math.inf, False, {})

    def make_refused(self, cloud: Cloud, token: str) -> MachineRequest:  # noqa: ARG002
        return MachineRequest(token, A, 0.001, False, {})

    def make_revocable(self, cloud: Cloud, token: str) -> MachineRequest:  # noqa: ARG002
        return MachineRequest(token, B, 0.21, False, {})

    def revoke(self, cloud: Any, token: str) -> str:
        """The price does it: its next rise is now."""
        prices = cloud.prices(B)
        cloud.go_to(min(time_s for time_s in prices.times_s[prices.prices > 0.21] if time_s > cloud.now_s))
        return f"{cloud.metadata.url}/{token}"
