"""The image of machines in each region: found by its name, copied once where it is missing, waited for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from ebbtide.clouds.ec2.cloud import Ec2Cloud
from ebbtide.clouds.ec2.images import SOURCE_TAG, with_images
from ebbtide.clouds.ec2.settings import Ec2Image, Ec2Region, Ec2Settings
from ebbtide.errors import InputError
from ebbtide.market.prices import PriceHistory

NAME, HOME, FAR, FARTHER = "training 1", "us-east-1", "eu-west-1", "ap-northeast-1"


class Region:
    """EC2 in a region, whose copies become available after some looks; notes what it is asked.

    Copies by the same token are the same, which moto does not know.
    """

    def __init__(self, name: str) -> None:
        self.client = boto3.client("ec2", region_name=name)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.copies: dict[str, str] = {}
        self.pending: dict[str, int] = {}
        self.state, self.looks = "available", 2

    def count(self, method: str) -> int:
        return sum(asked == method for asked, _ in self.asked)

    def describe_images(self, **given: Any) -> Any:
        self.asked.append(("describe_images", given))
        answer = self.client.describe_images(**given)
        for image in answer["Images"]:
            left = self.pending.get(image["ImageId"], 0)
            if left > 0:
                self.pending[image["ImageId"]] = left - 1
                image["State"] = "pending"
            elif image["ImageId"] in self.pending:
                image["State"] = self.state
        return answer

    def copy_image(self, **given: Any) -> Any:
        self.asked.append(("copy_image", given))
        token = given["ClientToken"]
        if token not in self.copies:
            self.copies[token] = self.client.copy_image(**given)["ImageId"]
            self.pending[self.copies[token]] = self.looks
        return {"ImageId": self.copies[token]}


class Regions(dict[str, Region]):
    def __missing__(self, name: str) -> Region:
        self[name] = Region(name)
        return self[name]

    def image(self, region: str, name: str = NAME) -> str:
        found = self[region].client.register_image(Name=name, RootDeviceName="/dev/sda1")
        return str(found["ImageId"])


@pytest.fixture
def regions(monkeypatch: pytest.MonkeyPatch) -> Iterator[Regions]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    with mock_aws():
        yield Regions()


def settings(*names: str, copy_from: str = "", **given: Any) -> Ec2Settings:
    image = Ec2Image(name=NAME, copy_from=copy_from)
    return Ec2Settings(regions={name: Ec2Region() for name in names} | given, store="s3://bucket/x", image=image)


def found(wanted: Ec2Settings, regions: Regions, waits: list[float] | None = None) -> dict[str, str]:
    done = with_images(wanted, regions.__getitem__, ([] if waits is None else waits).append)
    return {name: done.image_in(name) for name in done.regions}


@pytest.mark.long
def test_the_newest_image_of_exactly_that_name_is_found_in_each_region(regions: Regions) -> None:
    regions.image(HOME)
    regions.image(HOME, NAME + "0")
    ids = {HOME: regions.image(HOME), FAR: regions.image(FAR)}
    # moto's clock tells seconds.
    for image in _models(HOME):
        image.creation_date = datetime(2026, 1, 2 if image.id == ids[HOME] else 1, tzinfo=UTC)
    given = Ec2Region(image_id="ami-0123")
    assert found(settings(HOME, FAR, **{FARTHER: given}), regions) == {**ids, FARTHER: "ami-0123"}
    assert regions[FARTHER].asked == []
    assert {given["Owners"][0] for _, given in regions[HOME].asked} == {"self"}


def test_where_it_is_missing_it_is_copied_once_and_waited_for(
    regions: Regions, caplog: pytest.LogCaptureFixture
) -> None:
    source, waits = regions.image(HOME), []  # type: ignore[var-annotated]
    wanted = settings(HOME, FAR, FARTHER, copy_from=HOME)
    first = found(wanted, regions, waits)
    assert first[HOME] == source
    assert len({*first.values()}) == 3
    assert waits == [10.0, 10.0]
    (asked,) = [given for method, given in regions[FAR].asked if method == "copy_image"]
    assert (asked["SourceImageId"], asked["SourceRegion"], asked["Name"]) == (source, HOME, NAME)
    assert asked["TagSpecifications"][0]["Tags"] == [{"Key": SOURCE_TAG, "Value": f"{HOME}/{source}"}]
    told = [record.getMessage() for record in caplog.records if "costs until you deregister it" in record.msg]
    assert [words.split(" as ")[0] for words in told] == [
        f"image {NAME} is copied from {HOME} to {name}" for name in (FAR, FARTHER)
    ]
    # A second run finds what the first has copied.
    assert found(wanted, regions) == first
    assert regions[FAR].count("copy_image") == regions[FARTHER].count("copy_image") == 1


class Killed(Exception):
    pass


def test_a_run_that_was_killed_meanwhile_finds_its_copy_under_way(regions: Regions) -> None:
    regions.image(HOME)
    wanted = settings(HOME, FAR, copy_from=HOME)

    regions[FAR].looks = 4

    def killed(_: float) -> None:
        raise Killed

    with pytest.raises(Killed):
        with_images(wanted, regions.__getitem__, killed)
    waits: list[float] = []
    done = found(wanted, regions, waits)
    assert regions[FAR].count("copy_image") == 1
    assert done[FAR] == next(iter(regions[FAR].copies.values()))
    assert waits


def test_the_same_request_gives_the_same_copy_until_that_fails(regions: Regions) -> None:
    """Where EC2 does not list the first yet, its token finds it."""
    regions.image(HOME)
    wanted = settings(HOME, FAR, copy_from=HOME)
    far = regions[FAR]
    found(wanted, regions)
    (token,) = far.copies
    listed, far.describe_images = far.describe_images, _nothing_named(far)  # type: ignore[method-assign]
    found(wanted, regions)
    assert list(far.copies) == [token]
    far.describe_images, far.state = listed, "failed"  # type: ignore[method-assign]
    with pytest.raises(InputError, match=f"cannot be copied to {FAR}: ami-.* is failed.*give the region an"):
        found(wanted, regions)
    assert len(far.copies) == 2


def _nothing_named(region: Region) -> Any:
    listed = region.describe_images

    def describe(**given: Any) -> Any:
        return listed(**given) if given["Filters"][0]["Name"] == "image-id" else {"Images": []}

    return describe


def test_what_is_missing_is_said(regions: Regions) -> None:
    with pytest.raises(
        InputError, match=f"no available image 'training 1' of self in {FAR}; name the region from"
    ):
        found(settings(FAR), regions)
    with pytest.raises(
        InputError, match=f"of self in {HOME}, from where it is to be copied to {FAR}; name a region"
    ):
        found(settings(FAR, copy_from=HOME), regions)
    with pytest.raises(InputError, match=f"copied to {FAR}, {HOME}; name a region that has it"):
        found(settings(FAR, HOME, copy_from=HOME), regions)

    def refuses(**_: Any) -> Any:
        raise ClientError({"Error": {"Code": "UnauthorizedOperation", "Message": "no"}}, "CopyImage")

    regions.image(HOME)
    regions[FAR].copy_image = refuses  # type: ignore[method-assign]
    with pytest.raises(InputError, match=f"in {FAR}: .*UnauthorizedOperation.*ec2:CopyImage and ec2:CreateTags"):
        found(settings(FAR, copy_from=HOME), regions)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            "regions: {us-east-1: {}}",
            "us-east-1 has no image: write `image_id: ami-.*or once for all regions `image:",
        ),
        ("regions: {us-east-1: {image_id: ami-0}}\nimage: {name: abc}", "all have one: leave one of them out"),
        ("regions: {us-east-1: {}}\nimage: {name: 'abc*'}", "field image.name"),
        ("regions: {us-east-1: {}}\nimage: {name: abc, copy_from: Virginia}", "field image.copy_from"),
        ("regions: {us-east-1: {}}\nimage: {name: abc, owners: []}", "field image.owners"),
    ],
)
def test_settings_say_which_image(tmp_path: Path, lines: str, problem: str) -> None:
    path = tmp_path / "ec2.yaml"
    path.write_text(f"store: s3://bucket/x\n{lines}\n")
    with pytest.raises(InputError, match=problem):
        Ec2Settings.read(path)


def test_an_image_that_was_not_looked_up_is_not_rented_with(regions: Regions) -> None:
    cloud = Ec2Cloud("run", settings(HOME), _no_prices, client=lambda region, _: regions[region].client)
    with pytest.raises(InputError, match="the image in us-east-1 was not looked up"):
        cloud._settings.image_in(HOME)


def _no_prices() -> PriceHistory:
    raise AssertionError("no prices are asked for")


def _models(region: str) -> list[Any]:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.ec2.models import ec2_backends

    return list(ec2_backends[DEFAULT_ACCOUNT_ID][region].amis.values())
