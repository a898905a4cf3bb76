"""Deadlines on recorded availability."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.conftest import TRACES

from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.records import ZoneRecord, read_records
from ebbtide_papers.deadlines.study import draw_ticks, left_out_model, study_zone


def test_ages_are_since_the_spell_began() -> None:
    record = ZoneRecord("a", np.array([True, True, False, False, False, True]), 600.0)
    assert record.ages_s().tolist() == [0, 600, 0, 600, 1200, 0]


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="is no table of availability"):
        read_records(tmp_path / "x.parquet", 71.0)
    row = {
        "kind": "availability",
        "nodes": 1,
        "zone": "z",
        "device": "v100",
        "device_count": 1,
        "gap_seconds": 600,
        "start": pd.Timestamp("2023-01-01", tz="UTC"),
        "data": [1, 0, 1],
    }
    pd.DataFrame([row]).to_parquet(tmp_path / "short.parquet")
    with pytest.raises(InputError, match="no single-node record longer than 71 h"):
        read_records(tmp_path / "short.parquet", 71.0)


@pytest.mark.exhaustive
@pytest.mark.real_traces
def test_on_real_zones_it_is_cheaper_and_never_late(tmp_path: Path) -> None:
    traces = TRACES / "spot-availability-2022-2023.parquet"
    out = tmp_path / "deadlines.json"
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "deadlines", "--traces", str(traces), "--quick", "--json", str(out)])
    assert ended.value.code in (0, None)
    content = json.loads(out.read_text())
    rows = {row["id"]: row for row in content["rows"]}
    assert {f"cost_vs_uniform_progress_{d}h_{r}" for d in (52, 70) for r in (0.02, 0.05, 0.1, 0.2)} < set(rows)
    assert rows["misses"]["ours"] == 0
    assert rows["gap_closed_overall"]["ours"] > 0.3
    assert rows["advisor_misses"]["ours"] == 0
    assert rows["advisor_gap_closed"]["ours"] > 0.3
    assert rows["advisor_cost_vs_uniform_progress"]["ours"] < 1.0
    assert set(content["tables"]["advisor"]["by_zone"]) == {cell["zone"] for cell in content["tables"]["zones"]}
    assert rows["greedy_gap_vs_uniform_progress"]["ours"] > 1.0
    assert len(content["tables"]["cells"]) == 8
    assert content["tables"]["overall"]["gap_closed"] == pytest.approx(rows["gap_closed_overall"]["ours"])
    for cell in content["tables"]["zones"]:
        usd = {name: row["mean_usd"] for name, row in cell["policies"].items()}
        # The optimum's slack is on a grid of a minute.
        assert usd["optimum"] <= min(usd.values()) + 0.02


@pytest.mark.long
@pytest.mark.real_traces
def test_the_model_has_not_seen_the_zone_it_is_tested_on() -> None:
    records = read_records(TRACES / "spot-availability-2022-2023.parquet", 71.0)
    place = next(place for place, record in enumerate(records) if record.name.startswith("us-west-2a v100x1"))
    spoilt = [
        ZoneRecord(one.name, ~one.available, one.gap_s) if one.name.startswith("us-west-2a") else one
        for one in records
    ]
    assert left_out_model(records, place).per_hour == pytest.approx(left_out_model(spoilt, place).per_hour)
    starts = draw_ticks(records[place], 2, 0)
    assert starts == draw_ticks(records[place], 2, 0)
    assert len(study_zone(records[place], {"deadline": left_out_model(records, place)}, starts)) == 8
