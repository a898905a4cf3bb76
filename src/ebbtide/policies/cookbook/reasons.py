"""Reasons that cookbook policies give for decisions: the state in the table, and its expected cost."""

from __future__ import annotations

from ebbtide.policies.api.reasons import Alternative, Reason
from ebbtide.policies.cookbook.cookbook import Cookbook


def by_book(book: Cookbook, hours: float, price: float, left_h: float, size: int, held: int) -> Reason:
    """Reason to hold `size` machines: the action of the cookbook in this state.

    Args:
        book: The cookbook.
        hours: Hours since the start.
        price: Price of a machine, USD per hour.
        left_h: Work left in machine-hours.
        size: Number of machines to hold.
        held: Number of machines that are held now.
    """
    usd = book.expected_usd(hours, price, left_h, held)
    how = (
        f"state: {hours:.2f} h since the start, {left_h:.2f} machine-hours of work left, {price:.6f} USD/h, "
        f"{held} machines held"
    )
    chosen = Alternative(f"hold {size} machines", usd, how, is_chosen=True)
    return Reason("the cookbook holds so many machines in this state (Cümülön-D, 5.4)", [chosen])
