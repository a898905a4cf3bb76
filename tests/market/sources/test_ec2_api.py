"""The live price history: against a real HTTP API (moto's server) and against scripted trouble."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.market.sources import ec2_api
from ebbtide.market.sources.ec2_api import fetch_prices


@pytest.mark.usefixtures("aws_credentials")
def test_prices_of_several_regions_come_from_a_real_api(aws_server: str) -> None:
    types = ["c3.xlarge", "m3.medium"]
    frame = fetch_prices(
        ["us-east-1", "eu-west-1"], instance_types=types, products=["Linux/UNIX"], endpoint_url=aws_server
    )
    assert set(frame["region"]) == {"us-east-1", "eu-west-1"}
    assert set(frame["instance_type"]) == set(types)
    assert (frame["price_usd_per_hour"] > 0).all()


@pytest.mark.usefixtures("aws_credentials")
def test_ingesting_from_a_real_api_makes_a_price_file(aws_server: str, tmp_path: Path) -> None:
    into = tmp_path / "prices.parquet"
    done = eb.ingest_ec2(["us-east-1"], into, instance_types=["c3.xlarge"], endpoint_url=aws_server)
    assert done.rows_added == eb.PriceHistory.read(into).change_points > 0


NOW = datetime(2021, 5, 1, tzinfo=UTC)


def entry(hours: float, price: str = "0.1", name: str = "c3.xlarge") -> dict[str, Any]:
    return {
        "AvailabilityZone": "us-east-1a",
        "InstanceType": name,
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": price,
        "Timestamp": NOW + timedelta(hours=hours),
    }


class ScriptedClient:
    """Answers like EC2, newest first, in pages of two; its first answers may be errors."""

    def __init__(self, entries: list[dict[str, Any]], errors: list[Exception]) -> None:
        self.entries = sorted(entries, key=lambda row: row["Timestamp"], reverse=True)
        self.errors = errors
        self.requests: list[dict[str, Any]] = []

    def describe_spot_price_history(self, **request: Any) -> dict[str, Any]:
        self.requests.append(request)
        if self.errors:
            raise self.errors.pop(0)
        # Like EC2, also the price in force at StartTime, under its own older time.
        older = [row for row in self.entries if row["Timestamp"] <= request["StartTime"]][:1]
        rows = [row for row in self.entries if row["Timestamp"] > request["StartTime"]] + older
        at = int(request.get("NextToken") or 0)
        token = str(at + 2) if at + 2 < len(rows) else ""
        return {"SpotPriceHistory": rows[at : at + 2], "NextToken": token}


def refused(code: str, status: int = 400) -> ClientError:
    answer = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "DescribeSpotPriceHistory")  # type: ignore[arg-type]


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> ScriptedClient:
    client = ScriptedClient([entry(n, f"0.{n + 1}") for n in range(5)], [])
    monkeypatch.setattr(ec2_api.boto3, "Session", lambda: SimpleNamespace(client=lambda *_args, **_more: client))
    return client


def test_all_pages_are_fetched(ec2: ScriptedClient) -> None:
    frame = fetch_prices(["us-east-1"], until=NOW + timedelta(days=1))
    assert len(frame) == 5
    assert len(ec2.requests) == 3


def test_throttling_and_the_services_own_trouble_are_waited_out(ec2: ScriptedClient) -> None:
    ec2.errors = [refused("RequestLimitExceeded"), refused("Unavailable", 503), refused("Throttling")]
    frame = fetch_prices(["us-east-1"], until=NOW + timedelta(days=1), first_wait_s=0.001)
    assert len(frame) == 5
    assert len(ec2.requests) == 6


def test_throttling_without_end_is_given_up(ec2: ScriptedClient) -> None:
    ec2.errors = [refused("Throttling") for _ in range(99)]
    with pytest.raises(InputError, match="EC2 price history of us-east-1: .*Throttling"):
        fetch_prices(["us-east-1"], until=NOW, first_wait_s=0.001, attempts=4)
    assert len(ec2.requests) == 4


def test_our_own_mistakes_are_not_tried_again(ec2: ScriptedClient) -> None:
    ec2.errors = [refused("UnauthorizedOperation")]
    with pytest.raises(InputError, match="UnauthorizedOperation"):
        fetch_prices(["us-east-1"], until=NOW)
    assert len(ec2.requests) == 1
    with pytest.raises(InputError, match="no region"):
        fetch_prices([])


def test_a_second_ingest_fetches_and_adds_only_what_is_new(ec2: ScriptedClient, tmp_path: Path) -> None:
    into = tmp_path / "prices.parquet"
    start = datetime.now(UTC) - timedelta(days=1)
    for row in ec2.entries:
        row["Timestamp"] = start + (row["Timestamp"] - NOW)
    first = eb.ingest_ec2(["us-east-1"], into)
    assert first.rows_added == 5
    newest = max(row["Timestamp"] for row in ec2.entries)
    ec2.entries.insert(0, entry(0, "0.9") | {"Timestamp": newest + timedelta(hours=1)})
    ec2.requests.clear()
    second = eb.ingest_ec2(["us-east-1"], into)
    # EC2 publishes some prices late: a day of what is known is fetched again.
    assert ec2.requests[0]["StartTime"] == pytest.approx(newest - timedelta(days=1), abs=timedelta(milliseconds=1))
    assert (second.rows_before, second.rows_added) == (5, 1)
    before = into.read_bytes()
    third = eb.ingest_ec2(["us-east-1"], into)
    assert third.rows_added == 0
    assert into.read_bytes() == before


def test_a_type_asked_for_the_first_time_is_fetched_from_its_beginning(
    ec2: ScriptedClient, tmp_path: Path
) -> None:
    into = tmp_path / "prices.parquet"
    eb.ingest_ec2(["us-east-1"], into, instance_types=["c3.xlarge"])
    ec2.requests.clear()
    eb.ingest_ec2(["us-east-1"], into, instance_types=["c3.xlarge", "m3.medium"])
    assert (datetime.now(UTC) - ec2.requests[0]["StartTime"]).days == ec2_api.HISTORY_LIMIT.days


def test_types_that_the_catalogue_does_not_know_are_left_out_and_named(
    ec2: ScriptedClient, tmp_path: Path
) -> None:
    for row in ec2.entries:
        row["Timestamp"] = datetime.now(UTC) - timedelta(hours=1) + (row["Timestamp"] - NOW) / 60
    ec2.entries.append(ec2.entries[0] | {"InstanceType": "x99.huge"})
    done = eb.ingest_ec2(["us-east-1"], tmp_path / "prices.parquet")
    assert done.types_left_out == ("x99.huge",)
    assert "x99.huge" in str(done)
    assert {market.instance_type for market in done.history} == {"c3.xlarge"}
