"""Every source of prices keeps the contract of price sources."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from ebbtide.market.ingestion import read_source
from ebbtide.market.markets import MARKET_FIELDS, Market
from ebbtide.market.price_store import PriceStore
from ebbtide.market.sources import ec2_api
from ebbtide.market.sources.ec2_api import fetch_prices
from ebbtide.testing.contracts.price_sources import PriceRecord, PriceSourceContract


def schema(records: Sequence[PriceRecord]) -> pd.DataFrame:
    """The records as a table of the price schema, with text in every cell."""
    rows = [
        [one.time, *(getattr(one.market, name) for name in MARKET_FIELDS), one.usd_per_hour] for one in records
    ]
    return pd.DataFrame(rows, columns=["timestamp", *MARKET_FIELDS, "price_usd_per_hour"], dtype="string")


def entries(records: Sequence[PriceRecord]) -> list[dict[str, Any]]:
    """The records as EC2's API has them."""
    return [
        {
            "AvailabilityZone": one.market.zone,
            "InstanceType": one.market.instance_type,
            "ProductDescription": one.market.product,
            "SpotPrice": one.usd_per_hour,
            "Timestamp": one.time,
        }
        for one in records
    ]


class TestParquet(PriceSourceContract):
    def read(self, records: Sequence[PriceRecord], folder: Path) -> pd.DataFrame:
        frame = schema(records)
        # A file that Ebbtide wrote has times and numbers; one with a bad record has text.
        for name, parse in (("timestamp", pd.to_datetime), ("price_usd_per_hour", pd.to_numeric)):
            with suppress(ValueError, TypeError):
                frame[name] = parse(frame[name])
        frame.to_parquet(folder / "prices.parquet", index=False)
        return read_source(folder / "prices.parquet")


class TestPriceStore(PriceSourceContract):
    def read(self, records: Sequence[PriceRecord], folder: Path) -> pd.DataFrame:
        PriceStore(folder / "prices.db").add(schema(records), looked_at="2015-05-01T00:00:00Z")
        return read_source(folder / "prices.db")


class TestEc2Json(PriceSourceContract):
    def read(self, records: Sequence[PriceRecord], folder: Path) -> pd.DataFrame:
        (folder / "prices.json").write_text(json.dumps({"SpotPriceHistory": entries(records)}))
        return read_source(folder / "prices.json")


class TestKaggleCsv(PriceSourceContract):
    def read(self, records: Sequence[PriceRecord], folder: Path) -> pd.DataFrame:
        rows = [[r.time, r.market.instance_type, r.market.product, r.market.zone, r.usd_per_hour] for r in records]
        with (folder / "prices.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["datetime", "instance_type", "os", "region", "price"], *rows])
        return read_source(folder / "prices.csv")


AZURE = tuple(Market("azure", "eastus", "eastus", name, "Linux") for name in ("NC6s v3", "NC12s v3"))


class TestAzureCsv(PriceSourceContract):
    markets = AZURE

    def read(self, records: Sequence[PriceRecord], folder: Path) -> pd.DataFrame:
        names = [market.instance_type for market in self.markets]
        rows = [[r.time, *(r.usd_per_hour if r.market.instance_type == n else "" for n in names)] for r in records]
        with (folder / "eastus.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["Date", *names], *rows])
        return read_source(folder / "eastus.csv")


class TestAzureJson(PriceSourceContract):
    markets = AZURE

    def read(self, records: Sequence[PriceRecord], folder: Path) -> pd.DataFrame:
        items = [
            {
                "retailPrice": one.usd_per_hour,
                "armRegionName": one.market.region,
                "armSkuName": f"Standard_{one.market.instance_type.replace(' ', '_')}",
                "skuName": f"{one.market.instance_type} Spot",
                "productName": "Virtual Machines",
                "effectiveStartDate": one.time,
                "currencyCode": "USD",
            }
            for one in records
        ]
        (folder / "prices.json").write_text(json.dumps({"Items": items}))
        return read_source(folder / "prices.json")


class TestEc2Api(PriceSourceContract):
    @pytest.fixture(autouse=True)
    def _api(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[dict[str, Any]] = []

        def page(**_: Any) -> dict[str, Any]:
            return {"SpotPriceHistory": self.found}

        client = SimpleNamespace(describe_spot_price_history=page)
        monkeypatch.setattr(ec2_api.boto3, "Session", lambda: SimpleNamespace(client=lambda *_, **__: client))

    def read(self, records: Sequence[PriceRecord], folder: Path) -> pd.DataFrame:  # noqa: ARG002
        self.found = entries(records)
        return fetch_prices(["us-east-1"], until="2015-05-01T00:00:00Z")
