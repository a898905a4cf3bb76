"""The local cloud, and EC2, GCP and SkyPilot on their stand-ins, keep the contract of clouds."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError
from tests.clouds.renters import EC2, GCP, SKYPILOT, StandIn
from tests.runs.sweeps import START_S, A, B, G, flapping, steady
from tests.waiting import eventually

import ebbtide as eb
from ebbtide.agent.config import AgentConfig
from ebbtide.agent.metadata import GoogleMetadata, NoticeReader
from ebbtide.clouds.cloud import Cloud, Instance, MachineRequest
from ebbtide.clouds.ec2.cloud import Ec2Cloud
from ebbtide.clouds.gcp.cloud import GcpCloud
from ebbtide.clouds.gcp.instance import token_of
from ebbtide.clouds.local.client import LocalCloud, LocalCloudSettings, start_local_cloud
from ebbtide.clouds.skypilot.cloud import SkyPilotCloud
from ebbtide.market.price_series import PriceSeries
from ebbtide.testing.contracts.clouds import CloudContract
from ebbtide.testing.skypilot_stand_in.running import skypilot_stand_in
from ebbtide.testing.stand_in.machines import StandInMachine, StandInMachines
from ebbtide.testing.stand_in.money import until_now

# In a real second two minutes pass, in which a machine boots.
SPEED = 120.0
# Real seconds of a notice, for a look at it on a busy machine; and for which a price stays low, for a machine to boot.
NOTICE_S, CALM_S = 5.0, 10


@pytest.mark.usefixtures("processes")
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

    def make_wanted(self, cloud: Cloud, token: str) -> MachineRequest:  # noqa: ARG002
        agent = AgentConfig("run", token, str(self.folder / "objects"), "", controller_limit_s=60.0)
        return MachineRequest(token, A, math.inf, False, asdict(agent))

    def make_refused(self, cloud: Cloud, token: str) -> MachineRequest:
        return MachineRequest(token, A, 0.001, False, self.make_wanted(cloud, token).agent)

    def make_revocable(self, cloud: Cloud, token: str) -> MachineRequest:
        def is_calm() -> bool:
            prices, now_s = cloud.prices(B), cloud.now_s
            return all(prices.at(now_s + ahead_s * SPEED) <= 0.21 for ahead_s in range(CALM_S + 1))

        eventually(is_calm, poll_s=0.1)
        return MachineRequest(token, B, 0.21, False, self.make_wanted(cloud, token).agent)

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


class OnStandIn(CloudContract):
    """A cloud on its stand-in, whose machines run no agent.

    Attributes:
        stand_in: What it is a stand-in for.
        kind: The cloud's class.
        market: Where machines are rented.
    """

    stand_in: StandIn
    kind: type[Ec2Cloud | GcpCloud | SkyPilotCloud]
    market = A
    machines: StandInMachines
    api: Any

    @classmethod
    @contextmanager
    def make_cloud(cls, folder: Path) -> Iterator[Cloud]:
        prices = until_now(flapping() if cls.market == A else steady(), time.time())
        with cls.stand_in.opened(folder / "stand-in", prices) as (cls.api, cls.machines, settings):
            # Start scripts find no agent here, and would shut their machines down.
            cls.machines.ignores_shutdown = True
            yield cls.kind("run-1", settings, lambda: prices)

    def make_wanted(self, cloud: Cloud, token: str) -> MachineRequest:  # noqa: ARG002
        return MachineRequest(
            token, self.market, 0.21, False, {"machine": token, "bundle": "runs/r/agent-0.tar.gz"}
        )

    def make_refused(self, cloud: Cloud, token: str) -> MachineRequest:
        self.stand_in.refusals(self.api).launches.append(self.stand_in.refused[0])
        return self.make_wanted(cloud, token)

    def revoke(self, cloud: Cloud, token: str) -> str:
        machine = self.waited(
            lambda: next((one for one in self.machines.running if self.is_of(cloud, one, token)), None),
            lambda one: one is not None,
            "its process",
        )
        assert machine is not None
        self.machines.take(machine, NOTICE_S)
        return self.machines.metadata_url(machine)

    def is_of(self, cloud: Cloud, machine: StandInMachine, token: str) -> bool:
        """Look for a machine that was rented with a token."""
        raise NotImplementedError


@pytest.mark.usefixtures("processes")
class TestEc2Cloud(OnStandIn):
    stand_in, kind = EC2, Ec2Cloud

    def is_of(self, cloud: Cloud, machine: StandInMachine, token: str) -> bool:  # noqa: ARG002
        return ("ebbtide:token", token) in {(tag["key"], tag["value"]) for tag in machine.instance.get_tags()}

    @contextmanager
    def silenced(self, cloud: Cloud) -> Iterator[None]:
        assert isinstance(cloud, Ec2Cloud)
        before = cloud._clients, cloud._launchers
        cloud._clients = cloud._launchers = {region: _Silent() for region in cloud._clients}
        yield
        cloud._clients, cloud._launchers = before


@pytest.mark.usefixtures("processes")
class TestGcpCloud(OnStandIn):
    stand_in, kind, market = GCP, GcpCloud, G

    def instance(self, cloud: Cloud, token: str) -> Instance:
        # One that is preempted between the two requests of a look is missing from it, and listed by the next.
        found = cloud.instances()
        if all(one.token != token for one in found):
            found = cloud.instances()
        (only,) = [one for one in found if one.token == token]
        return only

    def metadata(self, url: str) -> NoticeReader:
        return GoogleMetadata(url, notice_s=NOTICE_S)

    def is_of(self, cloud: Cloud, machine: StandInMachine, token: str) -> bool:  # noqa: ARG002
        return token_of(machine.instance) == token

    @contextmanager
    def silenced(self, cloud: Cloud) -> Iterator[None]:
        assert isinstance(cloud, GcpCloud)
        url, cloud._compute._url = cloud._compute._url, "http://127.0.0.1:9/compute/v1/projects/x"
        yield
        cloud._compute._url = url


@pytest.mark.usefixtures("processes")
class TestSkyPilotCloud(OnStandIn):
    stand_in, kind = replace(SKYPILOT, opened=skypilot_stand_in), SkyPilotCloud

    def is_of(self, cloud: Cloud, machine: StandInMachine, token: str) -> bool:
        assert isinstance(cloud, SkyPilotCloud)
        return machine.rented.id == cloud._names.name(token)

    @contextmanager
    def silenced(self, cloud: Cloud) -> Iterator[None]:  # noqa: ARG002
        self.api.refusals.is_silent = True
        yield
        self.api.refusals.is_silent = False
