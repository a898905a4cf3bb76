"""A policy's fields are checked where it is made."""

from __future__ import annotations

from typing import Any

import pytest

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.policies.cookbook.by_name import ByCookbook, CookbookRule
from ebbtide.policies.deadline.policy import Deadline, DeadlineRule
from ebbtide.policies.deepspotcloud.policy import DeepSpotCloud, MoveWhen
from ebbtide.policies.dynamic_pricing.policy import DynamicPricing, Goal
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.policies.exosphere.master import ExoSphere
from ebbtide.policies.exosphere.portfolio import Selection


@pytest.mark.parametrize(
    ("kind", "field", "word"),
    [
        (DynamicPricing, "goal", Goal.THROUGHPUT),
        (DeepSpotCloud, "when", MoveWhen.CHEAPER),
        (Deadline, "rule", DeadlineRule.GREEDY),
        (ByCookbook, "rule", CookbookRule.DBA),
        (ExoSphere, "selection", Selection.DIVERSIFIED),
    ],
)
def test_a_word_given_as_plain_text_is_that_word(kind: Any, field: str, word: Any) -> None:
    made = kind(**{field: str(word)})
    # Policies compare by `is`, which plain text would never meet.
    assert getattr(made, field) is word
    assert made == kind(**{field: word})
    with pytest.raises(InputError, match=f"field {field}: unknown {field} 'chaep'"):
        kind(**{field: "chaep"})


def test_the_goal_decides_however_it_is_written() -> None:
    assert eb.DynamicPricing("cost").name == eb.DynamicPricing(Goal.COST).name == "dynamic-pricing-cost"  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["3", None, True])
def test_what_is_no_number_is_told(value: Any) -> None:
    with pytest.raises(InputError, match="field patience: is .*; a number is needed"):
        Ebbtide(patience=value)
