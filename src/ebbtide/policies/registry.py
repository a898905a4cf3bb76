"""Policies by name, as the command line and the pipeline call them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ebbtide.errors import unknown_name
from ebbtide.policies.baselines import CheapestSpot, FastestSpot, OnDemand, Reactive
from ebbtide.policies.bidding import BestBid
from ebbtide.policies.deadlines.policy import Deadline, DeadlineRule
from ebbtide.policies.deepspotcloud import DeepSpotCloud, MoveWhen
from ebbtide.policies.dynamic_pricing import DynamicPricing, Goal
from ebbtide.policies.exosphere.master import ExoSphere
from ebbtide.policies.exosphere.selection import Selection
from ebbtide.policies.protocol import Policy
from ebbtide.policies.spottune import SpotTune

POLICIES: dict[str, Callable[[], Policy]] = {
    "on-demand": OnDemand,
    "cheapest-spot": CheapestSpot,
    "fastest-spot": FastestSpot,
    "reactive": Reactive,
    "spottune": SpotTune,
    "spottune-full": partial(SpotTune, theta=1.0, name="spottune-full"),
    **{f"deepspotcloud-{when}": partial(DeepSpotCloud, when) for when in MoveWhen},
    **{f"dynamic-pricing-{goal}": partial(DynamicPricing, goal) for goal in Goal},
    "exosphere": ExoSphere,
    **{
        f"spot-fleet-{rival}": partial(ExoSphere, selection=rival, name=f"spot-fleet-{rival}")
        for rival in (Selection.LOWEST_COST, Selection.DIVERSIFIED)
    },
    **{str(rule): partial(Deadline, rule) for rule in DeadlineRule},
    "spottune-bid": lambda: SpotTune(provisioner=BestBid(), name="spottune-bid"),
}


def policy(name: str) -> Policy:
    """The policy of that name, with its default parameters.

    Raises:
        InputError: There is none; the message lists those there are.
    """
    try:
        return POLICIES[name]()
    except KeyError:
        raise unknown_name("policy", name, POLICIES) from None


def policies(names: str | list[str]) -> list[Policy]:
    """Policies from a list of names, or from one text with commas between them.

    Raises:
        InputError: A name is unknown, named twice, or there is none.
    """
    wanted = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
    wanted = [name for name in wanted if name]
    if not wanted:
        raise unknown_name("policy", "", POLICIES)
    chosen = [policy(name) for name in wanted]
    repeated = next((name for name in wanted if wanted.count(name) > 1), None)
    if repeated:
        raise unknown_name("second policy", repeated, set(POLICIES) - set(wanted))
    return chosen
