"""A policy's fields are checked where it is made."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.policies.baselines import Reactive
from ebbtide.policies.cookbook.by_name import ByCookbook, CookbookRule
from ebbtide.policies.deadline.policy import Deadline, DeadlineRule
from ebbtide.policies.deepspotcloud.policy import DeepSpotCloud, MoveWhen
from ebbtide.policies.dynamic_pricing.policy import DynamicPricing, Goal
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.policies.exosphere.master import ExoSphere
from ebbtide.policies.exosphere.portfolio import Selection
from ebbtide.policies.registry import POLICIES
from ebbtide.policies.spottune.policy import SpotTune


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
    assert (
        eb.policies.DynamicPricing("cost").name
        == eb.policies.DynamicPricing(Goal.COST).name
        == "dynamic-pricing-cost"
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["3", None, True, math.nan])
def test_what_is_no_number_is_told(value: Any) -> None:
    with pytest.raises(InputError, match="field patience: is .*; a number is needed"):
        Ebbtide(patience=value)


@pytest.mark.parametrize(
    ("kind", "field", "value", "needed"),
    [
        # A word is true, whatever it says: a sweep would keep its worst trials.
        (Ebbtide, "maximise", "false", "True or False"),
        (Ebbtide, "measured", 0, "True or False"),
        (Ebbtide, "mcnt", 1.5, "a whole number"),
        (Ebbtide, "mcnt", math.inf, "a whole number"),
        (Ebbtide, "hour_usd", math.inf, "it must be finite"),
        (Ebbtide, "spells", "x", "a SpellModels"),
        (Ebbtide, "bid", "x", "a BestBid"),
        (Ebbtide, "predictor", "x", "an EarlyCurve"),
        (Ebbtide, "name", 5, "text"),
        (Deadline, "models", None, "a SpellModels"),
        (Deadline, "gamma", math.inf, "it must be finite"),
        (DynamicPricing, "quotas", "x", "a mapping"),
        (DynamicPricing, "quotas", {"a": "2"}, "a number of machines"),
        (DynamicPricing, "slo_h", "x", "a mapping or a number"),
        (DynamicPricing, "slo_h", {"a": "2"}, "a number of hours"),
        (ExoSphere, "covariance", 1, "text"),
        (ExoSphere, "up_calls", 1, "text"),
        (ExoSphere, "alpha", "x", "a number"),
        (SpotTune, "provisioner", "x", "a Provisioner"),
        (Reactive, "max_price_ratio", "1", "a number"),
    ],
)
def test_what_is_not_of_its_kind_is_told_where_the_policy_is_made(
    kind: Any, field: str, value: Any, needed: str
) -> None:
    with pytest.raises(InputError, match=f"field {field}.*{needed}"):
        kind(**{field: value})


@pytest.mark.parametrize("name", POLICIES)
def test_no_field_of_any_policy_takes_a_value_of_no_kind(name: str) -> None:
    """But for protocols, which anything may serve."""
    made = eb.policy(name)
    for each in fields(made):  # type: ignore[arg-type]
        if each.init and each.name not in ("forecast", "provisioner", "policy"):
            with pytest.raises(InputError, match=f"field {each.name}"):
                replace(made, **{each.name: object()})  # type: ignore[type-var]
