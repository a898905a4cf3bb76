"""Orders that an agent obeys when it starts, of all that its machine ever received."""

from __future__ import annotations

import pytest

from ebbtide.agent.agent import _in_force
from ebbtide.agent.config import Assignment
from ebbtide.agent.protocol import Leave, Order, SaveOrder, Train


def train(trial: str, attempt: int = 0, beside: tuple[str, ...] = ()) -> Train:
    return Train(Assignment(trial, ("train",), 10, "loss", attempt=attempt), beside)


@pytest.mark.parametrize(
    ("orders", "in_force"),
    [
        ([train("a"), SaveOrder("a")], [train("a"), SaveOrder("a")]),
        # What was trained before is to leave; its end is reported, and what was said of it is over.
        ([train("a", 3), SaveOrder("a"), train("b", 4)], [Leave(3, "a"), train("b", 4)]),
        ([train("a", 3), train("b", 4, ("a",))], [train("a", 3), train("b", 4, ("a",))]),
        ([train("a", 3), Leave(3, "a")], [Leave(3, "a")]),
        # Of another assignment of its trial nothing is said.
        ([train("a", 3), Leave(2, "a")], [train("a", 3), Leave(2, "a")]),
        # An end that is not known to have been reported is reported, whatever comes after.
        ([train("a", 3), Leave(3, "a"), train("b", 4)], [Leave(3, "a"), train("b", 4)]),
        ([train("a", 3), Leave(3, "a", reported=True), train("b", 4)], [train("b", 4)]),
        ([train("a", 3), Leave(3), train("b", 4)], [train("b", 4)]),
        ([Leave(3, "a"), Leave(3, "a", reported=True)], [Leave(3, "a", reported=True)]),
        ([Leave(3, "a"), Leave(3, "a")], [Leave(3, "a"), Leave(3, "a")]),
        ([Leave(3, "a"), Leave(4, "a", reported=True)], [Leave(3, "a"), Leave(4, "a", reported=True)]),
    ],
)
def test_what_is_not_over_and_what_came_after_it(orders: list[Order], in_force: list[Order]) -> None:
    assert _in_force(orders) == in_force
