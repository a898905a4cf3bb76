"""EC2 as a cloud, on moto: asked once, tagged, refused, found, ended."""

from __future__ import annotations

import base64
import json
import math
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError
from botocore.parsers import ResponseParserError
from moto import mock_aws
from tests.runs.sweeps import flapping
from tests.waiting import eventually

import ebbtide as eb
from ebbtide.clouds.cloud import MachineRequest
from ebbtide.clouds.ec2.cloud import _TRIES, Ec2Cloud, _instance, client_of
from ebbtide.clouds.ec2.settings import Ec2Region, Ec2Settings
from ebbtide.errors import CloudError, InputError
from ebbtide.market.leases import LeaseState

MARKET = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")


class Faulty:
    """A client that fails to rent as it is told to, once each."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.faults: list[Exception] = []
        # Fails to do so at each call of a method.
        self.broken: dict[str, Exception] = {}
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(**given: Any) -> Any:
            self.asked.append(name)
            if self.faults and name == "run_instances":
                raise self.faults.pop(0)
            if name in self.broken:
                raise self.broken[name]
            return getattr(self._client, name)(**given)

        return call


def refusal(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "injected"}}, "RunInstances")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    # It has a thousand images, which take a second to load.
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    with mock_aws():
        yield Faulty(boto3.client("ec2", region_name="us-east-1"))


@pytest.fixture
def cloud(client: Faulty) -> Ec2Cloud:
    return made(client, "run-1")


def made(client: Faulty, run: str, **options: Any) -> Ec2Cloud:
    image = client._client.register_image(Name=f"image of {run}", RootDeviceName="/dev/sda1")["ImageId"]
    settings = Ec2Settings(
        regions={"us-east-1": Ec2Region(image_id=image)}, store="s3://bucket/ebbtide", **options
    )
    return Ec2Cloud(run, settings, flapping, client=lambda _region, _tries: client)


def wanted(token: str, **options: Any) -> MachineRequest:
    given = {
        "market": MARKET,
        "max_price_usd_per_hour": 0.21,
        "on_demand": False,
        "agent": {"machine": token, "bundle": "runs/r/agent-0.tar.gz"},
    }
    return MachineRequest(token, **{**given, **options})


def described(client: Faulty) -> list[dict[str, Any]]:
    pages = client._client.describe_instances()["Reservations"]
    return [instance for page in pages for instance in page["Instances"]]


def test_a_machine_is_asked_for_as_wanted(cloud: Ec2Cloud, client: Faulty) -> None:
    cloud.launch(wanted("run-1-m0000"))
    (instance,) = described(client)
    assert instance["InstanceType"] == "c3.xlarge"
    assert instance["Placement"]["AvailabilityZone"] == "us-east-1a"
    assert instance["InstanceLifecycle"] == "spot"
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert (tags["ebbtide:run"], tags["ebbtide:token"]) == ("run-1", "run-1-m0000")
    asked = client._client.describe_instance_attribute(InstanceId=instance["InstanceId"], Attribute="userData")
    script = base64.b64decode(asked["UserData"]["Value"]).decode()
    config = re.search(r"printf %s (\S+)", script)
    assert config is not None
    assert json.loads(base64.b64decode(config.group(1)))["machine"] == "run-1-m0000"
    (found,) = cloud.instances()
    assert (found.token, found.state) == ("run-1-m0000", LeaseState.RUNNING)
    assert not math.isnan(found.started_s)


def test_a_run_of_a_long_name_has_client_tokens_that_ec2_takes(
    cloud: Ec2Cloud, client: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, run = [], client._client.run_instances
    monkeypatch.setattr(
        client._client, "run_instances", lambda **given: sent.append(given["ClientToken"]) or run(**given)
    )
    long = f"{'a' * 40}-20261127-020000-123-66687aad-m0000"
    for token in ("run-1-m0000", long, f"{long}0"):
        cloud.launch(wanted(token))
    assert sent[0] == "run-1-m0000"
    assert all(len(token) <= 64 for token in sent)
    assert len(set(sent)) == 3
    assert [one.token for one in cloud.instances()] == ["run-1-m0000", long, f"{long}0"]


def test_on_demand_is_no_spot_and_any_price_names_none(cloud: Ec2Cloud, client: Faulty) -> None:
    cloud.launch(wanted("a", on_demand=True))
    cloud.launch(wanted("b", max_price_usd_per_hour=math.inf))
    kinds = [instance.get("InstanceLifecycle") for instance in described(client)]
    assert kinds == [None, "spot"]


@pytest.mark.parametrize(
    "code", ["InsufficientInstanceCapacity", "SpotMaxPriceTooLow", "MaxSpotInstanceCountExceeded"]
)
def test_a_refusal_is_told_as_a_launch_that_failed(cloud: Ec2Cloud, client: Faulty, code: str) -> None:
    client.faults.append(refusal(code))
    cloud.launch(wanted("a"))
    (found,) = cloud.instances()
    assert (found.token, found.state) == ("a", LeaseState.FAILED)
    assert code in found.why
    # Asked again, it stays refused: the policy asks elsewhere, with another token.
    cloud.launch(wanted("a"))
    assert described(client) == []


# As botocore raises it for a page that is not EC2's, such as a proxy's.
STRANGE = ResponseParserError("Unable to parse response (syntax error: line 1, column 0), invalid XML received")


@pytest.mark.parametrize(
    "fault", [refusal("RequestLimitExceeded"), refusal("ExpiredToken"), NoCredentialsError(), STRANGE]
)
def test_what_may_pass_is_tried_again(cloud: Ec2Cloud, client: Faulty, fault: Exception) -> None:
    client.faults.append(fault)
    with pytest.raises(CloudError):
        cloud.launch(wanted("a"))
    assert cloud.instances() == []
    cloud.launch(wanted("a"))
    assert len(cloud.instances()) == 1


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "InvalidAMIID.NotFound"])
def test_what_only_the_user_can_mend_is_said_to_the_user(cloud: Ec2Cloud, client: Faulty, code: str) -> None:
    client.faults.append(refusal(code))
    with pytest.raises(InputError, match=f"us-east-1 will not rent as it is asked to.*{code}"):
        cloud.launch(wanted("a"))


def test_before_a_machine_is_requested_errors_say_that_there_is_none(cloud: Ec2Cloud, client: Faulty) -> None:
    client.broken["describe_instances"] = refusal("UnauthorizedOperation")
    with pytest.raises(InputError, match="us-east-1 will not rent as it is asked to.*UnauthorizedOperation"):
        cloud.launch(wanted("a"))
    client.broken["describe_instances"] = STRANGE
    with pytest.raises(CloudError, match="does not answer: Unable to parse response") as unsent:
        cloud.launch(wanted("a"))
    client.broken.clear()
    client.faults.append(STRANGE)
    with pytest.raises(CloudError, match="does not answer") as sent:
        cloud.launch(wanted("a"))
    assert (unsent.value.is_unsent, sent.value.is_unsent) == (True, False)


def test_all_of_a_run_are_found_on_all_pages_and_ended_and_no_others(cloud: Ec2Cloud, client: Faulty) -> None:
    other = made(client, "run-2")
    other.launch(wanted("other"))
    for number in range(7):
        cloud.launch(wanted(f"m{number}"))
    whole = client._client.describe_instances

    def paged(**given: Any) -> Any:
        """Two reservations a page."""
        found = whole(Filters=given["Filters"])["Reservations"]
        first = int(given.get("NextToken", 0))
        more = {"NextToken": str(first + 2)} if first + 2 < len(found) else {}
        return {"Reservations": found[first : first + 2], **more}

    client._client.describe_instances = paged
    assert {instance.token for instance in cloud.instances()} == {f"m{number}" for number in range(7)}
    assert cloud.end_all() == {f"m{number}": "" for number in range(7)}
    assert {instance.state for instance in cloud.instances()} == {LeaseState.RELEASED}
    assert [instance.state for instance in other.instances()] == [LeaseState.RUNNING]
    assert cloud.end_all() == {}


def test_markets_are_those_of_its_regions(cloud: Ec2Cloud) -> None:
    assert {market.region for market in cloud.markets} == {"us-east-1"}
    assert cloud.prices(MARKET).at(flapping().start_s) == 0.03


def test_a_volume_of_ones_own_size_is_the_image_s_root_and_the_only_one(client: Faulty) -> None:
    images = client._client.describe_images
    asked = []

    def described_images(**given: Any) -> Any:
        asked.append(given["ImageIds"])
        return {"Images": [{**image, "RootDeviceName": "/dev/xvda"} for image in images(**given)["Images"]]}

    client._client.describe_images = described_images
    cloud = made(client, "run-1", volume_gib=50)
    sent = []
    rent = client._client.run_instances
    client._client.run_instances = lambda **given: sent.append(given["BlockDeviceMappings"]) or rent(**given)
    cloud.launch(wanted("a"))
    cloud.launch(wanted("b"))
    mapping = [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 50, "DeleteOnTermination": True}}]
    assert sent == [mapping, mapping]
    assert len(asked) == 1


def test_an_image_that_is_not_there_is_named(client: Faulty) -> None:
    cloud = made(client, "run-1", volume_gib=50)
    client._client.describe_images = lambda **_: {"Images": []}
    with pytest.raises(InputError, match=r"no image ami-\w+ with a root volume in us-east-1"):
        cloud.launch(wanted("a"))


@pytest.mark.parametrize("state", ["stopping", "stopped"])
def test_a_machine_that_was_stopped_is_over_and_is_ended(cloud: Ec2Cloud, client: Faulty, state: str) -> None:
    """It never ends by itself, and its volume is paid for."""
    for token in ("run-1-m0000", "run-1-m0001"):
        cloud.launch(wanted(token, on_demand=True))
    ids = {cloud_token(one): one["InstanceId"] for one in described(client)}
    client._client.stop_instances(InstanceIds=[ids["run-1-m0000"]])
    whole = client._client.describe_instances
    if state == "stopping":

        def stopping(**given: Any) -> Any:
            pages = whole(**given)
            for page in pages["Reservations"]:
                for one in page["Instances"]:
                    one["State"]["Name"] = one["State"]["Name"].replace("stopped", "stopping")
            return pages

        client._client.describe_instances = stopping
    states = {instance.token: instance.state for instance in cloud.instances()}
    assert states == {"run-1-m0000": LeaseState.RELEASED, "run-1-m0001": LeaseState.RUNNING}
    found = {cloud_token(one): one["State"]["Name"] for one in described(client)}
    assert found == {"run-1-m0000": "terminated", "run-1-m0001": "running"}
    assert client.asked.count("terminate_instances") == 1
    cloud.instances()
    assert client.asked.count("terminate_instances") == 1


def test_a_stopped_machine_that_may_not_be_ended_is_told_of_once_a_minute(
    cloud: Ec2Cloud, client: Faulty, caplog: pytest.LogCaptureFixture
) -> None:
    cloud.launch(wanted("run-1-m0000", on_demand=True))
    client._client.stop_instances(InstanceIds=[one["InstanceId"] for one in described(client)])

    def refuse(**_: Any) -> None:
        raise refusal("UnauthorizedOperation")

    client._client.terminate_instances = refuse
    for _ in range(3):
        assert [instance.state for instance in cloud.instances()] == [LeaseState.RELEASED]
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "run-1-m0000 is stopped, not ended" in warnings[0]
    assert "UnauthorizedOperation" in warnings[0]


def cloud_token(instance: dict[str, Any]) -> str:
    return next(tag["Value"] for tag in instance["Tags"] if tag["Key"] == "ebbtide:token")


@pytest.mark.parametrize("tries", [1, 2])
def test_one_request_to_a_silent_service_takes_ten_seconds_at_most(
    tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a request to stop the run would wait for it; here it is given two seconds."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", f"http://127.0.0.1:{silent.getsockname()[1]}")
        real = client_of("us-east-1", tries).meta.config
        assert real.connect_timeout + tries * real.read_timeout <= 10.0
        monkeypatch.setattr("ebbtide.clouds.ec2.cloud._WITHIN_S", 2.0)
        monkeypatch.setattr("ebbtide.clouds.ec2.cloud._CONNECT_S", 1.0)
        ec2 = client_of("us-east-1", tries)
        assert tries in (1, _TRIES)
        asked: list[socket.socket] = []

        def listen() -> None:
            with suppress(OSError):
                while True:
                    asked.append(silent.accept()[0])

        listening = threading.Thread(target=listen, daemon=True)
        listening.start()
        with pytest.raises(ReadTimeoutError):
            ec2.describe_instances()
        # It is asked so many times, and each time waited for so long.
        eventually(lambda: len(asked) >= tries)
        assert len(asked) == tries
        config = ec2.meta.config
        assert config.connect_timeout + tries * config.read_timeout <= 10.0
        silent.shutdown(socket.SHUT_RDWR)
    listening.join()
    for connection in asked:
        connection.close()


class Silent:
    """A client of a region that answers only while it is told to."""

    def __init__(self, client: Any) -> None:
        self._client, self.answers = client, True

    def __getattr__(self, name: str) -> Any:
        if not self.answers:
            raise EndpointConnectionError(endpoint_url="https://ec2.us-west-2.amazonaws.com")
        return getattr(self._client, name)


@pytest.mark.long
def test_a_region_that_does_not_answer_holds_nothing_up_in_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        clients = {name: Silent(boto3.client("ec2", region_name=name)) for name in ("us-west-2", "us-east-1")}
        settings = Ec2Settings(
            store="s3://bucket/prefix", regions={name: Ec2Region(image_id="ami-12c6146b") for name in clients}
        )
        cloud = Ec2Cloud("run-1", settings, flapping, client=lambda region, _: clients[region])
        west = eb.Market("aws", "us-west-2", "us-west-2a", "c3.xlarge")
        cloud.launch(wanted("run-1-m0000"))
        cloud.launch(replace(wanted("run-1-m0001"), market=west))
        before = {instance.token: instance.state for instance in cloud.instances()}
        assert set(before) == {"run-1-m0000", "run-1-m0001"}
        clients["us-west-2"].answers = False
        silent_s = time.time()
        assert {instance.token: instance.state for instance in cloud.instances()} == before
        # It is known which of them were really listed now.
        seen = {instance.token: instance.listed_s for instance in cloud.instances()}
        assert seen["run-1-m0000"] >= silent_s > seen["run-1-m0001"] > silent_s - 60.0

        def warned() -> int:
            return sum("us-west-2 does not answer" in record.getMessage() for record in caplog.records)

        assert warned() == 1
        monkeypatch.setattr("ebbtide.clouds.log_once._AGAIN_S", 0.0)
        cloud.instances()
        assert warned() == 2
        monkeypatch.setattr("ebbtide.clouds.log_once._AGAIN_S", 60.0)
        assert cloud.terminate("run-1-m0000") is not None
        states = {instance.token: instance.state for instance in cloud.instances()}
        assert states["run-1-m0000"] is LeaseState.RELEASED
        assert states["run-1-m0001"] == before["run-1-m0001"]
        # What is asked of the silent region is not said to be done.
        for token in ("run-1-m0001", "run-1-m0009"):
            with pytest.raises(CloudError, match="us-west-2 does not answer"):
                cloud.terminate(token)
        clients["us-east-1"].answers = False
        with pytest.raises(CloudError, match="does not answer"):
            cloud.instances()
        # One that never answered may have machines of the run that nobody knows of.
        clients["us-east-1"].answers = True
        with pytest.raises(CloudError, match="us-west-2 does not answer"):
            Ec2Cloud("run-1", settings, flapping, client=lambda region, _: clients[region]).instances()


def test_a_token_whose_machine_has_ended_long_ago_is_a_launch_that_failed(cloud: Ec2Cloud, client: Faulty) -> None:
    client.faults = [refusal("IdempotentInstanceTerminated")]
    cloud.launch(wanted("run-1-m0000"))
    (instance,) = cloud.instances()
    assert instance.state is LeaseState.FAILED


@pytest.mark.parametrize(
    ("why", "ended_s"),
    [
        ("User initiated (2026-11-30 12:00:00 GMT)", 1_796_040_000.0),
        ("User initiated", math.nan),
        ("", math.nan),
    ],
)
def test_an_end_without_a_time_has_none(why: str, ended_s: float) -> None:
    """Before, it was the time of each listing."""
    found = _instance(
        {
            "InstanceId": "i-0",
            "LaunchTime": datetime(2026, 11, 30, 11, tzinfo=UTC),
            "State": {"Name": "terminated"},
            "StateReason": {"Code": "Server.SpotInstanceTermination"},
            "StateTransitionReason": why,
        }
    )
    assert found.state is LeaseState.REVOKED
    assert found.ended_s == pytest.approx(ended_s, nan_ok=True)
