"""EC2 as a cloud, on moto: asked once, tagged, refused, found, ended."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, NoCredentialsError
from moto import mock_aws
from tests.live.sweeps import flapping

import ebbtide as eb
from ebbtide.errors import CloudError, InputError
from ebbtide.live.clouds.cloud import Wanted
from ebbtide.live.clouds.ec2.cloud import Ec2Cloud
from ebbtide.live.clouds.ec2.settings import Ec2Region, Ec2Settings
from ebbtide.market.leases import LeaseState

MARKET = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")


class Faulty:
    """A client that fails to rent as it is told to, once each."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.faults: list[Exception] = []
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(**given: Any) -> Any:
            self.asked.append(name)
            if self.faults and name == "run_instances":
                raise self.faults.pop(0)
            return getattr(self._client, name)(**given)

        return call


def refusal(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "injected"}}, "RunInstances")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield Faulty(boto3.client("ec2", region_name="us-east-1"))


@pytest.fixture
def cloud(client: Faulty) -> Ec2Cloud:
    return made(client, "run-1")


def made(client: Faulty, run: str, **options: Any) -> Ec2Cloud:
    image = boto3.client("ec2", region_name="us-east-1").describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    settings = Ec2Settings(
        regions={"us-east-1": Ec2Region(image_id=image)}, store="s3://bucket/ebbtide", **options
    )
    return Ec2Cloud(run, settings, flapping, client=lambda _region, _tries: client)


def wanted(token: str, **options: Any) -> Wanted:
    given = {
        "market": MARKET,
        "max_price_usd_per_hour": 0.21,
        "on_demand": False,
        "agent": {"machine": token, "bundle": "runs/r/agent-0.tar.gz"},
    }
    return Wanted(token, **{**given, **options})


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


@pytest.mark.parametrize("fault", [refusal("RequestLimitExceeded"), refusal("ExpiredToken"), NoCredentialsError()])
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
