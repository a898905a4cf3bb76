"""Where the bucket of a run is: looked up once, believed of its user where its owner does not tell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws
from tests.runs.sweeps import sweep

from ebbtide.clouds.bucket import bucket_region, with_bucket
from ebbtide.clouds.ec2.settings import Ec2Region, Ec2Settings
from ebbtide.errors import InputError
from ebbtide.jobs.job_list import JobList, ListedJob
from ebbtide.jobs.sweep import Sweep
from ebbtide.jobs.transfers import Bucket

EUROPE, EAST = (Bucket(cloud="aws", region=region) for region in ("eu-west-1", "us-east-1"))


class Refusing:
    """S3 that refuses to tell of a bucket, with or without its region."""

    def __init__(self, status: int, region: str | None = None) -> None:
        self._headers = {} if region is None else {"x-amz-bucket-region": region}
        self._status = status

    def head_bucket(self, **_: Any) -> Any:
        answer = {"HTTPStatusCode": self._status, "HTTPHeaders": self._headers}
        raise ClientError(
            {"Error": {"Code": str(self._status), "Message": "Forbidden"}, "ResponseMetadata": answer},  # type: ignore[typeddict-item]
            "HeadBucket",
        )


class Silent:
    def head_bucket(self, **_: Any) -> Any:
        raise EndpointConnectionError(endpoint_url="https://s3")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="east")
        client.create_bucket(Bucket="europe", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        yield client


def settings(store: str = "s3://europe/prefix", endpoint: str = "") -> Ec2Settings:
    regions = {"us-east-1": Ec2Region(image_id="ami-0")}
    return Ec2Settings(regions=regions, store=store, store_endpoint_url=endpoint)


def test_the_region_is_that_of_the_bucket(client: Any) -> None:
    assert bucket_region("s3://europe/some/prefix", client) == "eu-west-1"
    assert bucket_region("s3://east") == "us-east-1"
    with pytest.raises(InputError, match="there is no bucket nowhere; create it"):
        bucket_region("s3://nowhere/x", client)


def test_it_is_told_even_to_those_who_may_not_see_the_bucket() -> None:
    assert bucket_region("s3://bucket", Refusing(403, "eu-west-1")) == "eu-west-1"
    assert bucket_region("s3://bucket", Refusing(301, "eu-west-1")) == "eu-west-1"


@pytest.mark.parametrize("other", [Refusing(403), Silent()])
def test_where_it_is_not_told_its_user_says_it(other: Any, tmp_path: Path) -> None:
    plain = sweep(tmp_path)
    with pytest.raises(
        InputError, match="cannot be looked up: .*s3:ListBucket.*`bucket: {cloud: aws, region: us-"
    ):
        with_bucket(plain, settings(), other)
    said = plain.model_copy(update={"bucket": EAST})
    assert with_bucket(said, settings(), other).bucket == EAST


def test_a_sweep_has_the_place_of_its_store(client: Any, tmp_path: Path) -> None:
    plain = sweep(tmp_path)
    found = with_bucket(plain, settings(), client)
    assert found.bucket == EUROPE
    assert {job.bucket for job in found.live_jobs()} == {EUROPE}
    assert with_bucket(found, settings(), client) == found
    with pytest.raises(
        InputError, match="field bucket: says aws us-east-1, and s3://europe/prefix is in aws eu-west-1"
    ):
        with_bucket(plain.model_copy(update={"bucket": EAST}), settings(), client)


def test_without_checkpoints_and_at_another_address_nothing_is_looked_up(tmp_path: Path) -> None:
    plain = sweep(tmp_path)
    elsewhere = settings(endpoint="https://minio.example.org:9000")
    assert with_bucket(plain, elsewhere, Silent()).bucket is None
    said = plain.model_copy(update={"bucket": EUROPE})
    assert with_bucket(said, elsewhere, Silent()).bucket == EUROPE
    without = sweep(tmp_path, checkpoint=None)
    assert with_bucket(without, settings(), Silent()).bucket is None


def test_each_job_of_a_list_has_it(client: Any) -> None:
    def listed(*buckets: Bucket) -> JobList:
        works = [Sweep(name=f"j{number}", command="x", bucket=bucket) for number, bucket in enumerate(buckets)]  # type: ignore[call-arg]
        return JobList(name="all", listed=tuple(ListedJob(work=work) for work in works))

    plain = JobList(
        name="all",
        listed=(
            ListedJob(work=Sweep(name="one", command="x")),  # type: ignore[call-arg]
            ListedJob(work=Sweep(name="two", command="x", checkpoint=None), needs=("one",)),  # type: ignore[call-arg]
        ),
    )
    assert len(plain.job_names) == 2
    found = with_bucket(plain, settings(), client)
    assert [part.bucket for part in found.parts] == [EUROPE, None]
    assert [part.bucket for part, _ in (found.part_of(0), found.part_of(1))] == [EUROPE, None]
    assert found.listed[1].needs == ("one",)
    with pytest.raises(InputError, match="field jobs.1.bucket: says aws us-east-1"):
        with_bucket(listed(EUROPE, EAST), settings(), client)


class Google:
    """Google's storage that tells a bucket's location, or refuses to."""

    def __init__(self, place: str = "", status: int = 200) -> None:
        self._place, self._status = place, status

    def get_bucket_location(self, **_: Any) -> Any:
        if self._status != 200:
            answer = {"HTTPStatusCode": self._status}
            raise ClientError({"Error": {"Code": "X"}, "ResponseMetadata": answer}, "GetBucketLocation")  # type: ignore[typeddict-item]
        return {"LocationConstraint": self._place}


def test_the_region_of_google_s_buckets_is_looked_up() -> None:
    assert bucket_region("gs://b/x", Google("US-CENTRAL1")) == "us-central1"
    # Of several regions, and where it is not told: the job's file says it.
    for client in (Google("EU"), Google(status=403)):
        assert bucket_region("gs://b/x", client, is_needed=False) is None
        with pytest.raises(
            InputError, match="storage.buckets.get allowed, or write into the job's file `bucket: "
        ):
            bucket_region("gs://b/x", client)
    with pytest.raises(InputError, match="there is no bucket b"):
        bucket_region("gs://b/x", Google(status=404))
