"""Prices of EC2 through the pipeline: pages, throttling, late prices and a new type, from a server on this machine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses.spot_instances import SpotInstances
from tests.pipelines.project import Project

from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.long]

G6, P3 = (Market("aws", "us-east-1", "us-east-1a", name) for name in ("g6.2xlarge", "p3.2xlarge"))
NOW = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
PAGE = 2


class Server:
    """EC2's prices as it answers them: the newest first, in pages, and throttled at every third request.

    Attributes:
        rows: Market, hours before now and price of each change.
        requests: Parameters of each request.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[Market, float, float]] = []
        self.requests: list[dict[str, Any]] = []

    def answer(self, response: Any) -> ActionResult:
        asked = {name: response._get_param(name) for name in ("NextToken", "StartTime")}
        types = response._get_param("InstanceTypes", [])
        self.requests.append(asked | {"InstanceTypes": types})
        if len(self.requests) % 3 == 0:
            raise EC2ClientError("RequestLimitExceeded", "Request limit exceeded.")
        start = (asked["StartTime"] or NOW - timedelta(days=90)).replace(tzinfo=UTC)
        found = [
            {
                "AvailabilityZone": market.zone,
                "InstanceType": market.instance_type,
                "ProductDescription": market.product,
                "SpotPrice": f"{usd:.6f}",
                "Timestamp": NOW - timedelta(hours=hours),
            }
            for market, hours, usd in sorted(self.rows, key=lambda row: row[1])
            if NOW - timedelta(hours=hours) >= start and (not types or market.instance_type in types)
        ]
        first = int(asked["NextToken"] or 0)
        more = str(first + PAGE) if first + PAGE < len(found) else ""
        return ActionResult({"SpotPriceHistory": found[first : first + PAGE], "NextToken": more})


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()

    def answer(self: SpotInstances) -> ActionResult:
        return server.answer(self)

    monkeypatch.setattr(SpotInstances, "describe_spot_price_history", answer)
    return server


def prices(project: Project) -> PriceHistory:
    return PriceHistory.read(project.folder / "data" / "prices.parquet")


def test_prices_come_through_the_pipeline_and_late_ones_by_the_next_night(
    ec2: Server, aws_server: str, prefect_server: str, tmp_path: Path
) -> None:
    project = Project(tmp_path / "project", prefect_server)
    account = {
        "AWS_ENDPOINT_URL": aws_server,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    project.set(
        {
            "ingest.source": "ec2",
            "ingest.ec2": {"regions": ["us-east-1"], "instance_types": ["g6.2xlarge"]},
            "ingest.capacity.source": "files",
            "nightly.regions": ["us-east-1"],
            "nightly.instance_types": ["g6.2xlarge"],
            "nightly.branch": None,
        }
    )
    ec2.rows = [(G6, hours, 0.3 + hours / 1000) for hours in (70, 60, 40, 20, 4)]
    done = project.run("dvc", "repro", "interpolate", **account)
    assert done.returncode == 0, done.stdout + done.stderr
    assert prices(project).change_points == 5
    assert len(ec2.requests) == 4  # three pages, and one request that was throttled
    # A price that EC2 publishes hours late, a new one, and a type that was not asked for before.
    ec2.rows += [(G6, 10, 0.5), (G6, 1, 0.4), (P3, 80, 0.9), (P3, 30, 1.0)]
    project.set({"nightly.instance_types": ["g6.2xlarge", "p3.2xlarge"]})
    done = project.run("pipelines", "collect", **account)
    assert done.returncode == 0, done.stderr
    # Of a market with something new all that was fetched is kept.
    assert "9 rows" in done.stdout
    # The stage itself would fetch again; what was accepted is enough.
    ec2.rows.clear()
    done = project.run("dvc", "repro", "interpolate", **account)
    assert done.returncode == 0, done.stdout + done.stderr
    found = prices(project)
    assert found[G6].prices.tolist() == pytest.approx([0.37, 0.36, 0.34, 0.32, 0.5, 0.304, 0.4])
    assert found[P3].prices.tolist() == [0.9, 1.0]
    # Nothing new: no batch.
    assert project.run("pipelines", "collect", **account).stdout == ""
