"""What losses cost: worked out by hand where nothing is at random, and orderings that must hold."""

from __future__ import annotations

import pytest

from ebbtide_papers.exosphere.transiency import (
    LENGTH_H,
    RESTORE_S,
    SAVE_S,
    Loss,
    bag_of_tasks,
    overhead,
    query,
    spark,
    transiency_study,
)


def test_where_nothing_is_lost_only_saving_takes_time() -> None:
    none = Loss(5, lost=0)
    assert overhead(spark(checkpoints=False), none, draws=1) == pytest.approx(0.0, abs=1e-6)
    # Loading at the start, one checkpoint on the way and one at the end, of an hour and five minutes' start.
    saving_s = RESTORE_S + 2 * SAVE_S
    assert overhead(spark(checkpoints=True), none, draws=1) == pytest.approx(
        saving_s / (LENGTH_H * 3600 + 300), rel=0.01
    )


@pytest.mark.exhaustive
def test_the_fewer_markets_the_more_a_loss_costs_and_saving_helps_where_all_is_lost() -> None:
    found = transiency_study(draws=6)
    spread = [found["spark"][name] for name in ("low", "medium", "high")]
    for way in ("checkpoints", "none"):
        costs = [row[way] for row in spread]
        assert costs == sorted(costs, reverse=True)
    assert spread[0]["checkpoints"] < spread[0]["none"]
    table = found["table1"]
    assert (
        table["checkpoints, replenished"]
        < table["checkpoints, not replenished"]
        < table["restart, not replenished"]
    )
    assert table["checkpoints, replenished"] < table["restart, replenished"]
    assert found["bag"]["lazy"] < found["bag"]["restart"] < 0.03
    batch, interactive = found["black_swan"]["batch"], found["black_swan"]["interactive"]
    assert batch["one_market"] < batch["all_markets"] < interactive["all_markets"]
    # The shorter the answer, the more of its time the wait is.
    waits = [row["all_markets"] for row in found["queries"].values()]
    assert waits == sorted(waits, reverse=True)


@pytest.mark.long
def test_a_single_market_without_checkpoints_begins_anew() -> None:
    """Lost after half of the time in the mean, and five minutes until the new machines are there."""
    found = overhead(spark(checkpoints=False), Loss(1), draws=40)
    assert found == pytest.approx((0.55 * 3600 + 300) / (3600 + 300), abs=0.1)
    assert overhead(bag_of_tasks(lazy=True), Loss(15), draws=3) < 0.02


@pytest.mark.long
def test_an_answer_is_waited_for_until_the_markets_are_back_and_machines_have_read_their_data() -> None:
    """Lost after 3.3 of 6 minutes in the mean, gone for a quarter of an hour, asked for every five, five to come."""
    lost = Loss(5, lost=5, back_h=0.25)
    found = overhead(query(360.0), lost, draws=40, started=True)
    assert found == pytest.approx((0.55 * 360 + 900 + 300 + 30 + 150) / 360, abs=0.5)
