"""Parameters of policies: from files and command lines, checked against the fields of the policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

from ebbtide.errors import InputError
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.baselines import Reactive
from ebbtide.policies.dynamic_pricing.policy import DynamicPricing
from ebbtide.policies.parameters import assignments, parameters_of, parameters_text, with_parameters
from ebbtide.policies.registry import POLICIES, policy

if TYPE_CHECKING:
    from ebbtide.market.markets import Market


def test_values_of_any_plain_type_are_taken() -> None:
    given = {"slo_h": {"a": 30, "b": 2.5}, "quotas": {"p3.2xlarge": 2}, "budget_usd": math.inf, "round_s": 600}
    found = cast(DynamicPricing, policy("dynamic-pricing-cost", None, given))
    assert (found.slo_h, found.quotas) == ({"a": 30.0, "b": 2.5}, {"p3.2xlarge": 2})
    assert (found.budget_usd, found.round_s) == (math.inf, 600.0)
    assert cast(DynamicPricing, policy("dynamic-pricing-cost", None, {"slo_h": 30})).slo_h == 30.0


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_takes_the_parameters_that_it_has(name: str) -> None:
    found = policy(name)
    assert repr(with_parameters(found, assignments(_words(parameters_of(found))))) == repr(found)


def _words(parameters: Mapping[str, Any]) -> list[str]:
    return [f"{name}={parameters_text({name: value}).partition(': ')[2]}" for name, value in parameters.items()]


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("reactive", {"max_price": 1}, "unknown parameter 'max_price' (did you mean 'max_price_ratio'?)"),
        ("reactive", {"max_price_ratio": True}, "is True; a number is needed, as 1.0 is"),
        ("reactive", {"max_price_ratio": "1"}, "is '1'; a number is needed"),
        ("reactive", {"max_price_ratio": 0}, "field max_price_ratio: is 0.0; it must be positive"),
        ("reactive", {"max_price_ratio": math.nan}, "field max_price_ratio: is nan; a number is needed"),
        ("reactive", {"wakes_on": []}, "unknown parameter 'wakes_on'"),
        ("reactive", {"name": "a\nb"}, "field name: is 'a\\nb'; text that can be printed is needed"),
        ("reactive", {"name": ""}, "field name: is ''; text that can be printed is needed"),
        ("reactive", {"max_price_ratio": "x" * 9999}, "x; a number is needed"),
        ("exosphere", {"alpha": math.inf}, "field alpha: is inf; it must be from 0 to 1e+12"),
        ("exosphere", {"alpha": 1e308}, "field alpha: is 1e+308; it must be from 0 to 1e+12"),
        ("dynamic-pricing-cost", {"round_s": math.inf}, "field round_s: is inf; it must be from 1 to"),
        ("dynamic-pricing-cost", {"round_s": 1e-9}, "field round_s: is 1e-09; it must be from 1 to"),
        ("spottune", {"theta": 1.5}, "field theta: is 1.5; a share is needed, above 0 and 1 at most"),
        ("spottune", {"mcnt": 2.5}, "field mcnt: is 2.5; a whole number is needed, as 3 is"),
        ("spottune", {"mcnt": 0}, "field mcnt: is 0; it must be positive"),
        ("dynamic-pricing-cost", {"quotas": 2}, "is 2; a mapping of names, each to a whole number is needed"),
        ("dynamic-pricing-cost", {"quotas": {"a": -1}}, "field quotas.a: is -1; a number of machines is needed"),
        ("dynamic-pricing-cost", {"slo_h": {"a": 0}}, "field slo_h.a: is 0 h; it must be positive"),
        ("dynamic-pricing-cost", {"slo_h": -3}, "field slo_h: is -3 h; it must be positive"),
        ("dynamic-pricing-cost", {"slo_h": [3]}, "a mapping of names, each to a number or a number is needed"),
        ("dynamic-pricing-cost", {"goal": "profit"}, "is 'profit'; one of throughput, cost, makespan is needed"),
        ("exosphere", {"soft_share": 2}, "field soft_share: is 2.0; a share is needed"),
        ("deepspotcloud-hourly", {"stay_h": 0}, "field stay_h: is 0.0; it must be positive"),
    ],
)
def test_what_is_wrong_is_told_with_the_field(name: str, given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as refused:
        policy(name, None, given)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


class Plain:
    """A policy of a user's, without fields."""

    name = "plain"
    wakes_on: frozenset[Wake] = frozenset()

    def decide(self, _view: object) -> tuple[()]:
        return ()


@dataclass(frozen=True)
class Own(Plain):
    """One with a type that is imported for type checkers alone."""

    level: float = 1
    market: Market | None = None
    most: int | None = None


@dataclass(frozen=True)
class Picky(Plain):
    """One that refuses what it does not like in its own way."""

    level: float = 1.0
    how: Literal["fast", "slow"] = "fast"

    def __post_init__(self) -> None:
        if self.level > 1:
            raise RuntimeError("too\nhigh")


def test_a_policy_of_the_user_s_own_takes_them_too() -> None:
    with pytest.raises(InputError, match="policy plain takes no parameters, but level is given"):
        with_parameters(cast(Policy, Plain()), {"level": 2})
    assert with_parameters(cast(Policy, Own()), {"level": 2.5, "most": 3}) == Own(level=2.5, most=3)
    assert parameters_of(cast(Policy, Own())) == {"level": 1, "most": None}
    assert with_parameters(cast(Policy, Picky()), {"how": "slow"}) == Picky(how="slow")
    with pytest.raises(InputError, match="field how: is 'so'; one of fast, slow is needed, as fast is"):
        with_parameters(cast(Policy, Picky()), {"how": "so"})
    told = r"policy plain cannot be made with level: 2: RuntimeError\('too"
    with pytest.raises(InputError, match=told) as refused:
        with_parameters(cast(Policy, Picky()), {"level": 2})
    assert "\n" not in str(refused.value)


def test_a_command_line_has_yaml() -> None:
    found = assignments(["theta=0.5", "stays=false", "quotas={a: 2}", "goal=2x=y", "slo_h=.inf"])
    assert found == {"theta": 0.5, "stays": False, "quotas": {"a": 2}, "goal": "2x=y", "slo_h": math.inf}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["theta"], "--set 'theta' is no assignment; write --set NAME=VALUE"),
        (["=1"], "is no assignment"),
        (["name=mine"], "--set name names no parameter: --policy says which policy decides"),
        (["a=1", "a=2"], "--set a is given twice"),
        (["a={b"], "--set a is '{b', which is not YAML"),
        (["a=!!python/object:os.system {}"], "which is not YAML"),
    ],
)
def test_a_wrong_command_line_is_told(words: list[str], told: str) -> None:
    with pytest.raises(InputError) as refused:
        assignments(words)
    assert told in str(refused.value)


def test_as_text_they_are_what_a_file_would_have() -> None:
    assert parameters_text({"slo_h": 30, "quotas": {"a": 2}}) == "slo_h: 30, quotas: {a: 2}"
    assert parameters_of(Reactive()) == {"max_price_ratio": 1.0}
