"""Sets of zones from awkward files: what cannot be read is told by file, row and field, never in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.records import UnusableData
from ebbtide_papers.deadlines.zone_sets import read_capacity_rounds, read_probed_zones

ZONES = ("us-east-1a", "us-east-1b")
TIMES = pd.date_range("2025-10-01", periods=20, freq="10min", tz="UTC")
WHERE = {"cloud": "aws", "region": "us-east-1", "instance_type": "p5.48xlarge"}


def probes(**changed: Any) -> pd.DataFrame:
    rows = [
        {"timestamp": time, "zone": zone, "available": 1, "launched": 4, "requested": 4, "interval_seconds": 600}
        for zone in ZONES
        for time in TIMES
    ]
    return pd.DataFrame(rows).assign(gpu_type="H100", **WHERE).assign(**changed)


def prices(**changed: Any) -> pd.DataFrame:
    begins, ends = TIMES[0] - pd.Timedelta(hours=1), TIMES[-1]
    rows = [
        {"timestamp": time, "zone": zone, "price_usd_per_hour": 20.0} for zone in ZONES for time in (begins, ends)
    ]
    return pd.DataFrame(rows).assign(**WHERE).assign(**changed)


def written(folder: Path, **tables: pd.DataFrame) -> list[Path]:
    paths = [folder / f"{name}.parquet" for name in tables]
    for path, table in zip(paths, tables.values(), strict=True):
        table.to_parquet(path)
    return paths


def listed() -> pd.DataFrame:
    row = {"as_of": TIMES[0], "cloud": "aws", "region": "us-east-1", "accelerator": "NVIDIA H100"}
    return pd.DataFrame([{**row, "accelerator_count": 8, "spot_usd_per_hour": 20.0}])


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"prices": prices(price_usd_per_hour=np.nan)}, "price_usd_per_hour"),
        ({"prices": prices(price_usd_per_hour=-1.0)}, "price_usd_per_hour"),
        ({"prices": prices(price_usd_per_hour="dear")}, "price_usd_per_hour"),
        ({"prices": prices(timestamp=prices()["timestamp"].dt.tz_localize(None))}, "timestamp"),
        ({"probes": probes(timestamp=probes()["timestamp"].dt.tz_localize(None))}, "timestamp"),
        ({"probes": probes(interval_seconds=0)}, "interval_seconds"),
    ],
)
def test_a_value_that_is_none_is_told_by_file_row_and_field(
    changed: dict[str, pd.DataFrame], field: str, tmp_path: Path
) -> None:
    tables = {"probes": probes(), "prices": prices(), "listed": listed()} | changed
    probed, priced, list_prices = written(tmp_path, **tables)
    named = rf"{next(iter(changed))}\.parquet, row 1, field {field}"
    with pytest.raises(InputError, match=named):
        read_probed_zones(probed, [priced])
    with pytest.raises(InputError, match=named):
        read_capacity_rounds(probed, [list_prices], [priced])


def test_times_as_text_are_times(tmp_path: Path) -> None:
    text = probes(timestamp=probes()["timestamp"].astype(str))
    probed, priced, list_prices = written(tmp_path, probes=text, prices=prices(), listed=listed())
    assert len(read_probed_zones(probed, [priced])) == 1
    assert len(read_capacity_rounds(probed, [list_prices], [priced])) == 2


def test_rounds_without_a_count_are_left_out(tmp_path: Path) -> None:
    probed, priced, list_prices = written(
        tmp_path, probes=probes(launched=np.nan), prices=prices(), listed=listed()
    )
    left_out: list[UnusableData] = []
    assert read_capacity_rounds(probed, [list_prices], [priced], left_out) == []
    assert {one.why for one in left_out} == {"probes.parquet: no round has counts of all zones"}
