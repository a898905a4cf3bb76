"""Snapshots: a run that is restored in the midst ends as the one that was not; older records are migrated."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.markets import START_S, history

import ebbtide as eb
from ebbtide.engine.engine import Engine
from ebbtide.engine.snapshot import SNAPSHOT_VERSION, EngineSnapshot, migrated, restore, snapshot
from ebbtide.errors import InputError, PolicyError
from ebbtide.market.billing import billing_preset
from ebbtide.policies.baselines import Reactive
from ebbtide.replay.replay import ReplayProvider
from ebbtide.replay.replayed_market import ReplayedMarket

C3 = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")
R3 = eb.Market("aws", "us-east-1", "us-east-1b", "r3.large")


def engine(keep: Any = None) -> Engine:
    prices = history({C3: [(0, 0.05), (5_000, 0.9)], R3: [(0, 0.07)]})
    billing = billing_preset("ec2-second")
    job = eb.Job(name="one", steps=9_000, steps_per_hour={"c3.xlarge": 3_000.0, "r3.large": 2_000.0})
    provider = ReplayProvider(ReplayedMarket(prices, START_S, billing))
    return Engine(Reactive(), [job], provider, billing, seed=3, record=True, keep=keep)


def taken() -> list[dict[str, Any]]:
    """What a run keeps at each of its waits, as a file has it."""
    found: list[dict[str, Any]] = []
    engine(lambda one: found.append(json.loads(json.dumps(snapshot(one))))).run()
    return found


def test_every_moment_of_a_run_survives_a_file() -> None:
    found = taken()
    assert len(found) >= 4
    assert len(found[-1]["leases"]) == 2
    for kept in found:
        assert set(kept) == set(EngineSnapshot.__annotations__)
        again = engine()
        restore(again, kept)
        assert json.loads(json.dumps(snapshot(again))) == kept


def test_a_record_without_a_version_is_migrated() -> None:
    kept = taken()[-1]
    assert kept["version"] == SNAPSHOT_VERSION
    old = {name: value for name, value in kept.items() if name != "version"}
    assert migrated(old) == kept
    again = engine()
    restore(again, old)
    assert json.loads(json.dumps(snapshot(again))) == kept


def test_a_newer_one_is_refused_in_one_line() -> None:
    kept = taken()[-1] | {"version": SNAPSHOT_VERSION + 1}
    with pytest.raises(
        InputError, match=r"has version 3, and this Ebbtide reads versions up to 2; upgrade ebbtide"
    ):
        restore(engine(), kept)


def test_memory_that_a_file_cannot_hold_is_a_mistake_of_the_policy() -> None:
    one = engine()
    one.memory["seen"] = {C3}
    with pytest.raises(PolicyError, match=r"view.memory\['seen'\] holds what JSON cannot: .*plain values"):
        snapshot(one)


def test_a_restored_run_goes_on_with_the_jobs_that_are_not_done() -> None:
    prices, billing = history({C3: [(0, 0.05)]}), billing_preset("ec2-second")
    jobs = [
        eb.Job(name=f"j{hours}", steps=3_000 * hours, steps_per_hour={"c3.xlarge": 3_000.0}) for hours in (1, 2)
    ]
    found: list[dict[str, Any]] = []

    def made(keep: Any = None) -> Engine:
        return Engine(
            Reactive(), jobs, ReplayProvider(ReplayedMarket(prices, START_S, billing)), billing, keep=keep
        )

    made(lambda one: found.append(json.loads(json.dumps(snapshot(one))))).run()
    seen = []
    for kept in found:
        again = made()
        restore(again, kept)
        seen.append(sorted(again._unfinished))
        assert seen[-1] == [job.job_id for job in again.jobs if not job.is_finished]
    assert seen[0] == [0, 1]
    assert [1] in seen


def test_a_record_of_other_jobs_is_not_taken_for_this_run_s() -> None:
    kept = taken()[-1]
    for jobs in ([], [kept["jobs"][0]] * 2):
        with pytest.raises(ValueError, match="zip"):
            restore(engine(), kept | {"jobs": jobs})
