"""The policy of a live run where the user names none, and one-line descriptions of policies."""

from __future__ import annotations

import math
from dataclasses import replace

from ebbtide._utc import HOUR_S
from ebbtide.forecasts.spells.models import SpellModels, default_spell_models
from ebbtide.jobs.sweep import Decides, Direction, Sweep
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.deadline.policy import Deadline
from ebbtide.policies.registry import policy as policy_named
from ebbtide.policies.spottune.offers import BestBid
from ebbtide.policies.spottune.policy import SpotTune

# The name that stands for the policy that suits the sweep.
DEFAULT = "default"

_SUMMARIES = {
    "reactive": "the machine cheapest for each step, at no more than the on-demand price; when it is revoked, the "
    "one cheapest then",
    "deadline": "spot machines while there is time, on-demand ones when the deadline leaves none",
    "spottune-bid": "the machine and max price of least expected cost for each step; trials are predicted at "
    "theta and only the best trained to the end",
    "spottune-deadline": "spot machines while there is time, on-demand ones when the deadline leaves none; trials "
    "are predicted at theta and only the best trained to the end",
}


def default_policy(sweep: Sweep) -> str:
    """The name of the policy that suits a sweep.

    Several trials get SpotTune, which compares trials. With one trial there is nothing to predict or to select,
    and SpotTune's max prices are for markets where price revokes, which EC2's have not been since 2017. So one
    trial gets `reactive`, which works in any market and needs no settings, or `deadline` if the trial has a
    deadline and its duration is known.
    """
    if len(sweep.trials()) > 1:
        return "spottune-deadline" if sweep.decides is Decides.CAPACITY else "spottune-bid"
    known = sweep.is_measured and sweep.max_trial_steps is not None
    return "deadline" if sweep.deadline_h is not None and known else "reactive"


def policy_for(sweep: Sweep, name: str, spells: SpellModels | None = None) -> Policy:
    """The policy of a name, with the sweep's theta, deadline and direction, limited to the sweep's budget.

    Args:
        sweep: The sweep to run.
        name: A name in the registry; `default`: the policy that suits the sweep.
        spells: Models of how capacity comes and goes; None: the default models.

    Raises:
        InputError: No policy has this name.
    """
    name = default_policy(sweep) if name == DEFAULT else name
    if name in ("spottune-bid", "spottune-deadline"):
        return policy_of(sweep, spells)
    found = policy_named(name)
    if isinstance(found, SpotTune):
        maximise = sweep.direction is Direction.MAXIMIZE
        theta = sweep.theta if found.theta < 1.0 else found.theta
        found = replace(found, theta=theta, mcnt=sweep.mcnt, maximise=maximise, measured=sweep.is_measured)
    elif isinstance(found, Deadline) and sweep.deadline_h is not None:
        models = spells or default_spell_models()
        found = replace(found, deadline_s=sweep.deadline_h * HOUR_S, models=models)
    return found if sweep.budget_usd is None else WithinBudget(found, sweep.budget_usd)


def policy_of(sweep: Sweep, spells: SpellModels | None = None) -> Policy:
    """The policy that runs a sweep: SpotTune with its theta, deadline and budget.

    Machines are rented by `spottune-bid` where price decides, and by `deadline` where capacity decides.

    Args:
        sweep: The sweep to run.
        spells: Models of how capacity comes and goes, where it decides; None: the default models.
    """
    return within_budget(sweep, spottune_of(sweep, spells))


def spottune_of(sweep: Sweep, spells: SpellModels | None = None) -> SpotTune:
    """SpotTune with the sweep's theta, number of winners, direction and deadline."""
    machines = None
    if sweep.decides is Decides.CAPACITY:
        assert sweep.deadline_h is not None
        machines = Deadline(deadline_s=sweep.deadline_h * HOUR_S, models=spells or default_spell_models())
    return SpotTune(
        theta=sweep.theta,
        mcnt=sweep.mcnt,
        provisioner=BestBid(),
        maximise=sweep.direction is Direction.MAXIMIZE,
        measured=True,
        deadline_s=math.inf if sweep.deadline_h is None else sweep.deadline_h * HOUR_S,
        machines=machines,
        name="spottune-bid" if machines is None else "spottune-deadline",
    )


def within_budget(sweep: Sweep, policy: Policy) -> Policy:
    """The policy, limited to the sweep's budget if it has one."""
    return policy if sweep.budget_usd is None else WithinBudget(policy, sweep.budget_usd)


def policy_summary(policy: str) -> str:
    """What a policy does, in one line; empty: no line is written for it."""
    return _SUMMARIES.get(policy, "")
