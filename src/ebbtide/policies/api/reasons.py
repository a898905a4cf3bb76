"""Reasons: what a policy says of a decision, for people who ask why their money was spent so."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ebbtide.market.markets import Market


@dataclass(frozen=True, slots=True)
class Alternative:
    """Something that a policy could do, and what it expected that to cost.

    Attributes:
        choice: What would be done, in words: `spot, at most 0.0450 USD/h`, `on demand`, `wait`.
        expected_usd: Expected cost until the job is done, USD; infinity: not in time; NaN: it was not costed.
        how: How that comes about, with figures and units, so that a person can check it; empty: it is not said.
        market: Where; None: nowhere, or where the job is.
        is_chosen: Whether this is what was done.
    """

    choice: str
    expected_usd: float = math.nan
    how: str = ""
    market: Market | None = None
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason for a decision of a policy.

    Attributes:
        why: The reason in one sentence.
        alternatives: What was weighed, the choice included; empty: the policy weighs nothing that has a cost.
    """

    why: str
    alternatives: Sequence[Alternative] = ()


# A reason, or what makes it: it is called only where somebody keeps reasons, at the moment of the decision.
Because = Reason | Callable[[], Reason] | None
