"""Policies by name, for the command line and the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ebbtide.errors import InputError, unknown_name
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.baselines import CheapestSpot, FastestSpot, OnDemand, Reactive
from ebbtide.policies.deadline.policy import Deadline, DeadlineRule
from ebbtide.policies.deepspotcloud.policy import DeepSpotCloud, MoveWhen
from ebbtide.policies.dynamic_pricing.policy import DynamicPricing, Goal
from ebbtide.policies.exosphere.master import ExoSphere
from ebbtide.policies.exosphere.portfolio import Selection
from ebbtide.policies.own_policy import is_own, load_policy
from ebbtide.policies.spottune.offers import BestBid
from ebbtide.policies.spottune.policy import SpotTune

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


# The default list: policies that run quickly and make sense for one job.
USUAL = ("on-demand", "cheapest-spot", "fastest-spot", "reactive", "deepspotcloud-migrate")

# Stands for every policy in `POLICIES`.
ALL = "all"


def policy(name: str) -> Policy:
    """The policy of that name, with its default parameters, or one of the user's own.

    Args:
        name: One of `POLICIES`, or `FILE.py:NAME` or `package.module:NAME` (see `own_policy.load_policy`).

    Raises:
        InputError: No policy has this name; the message lists the known ones.
    """
    if name in POLICIES:
        return POLICIES[name]()
    if is_own(name):
        return load_policy(name)
    raise InputError(f"{unknown_name('policy', name, POLICIES).problem}; or your own, as FILE.py:NAME")


def policies(names: str | Sequence[str]) -> list[Policy]:
    """Policies from a list of names, or from one text with commas between them; `all` is every one in `POLICIES`.

    Raises:
        InputError: A name is unknown, two policies have the same name, or there is none.
    """
    parts = names.split(",") if isinstance(names, str) else list(names)
    wanted = [name for part in parts for name in (POLICIES if part.strip() == ALL else [part.strip()]) if name]
    if not wanted:
        raise InputError(f"no policy is named; known: {', '.join(sorted(POLICIES))}; or your own, as FILE.py:NAME")
    chosen = [policy(name) for name in wanted]
    names_of = [each.name for each in chosen]
    repeated = next((name for name in names_of if names_of.count(name) > 1), None)
    if repeated:
        raise InputError(f"two policies are named {repeated!r}; each is compared once, under a name of its own")
    return chosen
