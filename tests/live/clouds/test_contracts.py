"""The local cloud, and EC2, GCP and SkyPilot on their stand-ins, keep the contract of clouds."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError
from tests.live.sweeps import START_S, A, B, G, flapping, steady
from tests.waiting import eventually

import ebbtide as eb
from ebbtide.live.agent.config import AgentConfig
from ebbtide.live.agent.metadata import GoogleMetadata, NoticeReader
from ebbtide.live.clouds.cloud import Cloud, Instance, Wanted
from ebbtide.live.clouds.ec2.cloud import Ec2Cloud
from ebbtide.live.clouds.gcp.cloud import GcpCloud
from ebbtide.live.clouds.gcp.instance import token_of
from ebbtide.live.clouds.local.client import LocalCloud, LocalCloudSettings, start_local_cloud
from ebbtide.live.clouds.skypilot.cloud import SkyPilotCloud
from ebbtide.market.price_series import PriceSeries
from ebbtide.testing.contracts.clouds import CloudContract
from ebbtide.testing.ec2_stand_in.api import StandInApi
from ebbtide.testing.ec2_stand_in.running import stand_in
from ebbtide.testing.gcp_stand_in.api import GcpApi
from ebbtide.testing.gcp_stand_in.running import gcp_stand_in
from ebbtide.testing.skypilot_stand_in.api import SkyPilotApi
from ebbtide.testing.skypilot_stand_in.running import skypilot_stand_in
from ebbtide.testing.stand_in.machines import Machine, StandInMachines
from ebbtide.testing.stand_in.money import until_now

# In a real second two minutes pass, in which a machine boots.
SPEED = 120.0
# Real seconds of a notice, for a look at it on a busy machine; and for which a price stays low, for a machine to boot.
NOTICE_S, CALM_S = 5.0, 10


class TestLocalCloud(CloudContract):
    folder: Path

    @classmethod
    @contextmanager
    def make_cloud(cls, folder: Path) -> Iterator[Cloud]:
        cls.folder = folder
        prices = flapping(every_h=0.4)
        # A stays cheap; every 24 real seconds B goes above the list price for four.
        calm = {A: PriceSeries(prices[A].times_s[:1], prices[A].prices[:1]), B: prices[B]}
        eb.PriceHistory(calm, start_s=prices.start_s, end_s=prices.end_s).write(folder / "prices.parquet")
        settings = LocalCloudSettings(
            str(folder / "cloud"), str(folder / "prices.parquet"), START_S, SPEED, least_notice_s=NOTICE_S
        )
        cloud = start_local_cloud(settings)
        try:
            yield cloud
        finally:
            cloud.end()

    def make_wanted(self, cloud: Cloud, token: str) -> Wanted:  # noqa: ARG002
        agent = AgentConfig("run", token, str(self.folder / "objects"), "", controller_limit_s=60.0)
        return Wanted(token, A, math.inf, False, asdict(agent))

    def make_refused(self, cloud: Cloud, token: str) -> Wanted:
        return Wanted(token, A, 0.001, False, self.make_wanted(cloud, token).agent)

    def make_revocable(self, cloud: Cloud, token: str) -> Wanted:
        def is_calm() -> bool:
            prices, now_s = cloud.prices(B), cloud.now_s
            return all(prices.at(now_s + ahead_s * SPEED) <= 0.21 for ahead_s in range(CALM_S + 1))

        eventually(is_calm, poll_s=0.1)
        return Wanted(token, B, 0.21, False, self.make_wanted(cloud, token).agent)

    def revoke(self, cloud: Cloud, token: str) -> str:  # noqa: ARG002
        """The price does it, sooner or later."""
        configs = [json.loads(path.read_text()) for path in (self.folder / "cloud").glob("machine-*/agent.json")]
        return str(next(config["metadata_url"] for config in configs if config["machine"] == token))

    @contextmanager
    def silenced(self, cloud: Cloud) -> Iterator[None]:
        assert isinstance(cloud, LocalCloud)
        url, cloud._api._url = cloud._api._url, "http://127.0.0.1:9"
        yield
        cloud._api._url = url


class _Silent:
    def __getattr__(self, name: str) -> Any:
        def call(**_: Any) -> None:
            raise EndpointConnectionError(endpoint_url=f"https://ec2/{name}")

        return call


@pytest.mark.usefixtures("processes")
class TestEc2Cloud(CloudContract):
    machines: StandInMachines
    api: StandInApi

    @classmethod
    @contextmanager
    def make_cloud(cls, folder: Path) -> Iterator[Cloud]:
        prices = until_now(flapping(), time.time())
        with stand_in(folder / "stand-in", prices) as (cls.api, cls.machines, settings):
            # Start scripts find no agent here, and would shut their machines down.
            cls.machines.ignores_shutdown = True
            yield Ec2Cloud("run-1", settings, lambda: prices)

    def make_wanted(self, cloud: Cloud, token: str) -> Wanted:  # noqa: ARG002
        return Wanted(token, A, 0.21, False, {"machine": token, "bundle": "runs/r/agent-0.tar.gz"})

    def make_refused(self, cloud: Cloud, token: str) -> Wanted:
        self.api.refusals.launches.append("InsufficientInstanceCapacity")
        return self.make_wanted(cloud, token)

    def revoke(self, cloud: Cloud, token: str) -> str:  # noqa: ARG002
        machine = self.waited(lambda: self._machine(token), lambda one: one is not None, "its process")
        assert machine is not None
        self.machines.take(machine, NOTICE_S)
        return self.machines.metadata_url(machine)

    def _machine(self, token: str) -> Machine | None:
        tagged = {"key": "ebbtide:token", "value": token}
        return next((one for one in self.machines.running if tagged in _tags(one.instance)), None)

    @contextmanager
    def silenced(self, cloud: Cloud) -> Iterator[None]:
        assert isinstance(cloud, Ec2Cloud)
        before = cloud._clients, cloud._launchers
        cloud._clients = cloud._launchers = {region: _Silent() for region in cloud._clients}
        yield
        cloud._clients, cloud._launchers = before


def _tags(instance: Any) -> list[dict[str, str]]:
    return [{"key": tag["key"], "value": tag["value"]} for tag in instance.get_tags()]


@pytest.mark.usefixtures("processes")
class TestGcpCloud(CloudContract):
    machines: StandInMachines
    api: GcpApi

    @classmethod
    @contextmanager
    def make_cloud(cls, folder: Path) -> Iterator[Cloud]:
        prices = until_now(steady(), time.time())
        with gcp_stand_in(folder / "stand-in", prices) as (cls.api, cls.machines, settings):
            # Start scripts find no agent here, and would shut their machines down.
            cls.machines.ignores_shutdown = True
            yield GcpCloud("run-1", settings, lambda: prices)

    def make_wanted(self, cloud: Cloud, token: str) -> Wanted:  # noqa: ARG002
        return Wanted(token, G, 0.21, False, {"machine": token, "bundle": "runs/r/agent-0.tar.gz"})

    def make_refused(self, cloud: Cloud, token: str) -> Wanted:
        self.api.compute.refusals.launches.append("ZONE_RESOURCE_POOL_EXHAUSTED")
        return self.make_wanted(cloud, token)

    def instance(self, cloud: Cloud, token: str) -> Instance:
        # One that is preempted between the two requests of a look is missing from it, and listed by the next.
        found = cloud.instances()
        if all(one.token != token for one in found):
            found = cloud.instances()
        (only,) = [one for one in found if one.token == token]
        return only

    def metadata(self, url: str) -> NoticeReader:
        return GoogleMetadata(url, notice_s=NOTICE_S)

    def revoke(self, cloud: Cloud, token: str) -> str:  # noqa: ARG002
        machine = self.waited(lambda: self._machine(token), lambda one: one is not None, "its process")
        assert machine is not None
        self.machines.take(machine, NOTICE_S)
        return self.machines.metadata_url(machine)

    def _machine(self, token: str) -> Machine | None:
        return next((one for one in self.machines.running if token_of(one.instance) == token), None)

    @contextmanager
    def silenced(self, cloud: Cloud) -> Iterator[None]:
        assert isinstance(cloud, GcpCloud)
        url, cloud._compute._url = cloud._compute._url, "http://127.0.0.1:9/compute/v1/projects/x"
        yield
        cloud._compute._url = url


@pytest.mark.usefixtures("processes")
class TestSkyPilotCloud(CloudContract):
    machines: StandInMachines
    api: SkyPilotApi

    @classmethod
    @contextmanager
    def make_cloud(cls, folder: Path) -> Iterator[Cloud]:
        prices = until_now(flapping(), time.time())
        with skypilot_stand_in(folder / "stand-in", prices) as (cls.api, cls.machines, settings):
            # Start scripts find no agent here, and would end.
            cls.machines.ignores_shutdown = True
            yield SkyPilotCloud("run-1", settings, lambda: prices)

    def make_wanted(self, cloud: Cloud, token: str) -> Wanted:  # noqa: ARG002
        return Wanted(token, A, 0.21, False, {"machine": token, "bundle": "runs/r/agent-0.tar.gz"})

    def make_refused(self, cloud: Cloud, token: str) -> Wanted:
        self.api.refusals.launches.append("ResourcesUnavailableError")
        return self.make_wanted(cloud, token)

    def revoke(self, cloud: Cloud, token: str) -> str:
        assert isinstance(cloud, SkyPilotCloud)
        name = cloud._names.name(token)
        machine = self.waited(
            lambda: next((one for one in self.machines.running if one.rented.id == name), None),
            lambda one: one is not None,
            "its process",
        )
        assert machine is not None
        self.machines.take(machine, NOTICE_S)
        return self.machines.metadata_url(machine)

    @contextmanager
    def silenced(self, cloud: Cloud) -> Iterator[None]:  # noqa: ARG002
        self.api.refusals.is_silent = True
        yield
        self.api.refusals.is_silent = False
