"""Collection of prices that EC2 publishes late, and of speeds that runs have measured; notices of failed nights."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flows.collect
import flows.notify
import pandas as pd
import pytest
from flows.collect import SPEEDS, collect_speeds, fetch
from flows.measure_speeds import merge
from tests.markets import C3, R3, START_S, history

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.ingestion import fetch_since, unknown_rows
from ebbtide.market.prices import PriceHistory
from ebbtide.runs.collected_speeds import CollectedSpeeds

KNOWN = history({C3: [(0, 0.1), (108000, 0.2)], R3: [(0, 0.05)]}, hours=31)


def test_a_day_is_fetched_again_and_a_new_type_from_its_beginning() -> None:
    assert fetch_since(None, []) == {}
    assert fetch_since(KNOWN, []) == {"us-east-1": START_S + 30 * HOUR_S - DAY_S}
    # The newest price of this type is older than that of the other.
    assert fetch_since(KNOWN, [R3.instance_type]) == {"us-east-1": START_S - DAY_S}
    assert fetch_since(KNOWN, [C3.instance_type, "p3.2xlarge"]) == {}


def test_rows_that_are_known_are_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = history({C3: [(108000, 0.2)], R3: [(72000, 0.07)]}, hours=31).to_frame()
    rows = unknown_rows(late, KNOWN)
    assert rows["price_usd_per_hour"].tolist() == [0.07]
    # What returns to the known price after a late one is new, too.
    back = history({C3: [(20_000, 0.3), (30_000, 0.1)]}, hours=31).to_frame()
    assert unknown_rows(back, KNOWN)["price_usd_per_hour"].tolist() == [0.3, 0.1]
    assert len(unknown_rows(KNOWN.to_frame(), KNOWN)) == 0
    assert unknown_rows(late, None) is late
    asked: list[dict[str, float]] = []

    def answer(regions: list[str], *, instance_types: list[str], since: dict[str, float]) -> pd.DataFrame:
        asked.append(since)
        return late

    monkeypatch.setattr(flows.collect, "fetch_prices", answer)
    fetch.fn(["us-east-1"], [], KNOWN, tmp_path)
    (batch,) = tmp_path.glob("ec2-*.parquet")
    assert PriceHistory.read(batch).change_points == 1
    assert asked == [{"us-east-1": START_S + 6 * HOUR_S}]
    monkeypatch.setattr(flows.collect, "fetch_prices", lambda *_, **__: KNOWN.to_frame())
    batch.unlink()
    fetch.fn(["us-east-1"], [], KNOWN, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_speeds_stay_when_their_runs_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = {"a": CollectedSpeeds({"g6.2xlarge": 100.0})}
    monkeypatch.setattr(flows.collect, "speeds_of_runs", lambda _: found)
    collect_speeds.fn(tmp_path)
    found.clear()
    before = SPEEDS.read_bytes()
    collect_speeds.fn(tmp_path)
    assert SPEEDS.read_bytes() == before
    found |= {"b": CollectedSpeeds({"g6.2xlarge": 7.0}), "a": CollectedSpeeds({"g6.2xlarge": 120.0})}
    collect_speeds.fn(tmp_path)
    assert merge.fn(SPEEDS.parent) == {
        "a": {"steps_per_hour": {"g6.2xlarge": 120.0}},
        "b": {"steps_per_hour": {"g6.2xlarge": 7.0}},
    }
    SPEEDS.write_text(json.dumps(["a"]))
    with pytest.raises(InputError, match=r"runs\.json: holds no measured speeds"):
        merge.fn(SPEEDS.parent)


def test_a_night_that_fails_is_told_through_the_block_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, str]] = []
    block = SimpleNamespace(notify=lambda **words: told.append(words))
    monkeypatch.setattr(flows.notify.Block, "load", lambda name: block if name == "slack-webhook/nights" else None)
    arguments: tuple[Any, ...] = (
        SimpleNamespace(name="nightly"),
        SimpleNamespace(name="brown-fox"),
        SimpleNamespace(name="Failed", message="dvc repro failed"),
    )
    monkeypatch.delenv("EBBTIDE_NOTIFY", raising=False)
    flows.notify.notify(*arguments)
    assert told == []
    monkeypatch.setenv("EBBTIDE_NOTIFY", "slack-webhook/nights")
    flows.notify.notify(*arguments)
    assert told == [{"subject": "Ebbtide: nightly failed", "body": "brown-fox: dvc repro failed"}]
