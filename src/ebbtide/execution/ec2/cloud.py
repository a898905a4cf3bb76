"""Spot machines of EC2: asked for with a token, tagged, described, ended.

Credentials come from the standard chain and are never written anywhere. An instance is asked for by a client
token, so that asking again rents no other; all are found again by tag.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from ebbtide.execution.cloud import CloudError, Instance, Wanted
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory

RUN_TAG, TOKEN_TAG = "ebbtide:run", "ebbtide:token"

# The market has none, or not at this price: the policy is told, and may ask elsewhere.
_REFUSALS = frozenset(
    {"InsufficientInstanceCapacity", "InsufficientHostCapacity", "SpotMaxPriceTooLow",
     "MaxSpotInstanceCountExceeded", "InstanceLimitExceeded", "VcpuLimitExceeded", "Unsupported"}
)  # fmt: skip

_TAKEN = re.compile(r"Server\.Spot")
_WHEN = re.compile(r"\((\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}) (?:GMT|UTC)\)")


@dataclass(frozen=True)
class Ec2Settings:
    """What machines are.

    Attributes:
        image_id: By region: an image with Python and Ebbtide, or one that the start script installs them on.
        start_script: Given an agent's configuration, what runs when the machine starts.
        instance_profile: A role that may read and write the store, and nothing else; empty: none.
        subnet_id: By zone; where none is named, the zone's default.
        security_group_ids: Of each machine; nothing need be reachable from outside.
        volume_gib: Of the root volume; 0: as the image has it.
    """

    image_id: Mapping[str, str]
    start_script: Callable[[Mapping[str, Any]], str]
    instance_profile: str = ""
    subnet_id: Mapping[str, str] = field(default_factory=dict)
    security_group_ids: tuple[str, ...] = ()
    volume_gib: int = 0


class Ec2Cloud:
    """Rents machines of one run.

    Args:
        run: Its id.
        regions: Where machines may be.
        settings: What they are.
        prices: The newest prices known; called whenever they are asked for.
        client: A client of a region; by default as boto3 makes one.
    """

    def __init__(
        self,
        run: str,
        regions: Sequence[str],
        settings: Ec2Settings,
        prices: Callable[[], PriceHistory],
        *,
        client: Callable[[str], Any] | None = None,
    ) -> None:
        make = client or _client
        self._run, self._settings, self._prices = run, settings, prices
        self._clients = {region: make(region) for region in regions}
        self._failed: dict[str, Instance] = {}

    @property
    def now_s(self) -> float:
        return time.time()

    @property
    def is_over(self) -> bool:
        return False

    @property
    def markets(self) -> Sequence[Market]:
        return [market for market in self._prices().markets if market.region in self._clients]

    def prices(self, market: Market) -> PriceSeries:
        return self._prices()[market]

    def time_of(self, epoch_s: float) -> float:
        return epoch_s

    def launch(self, wanted: Wanted) -> None:
        """Ask for it. A refusal is kept, and found among the instances."""
        # EC2 knows its client tokens for a day or two only.
        if wanted.token in self._failed or self._described(
            wanted.market.region, {f"tag:{TOKEN_TAG}": [wanted.token]}
        ):
            return
        try:
            self._ask(wanted.market.region, "run_instances", **self._request(wanted))
        except _Ec2Error as error:
            if error.code not in _REFUSALS:
                raise
            now_s = self.now_s
            self._failed[wanted.token] = Instance(
                wanted.token, LeaseState.FAILED, math.nan, math.nan, now_s, str(error)
            )

    def terminate(self, token: str) -> float | None:
        for region in self._clients:
            found = self._described(region, {f"tag:{TOKEN_TAG}": [token]})
            if found:
                self._ask(region, "terminate_instances", InstanceIds=[one["InstanceId"] for one in found])
                return self.now_s
        return None

    def instances(self) -> Sequence[Instance]:
        found = [
            _instance(one)
            for region in self._clients
            for one in self._described(region, {f"tag:{RUN_TAG}": [self._run]})
        ]
        known = {instance.token for instance in found}
        return found + [instance for token, instance in self._failed.items() if token not in known]

    def end_all(self) -> int:
        """End every machine of the run, wherever it is; returns how many there were."""
        ended = 0
        for region in self._clients:
            ids = [
                one["InstanceId"]
                for one in self._described(region, {f"tag:{RUN_TAG}": [self._run]})
                if one["State"]["Name"] in ("pending", "running", "stopping", "stopped")
            ]
            if ids:
                self._ask(region, "terminate_instances", InstanceIds=ids)
            ended += len(ids)
        return ended

    def _request(self, wanted: Wanted) -> dict[str, Any]:
        settings, market = self._settings, wanted.market
        tags = [{"Key": RUN_TAG, "Value": self._run}, {"Key": TOKEN_TAG, "Value": wanted.token},
                {"Key": "Name", "Value": wanted.token}]  # fmt: skip
        request: dict[str, Any] = {
            "ClientToken": wanted.token,
            "ImageId": settings.image_id[market.region],
            "InstanceType": market.instance_type,
            "MinCount": 1,
            "MaxCount": 1,
            "Placement": {"AvailabilityZone": market.zone},
            "UserData": settings.start_script(wanted.agent),
            "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
            "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled"},
            # An agent that lost its controller shuts its machine down: that is to end it.
            "InstanceInitiatedShutdownBehavior": "terminate",
        }
        if not wanted.on_demand:
            spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            if math.isfinite(wanted.max_price_usd_per_hour):
                spot["MaxPrice"] = f"{wanted.max_price_usd_per_hour:.6f}"
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
        if settings.instance_profile:
            request["IamInstanceProfile"] = {"Name": settings.instance_profile}
        if market.zone in settings.subnet_id:
            request["SubnetId"] = settings.subnet_id[market.zone]
        if settings.security_group_ids:
            request["SecurityGroupIds"] = list(settings.security_group_ids)
        if settings.volume_gib:
            volume = {"VolumeSize": settings.volume_gib, "DeleteOnTermination": True}
            request["BlockDeviceMappings"] = [{"DeviceName": "/dev/sda1", "Ebs": volume}]
        return request

    def _described(self, region: str, filters: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """All pages."""
        given: dict[str, Any] = {"Filters": [{"Name": name, "Values": values} for name, values in filters.items()]}
        found: list[dict[str, Any]] = []
        while True:
            page = self._ask(region, "describe_instances", **given)
            found += [one for reservation in page["Reservations"] for one in reservation["Instances"]]
            if not page.get("NextToken"):
                return found
            given["NextToken"] = page["NextToken"]

    def _ask(self, region: str, method: str, **given: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(self._clients[region], method)(**given)
        except ClientError as error:
            raise _Ec2Error(error.response["Error"]["Code"], str(error)) from error
        except BotoCoreError as error:
            raise CloudError(f"EC2 in {region} does not answer: {error}") from error


class _Ec2Error(CloudError):
    """EC2 said no."""

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(problem)
        self.code = code


def _client(region: str) -> Any:
    import boto3
    from botocore.config import Config

    # Throttled, it waits by itself for a while.
    return boto3.client("ec2", region_name=region, config=Config(retries={"mode": "adaptive", "max_attempts": 8}))


def _instance(described: Mapping[str, Any]) -> Instance:
    tags = {tag["Key"]: tag["Value"] for tag in described.get("Tags", ())}
    started_s = described["LaunchTime"].timestamp()
    base = Instance(tags[TOKEN_TAG], LeaseState.STARTING, started_s, math.nan, math.nan)
    match described["State"]["Name"]:
        case "pending":
            return base
        case "running":
            return replace(base, state=LeaseState.RUNNING, running_s=started_s)
    reason = described.get("StateReason", {})
    code, why = reason.get("Code", ""), described.get("StateTransitionReason", "")
    said = _WHEN.search(why)
    ended_s = time.time()
    if said is not None:
        ended_s = datetime.strptime(said.group(1), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    if code == "Server.InsufficientInstanceCapacity":
        return replace(base, state=LeaseState.FAILED, started_s=math.nan, ended_s=ended_s, why=code)
    state = LeaseState.REVOKED if _TAKEN.match(code) else LeaseState.RELEASED
    return replace(base, state=state, ended_s=max(ended_s, started_s), why=reason.get("Message", code))
