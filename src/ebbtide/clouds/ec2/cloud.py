"""EC2 as a cloud: request, tag, describe and terminate spot and on-demand machines.

Credentials come from AWS's standard chain and are never written anywhere. A machine is requested with a client
token, so that a repeated request rents no second one; all machines are found again by their tags.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ebbtide.clouds.clock import CLOCK
from ebbtide.clouds.cloud import Instance, MachineRequest, before_request
from ebbtide.clouds.ec2.settings import Ec2Settings
from ebbtide.clouds.log_once import RepeatedWarnings
from ebbtide.clouds.parts import ListedParts, PartlySilentError, all_ended, first_found
from ebbtide.clouds.start_script import EC2, start_script
from ebbtide.errors import CloudError, InputError
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory

_LOGGER = logging.getLogger(__name__)

RUN_TAG, TOKEN_TAG = "ebbtide:run", "ebbtide:token"

# Error codes for lack of capacity, price or quota: the policy sees a failed launch, and may try another market.
_REFUSALS = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "SpotMaxPriceTooLow",
        "MaxSpotInstanceCountExceeded",
        "InstanceLimitExceeded",
        "VcpuLimitExceeded",
        "Unsupported",
    }
)

# EC2 remembers a client token for longer than its ended machine: the token can never rent another one.
_ENDED = frozenset({"IdempotentInstanceTerminated", "IdempotentParameterMismatch"})

# Codes for problems that only the user can solve.
_NEVER = frozenset({"UnauthorizedOperation", "OptInRequired", "MissingParameter", "PendingVerification"})

# Bounds one request, so that it does not delay a stop of the run; the controller retries failed requests.
_TRIES, _WITHIN_S, _CONNECT_S = 2, 10.0, 2.0

_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "AuthFailure"})

_MOST_TOKEN = 64

_STOPPED = ("stopping", "stopped")
_TAKEN = re.compile(r"Server\.Spot")
_WHEN = re.compile(r"\((\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}) (?:GMT|UTC)\)")


# The field that EC2's answer to each request has.
_FIELD_OF = {
    "describe_instances": "Reservations",
    "describe_images": "Images",
    "run_instances": "Instances",
    "terminate_instances": "TerminatingInstances",
}


class Ec2Cloud:
    """Rents the machines of one run.

    Args:
        run: Id of the run, with which machines are tagged.
        settings: Regions, images and other properties of machines.
        prices: Returns the newest known prices; called whenever they are needed.
        client: Makes an EC2 client from a region and a number of attempts; None: boto3's client.
    """

    def __init__(
        self,
        run: str,
        settings: Ec2Settings,
        prices: Callable[[], PriceHistory],
        *,
        client: Callable[[str, int], Any] | None = None,
    ) -> None:
        self._run, self._settings, self._prices = run, settings, prices
        self._make = client or client_of
        self._clients = {region: self._make(region, _TRIES) for region in settings.regions}
        # boto3 would retry a launch that fails for lack of capacity; the policy must see the failure at once.
        self._launchers = {region: self._make(region, 1) for region in settings.regions}
        self._failed: dict[str, Instance] = {}
        self._root_devices: dict[str, str] = {}
        self._listed = ListedParts(_LOGGER)
        self._warnings = RepeatedWarnings(_LOGGER)

    @property
    def now_s(self) -> float:
        return CLOCK.now_s()

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

    def launch(self, wanted: MachineRequest) -> None:
        """Request a machine. A refusal is remembered, and listed among the instances as failed."""
        # EC2 remembers client tokens for a day or two only.
        if wanted.token in self._failed:
            return
        region = wanted.market.region
        try:
            with before_request():
                if self._described(region, {f"tag:{TOKEN_TAG}": [wanted.token]}):
                    return
                request = self._request(wanted)
            self._ask(region, "run_instances", **request)
        except _Ec2Error as error:
            if error.code in _NEVER or error.code.startswith("Invalid"):
                raise InputError(f"EC2 in {region} will not rent as it is asked to: {error}") from None
            if error.code not in _REFUSALS | _ENDED:
                raise
            now_s = self.now_s
            self._failed[wanted.token] = Instance(
                wanted.token, LeaseState.FAILED, math.nan, math.nan, now_s, str(error)
            )

    def terminate(self, token: str) -> float | None:
        own = self._listed.part_of(token)
        # Ask the machine's own region first, so as not to wait for other regions that do not answer.
        ordered = sorted(self._clients, key=lambda region: region != own)
        return first_found(partial(self._terminated, region, token) for region in ordered)

    def _terminated(self, region: str, token: str) -> float | None:
        found = self._described(region, {f"tag:{TOKEN_TAG}": [token]})
        if not found:
            return None
        self._ask(region, "terminate_instances", InstanceIds=[one["InstanceId"] for one in found])
        return self.now_s

    def instances(self) -> Sequence[Instance]:
        """All machines; for a region that does not answer, those of its last answer."""
        looks = {region: partial(self._listed_in, region) for region in self._clients}
        try:
            return self._with_failed(self._listed.listed(looks, self.now_s))
        except PartlySilentError as error:
            raise PartlySilentError(str(error), self._with_failed(error.found)) from error

    def is_silent(self, market: Market) -> bool:
        """Return whether the region of a market did not answer the last listing."""
        return market.region in self._listed.silent

    def _listed_in(self, region: str) -> list[Instance]:
        described = self._described(region, {f"tag:{RUN_TAG}": [self._run]})
        self._end_stopped(region, described)
        return [_instance(one) for one in described]

    def _end_stopped(self, region: str, described: Sequence[Mapping[str, Any]]) -> None:
        """End machines that somebody stopped: Ebbtide never restarts them, and their volumes still cost."""
        stopped = {one["InstanceId"]: _token_of(one) for one in described if one["State"]["Name"] in _STOPPED}
        for token, why in self._end_each(region, stopped).items():
            if why:
                self._warnings.warn(
                    token, f"machine {token} is stopped, not ended, and its volume is paid for: {why}"
                )

    def _with_failed(self, found: Sequence[Instance]) -> list[Instance]:
        known = {instance.token for instance in found}
        return [*found] + [instance for token, instance in self._failed.items() if token not in known]

    def end_all(self) -> dict[str, str]:
        """Request the end of every machine of the run, in all its regions.

        Returns:
            By token of each machine that still ran, why it cannot be ended; empty: its end was requested.

        Raises:
            CloudError: A region does not answer; the end was still requested in the other regions.
        """
        return all_ended(partial(self._end_in, region) for region in self._clients)

    def _end_in(self, region: str) -> dict[str, str]:
        described = self._described(region, {f"tag:{RUN_TAG}": [self._run]})
        running = [one for one in described if one["State"]["Name"] in ("pending", "running", *_STOPPED)]
        return self._end_each(region, {one["InstanceId"]: _token_of(one) for one in running})

    def _end_each(self, region: str, tokens: Mapping[str, str]) -> dict[str, str]:
        """End all in one request, or one by one if that fails: one refusal must not keep the others running."""
        if not tokens:
            return {}
        try:
            self._ask(region, "terminate_instances", InstanceIds=list(tokens))
        except CloudError:
            pass
        else:
            return dict.fromkeys(tokens.values(), "")
        found = {}
        for instance_id, token in tokens.items():
            try:
                self._ask(region, "terminate_instances", InstanceIds=[instance_id])
                found[token] = ""
            except CloudError as error:
                found[token] = f"cannot end {token} ({instance_id} in {region}): {error}"
        return found

    def _request(self, wanted: MachineRequest) -> dict[str, Any]:
        settings, market = self._settings, wanted.market
        region = settings.regions[market.region]
        tags = [
            {"Key": RUN_TAG, "Value": self._run},
            {"Key": TOKEN_TAG, "Value": wanted.token},
            {"Key": "Name", "Value": wanted.token},
            *({"Key": name, "Value": value} for name, value in settings.labels.items()),
        ]
        kinds = ("instance", "volume") if wanted.on_demand else ("instance", "volume", "spot-instances-request")
        request: dict[str, Any] = {
            "ClientToken": _client_token(wanted.token),
            "ImageId": settings.image_in(market.region),
            "InstanceType": market.instance_type,
            "MinCount": 1,
            "MaxCount": 1,
            "Placement": {"AvailabilityZone": market.zone},
            "UserData": start_script(settings, wanted.agent, EC2),
            "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in kinds],
            "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled"},
            # An agent that loses its controller shuts its machine down; that must terminate the instance.
            "InstanceInitiatedShutdownBehavior": "terminate",
        }
        if not wanted.on_demand:
            spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            if math.isfinite(wanted.max_price_usd_per_hour):
                spot["MaxPrice"] = f"{wanted.max_price_usd_per_hour:.6f}"
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
        if settings.instance_profile:
            request["IamInstanceProfile"] = {"Name": settings.instance_profile}
        if market.zone in region.subnets:
            request["SubnetId"] = region.subnets[market.zone]
        if region.security_groups:
            request["SecurityGroupIds"] = region.security_groups
        if settings.volume_gib:
            volume = {"VolumeSize": settings.volume_gib, "DeleteOnTermination": True}
            request["BlockDeviceMappings"] = [{"DeviceName": self._root_device(market.region), "Ebs": volume}]
        return request

    def _root_device(self, region: str) -> str:
        """Return the image's root device name: any other name would add a second, empty volume that costs."""
        if region not in self._root_devices:
            image = self._settings.image_in(region)
            found = self._ask(region, "describe_images", ImageIds=[image])["Images"]
            if not found or not found[0].get("RootDeviceName"):
                raise InputError(f"there is no image {image} with a root volume in {region}", field="image_id")
            self._root_devices[region] = found[0]["RootDeviceName"]
        return self._root_devices[region]

    def _described(self, region: str, filters: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """Descriptions of all instances that match the filters, from all pages."""
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
        from botocore.parsers import ResponseParserError

        clients = self._launchers if method == "run_instances" else self._clients
        try:
            answer = getattr(clients[region], method)(**given)
            field = _FIELD_OF.get(method)
            if field is not None and field not in answer:
                # Such as a proxy's page that is well-formed XML.
                raise CloudError(f"EC2 in {region} does not answer: what came instead has no {field}")
            CLOCK.follow(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", ""))
            return answer
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if not code or code.isdecimal():
                # It is the page of something between, such as a proxy: all errors of EC2 have a name.
                raise CloudError(f"EC2 in {region} does not answer: {error}") from error
            if code in _EXPIRED:
                # A new client reads credentials again, so it finds renewed ones.
                self._clients[region] = self._make(region, _TRIES)
                self._launchers[region] = self._make(region, 1)
                problem = f"the AWS credentials have expired; renew them, and the run continues: {error}"
                raise _Ec2Error(code, problem) from error
            raise _Ec2Error(code, str(error)) from error
        except (BotoCoreError, ResponseParserError) as error:
            # The second is an answer that is not EC2's, such as a proxy's page.
            told = " ".join(str(error).split())
            raise CloudError(f"EC2 in {region} does not answer: {told:.300}") from error


class _Ec2Error(CloudError):
    """EC2 refused a request."""

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(problem)
        self.code = code
        self.is_refusal = code in _NEVER


def client_of(region: str, tries: int) -> Any:
    """Make an EC2 client for a region, which tries each request at most `tries` times."""
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"mode": "standard", "total_max_attempts": tries},
        user_agent_extra="ebbtide",
        connect_timeout=_CONNECT_S,
        read_timeout=(_WITHIN_S - _CONNECT_S) / tries,
    )
    return boto3.Session().client("ec2", region_name=region, config=config)


def _client_token(token: str) -> str:
    """Return the token, hashed if it exceeds EC2's limit of 64 characters."""
    return token if len(token) <= _MOST_TOKEN else hashlib.sha256(token.encode()).hexdigest()


def _token_of(described: Mapping[str, Any]) -> str:
    """Return the token that a machine was requested with; its instance id if the tag was removed."""
    tags = {tag["Key"]: tag["Value"] for tag in described.get("Tags", ())}
    return str(tags.get(TOKEN_TAG, described["InstanceId"]))


def _instance(described: Mapping[str, Any]) -> Instance:
    started_s = described["LaunchTime"].timestamp()
    address = str(described.get("PrivateIpAddress") or "")
    base = Instance(_token_of(described), LeaseState.STARTING, started_s, math.nan, math.nan, address=address)
    match described["State"]["Name"]:
        case "pending":
            return base
        case "running":
            return replace(base, state=LeaseState.RUNNING, running_s=started_s)
    reason = described.get("StateReason", {})
    code, why = reason.get("Code", ""), described.get("StateTransitionReason", "")
    said = _WHEN.search(why)
    # Without a time, each listing would show a later end, and a higher bill.
    ended_s = math.nan
    if said is not None:
        ended_s = datetime.strptime(said.group(1), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    if code == "Server.InsufficientInstanceCapacity":
        failed_s = CLOCK.now_s() if math.isnan(ended_s) else ended_s
        return replace(base, state=LeaseState.FAILED, started_s=math.nan, ended_s=failed_s, why=code)
    state = LeaseState.REVOKED if _TAKEN.match(code) else LeaseState.RELEASED
    # Of NaN and the start, `max` returns what comes first.
    return replace(base, state=state, ended_s=max(ended_s, started_s), why=reason.get("Message", code))
