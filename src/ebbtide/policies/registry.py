"""Policies by name, for the command line and the pipeline."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from ebbtide.errors import InputError, unknown_name
from ebbtide.forecasts.bundle import ModelBundle, hazard_of
from ebbtide.forecasts.capacity.models import SpellModels, default_spell_models
from ebbtide.forecasts.champions import read_models
from ebbtide.jobs.parsing import read_mapping
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.baselines import CheapestSpot, FastestSpot, OnDemand, Reactive
from ebbtide.policies.cookbook.by_name import ByCookbook, CookbookRule
from ebbtide.policies.deadline.policy import Deadline, DeadlineRule
from ebbtide.policies.deepspotcloud.policy import DeepSpotCloud, MoveWhen
from ebbtide.policies.dynamic_pricing.policy import DynamicPricing, Goal
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.policies.exosphere.master import ExoSphere
from ebbtide.policies.exosphere.portfolio import Selection
from ebbtide.policies.own_policy import is_own, load_policy
from ebbtide.policies.parameters import NAME, with_parameters
from ebbtide.policies.spottune.offers import BestBid, StepCost
from ebbtide.policies.spottune.policy import SpotTune


def _spottune(models: ModelBundle | None = None, _spells: SpellModels | None = None, **settings: Any) -> SpotTune:
    """SpotTune with the bundle's revocation model and EarlyCurve; without a bundle with what the package has."""
    forecast = None if models is None else models.revocation
    cost = StepCost(hazard=hazard_of(models))
    own = {"provisioner": cost if forecast is None else replace(cost, forecast=forecast)} | settings
    return SpotTune(predictor=None if models is None else models.early_curve, **own)


def _deadline(
    rule: DeadlineRule, models: ModelBundle | None = None, spells: SpellModels | None = None
) -> Deadline:
    """A policy for deadlines with models of capacity: those given, the bundle's, or those of the package."""
    learnt = None if models is None else models.spells
    return Deadline(rule, models=spells or learnt or default_spell_models())


def _ebbtide(models: ModelBundle | None = None, spells: SpellModels | None = None) -> Ebbtide:
    """The default policy with the bundle's EarlyCurve and models of capacity."""
    learnt = None if models is None else models.spells
    return Ebbtide(
        predictor=None if models is None else models.early_curve,
        spells=spells or learnt or default_spell_models(),
        hazard=hazard_of(models),
    )


def _without_models(make: Callable[[], Policy]) -> Callable[..., Policy]:
    return lambda _models=None, _spells=None: make()


def _with_hazard(make: Callable[..., Policy]) -> Callable[..., Policy]:
    return lambda models=None, _spells=None: make(hazard=hazard_of(models))


# Each makes the policy with its default parameters; given a model bundle, with what that has learnt.
POLICIES: dict[str, Callable[..., Policy]] = {
    "ebbtide": _ebbtide,
    "on-demand": _without_models(OnDemand),
    "cheapest-spot": _without_models(CheapestSpot),
    "fastest-spot": _without_models(FastestSpot),
    "reactive": _without_models(Reactive),
    "spottune": _spottune,
    "spottune-full": partial(_spottune, theta=1.0, name="spottune-full"),
    **{f"deepspotcloud-{when}": _with_hazard(partial(DeepSpotCloud, when)) for when in MoveWhen},
    **{f"dynamic-pricing-{goal}": _with_hazard(partial(DynamicPricing, goal)) for goal in Goal},
    "exosphere": _with_hazard(ExoSphere),
    **{
        f"spot-fleet-{rival}": _without_models(partial(ExoSphere, selection=rival, name=f"spot-fleet-{rival}"))
        for rival in (Selection.LOWEST_COST, Selection.DIVERSIFIED)
    },
    **{str(rule): _with_hazard(partial(ByCookbook, rule)) for rule in CookbookRule},
    **{str(rule): partial(_deadline, rule) for rule in DeadlineRule},
    "spottune-bid": partial(_spottune, provisioner=BestBid(), name="spottune-bid"),
}

# Policies whose decisions depend on what a model bundle has learnt, with the parts of it that they ask.
ASK_MODELS: dict[str, tuple[str, ...]] = {
    "spottune": ("revpred", "earlycurve", "hazard"),
    "spottune-full": ("revpred", "earlycurve", "hazard"),
    "spottune-bid": ("earlycurve",),
    str(DeadlineRule.TABLE): ("spells",),
    "ebbtide": ("earlycurve", "hazard", "spells"),
    **{f"deepspotcloud-{when}": ("hazard",) for when in MoveWhen},
    **{f"dynamic-pricing-{goal}": ("hazard",) for goal in Goal},
    "exosphere": ("hazard",),
    **{str(rule): ("hazard",) for rule in CookbookRule if rule.is_solved},
}


# The default list: policies that run quickly and make sense for one job.
USUAL = ("ebbtide", "on-demand", "cheapest-spot", "fastest-spot", "reactive", "deepspotcloud-migrate")

# How a name ends that is a file of parameters.
# The name that stands for the policy that suits the work, and the name of that policy.
DEFAULT, DEFAULT_NAME = "default", "ebbtide"

_PARAMETER_FILES = (".yaml", ".yml")

# Stands for every policy in `POLICIES`.
ALL = "all"


def policy(
    name: str,
    models: ModelBundle | str | Path | None = None,
    parameters: Mapping[str, Any] | None = None,
    *,
    spells: SpellModels | None = None,
) -> Policy:
    """The policy of that name, with its default parameters or others, or one of the user's own.

    Args:
        name: One of `POLICIES`; `default`, which is `ebbtide`; a file of parameters, `FILE.yaml`, with one of them
            as `policy`; or `FILE.py:NAME` or `package.module:NAME` (see `own_policy.load_policy`).
        models: What was learnt, for the policies that ask it: a bundle, the path of its folder, or `champion` for
            the champions of the MLflow registry; None: what comes with the package.
        parameters: Parameters that are to differ, by name; before those of a file.
        spells: Models of how capacity comes and goes; None: those of `models`.

    Raises:
        InputError: No policy has this name; the message lists the known ones. Or a parameter is unknown or wrong.
    """
    bundle, given = read_models(models), parameters or {}
    name = DEFAULT_NAME if name == DEFAULT else name
    if name in POLICIES:
        return with_parameters(POLICIES[name](bundle, spells), given)
    if name.endswith(_PARAMETER_FILES):
        kind, of_file = resolved(name)
        return with_parameters(with_parameters(POLICIES[kind](bundle, spells), of_file, name), given)
    if is_own(name):
        return with_parameters(load_policy(name), given)
    problem = unknown_name("policy", name, POLICIES).problem
    raise InputError(f"{problem}; or your own, as FILE.py:NAME; or parameters, as FILE.yaml")


def absolute_name(name: str) -> str:
    """The name that leads to the same policy from any working directory: with the absolute path of its file.

    Args:
        name: As for `policy`; a registered name or `package.module:NAME` stays as it is.
    """
    place, colon, within = name.rpartition(":") if ":" in name else (name, "", "")
    is_file = name.endswith(_PARAMETER_FILES) or place.endswith(".py") or (is_own(name) and os.sep in place)
    if name in POLICIES or not is_file:
        return name
    if name.endswith(_PARAMETER_FILES):
        return os.path.abspath(name)
    return f"{os.path.abspath(place)}{colon}{within}"


def policies(names: str | Sequence[str], models: ModelBundle | str | Path | None = None) -> list[Policy]:
    """Policies from a list of names, or from one text with commas between them; `all` is every one in `POLICIES`.

    Args:
        names: As for `policy`.
        models: What was learnt; see `policy`.

    Raises:
        InputError: A name is unknown, two policies have the same name, or there is none.
    """
    bundle = read_models(models)
    chosen = [policy(name, bundle) for name in names_of(names)]
    check_names(chosen)
    return chosen


def names_of(names: str | Sequence[str]) -> list[str]:
    """The names of a list, or of one text with commas between them; `all` stands for every one in `POLICIES`.

    Raises:
        InputError: There is none.
    """
    parts = names.split(",") if isinstance(names, str) else list(names)
    wanted = [name for part in parts for name in (POLICIES if part.strip() == ALL else [part.strip()]) if name]
    if not wanted:
        raise InputError(f"no policy is named; known: {', '.join(sorted(POLICIES))}; or your own, as FILE.py:NAME")
    return wanted


def check_names(chosen: Sequence[Policy]) -> None:
    """Raise `InputError` if two policies have the same name."""
    own = [each.name for each in chosen]
    repeated = next((name for name in own if own.count(name) > 1), None)
    if repeated:
        raise InputError(f"two policies are named {repeated!r}; each is compared once, under a name of its own")


def resolved(name: str) -> tuple[str, dict[str, Any]]:
    """The policy that a name stands for, and its parameters: those in a file, if it names one.

    Args:
        name: As for `policy`.

    Returns:
        The name that leads to the same policy from any working directory, and the parameters.

    Raises:
        InputError: It names a file of parameters that cannot be read.
    """
    if not name.endswith(_PARAMETER_FILES):
        return absolute_name(name), {}
    content = dict(read_mapping(name, "parameters of a policy: a mapping with `policy`, and what is to differ"))
    kind = content.pop("policy", None)
    if kind not in POLICIES:
        raise InputError(unknown_name("policy", str(kind), POLICIES).problem, file=name, field="policy")
    if NAME in content:
        problem = f"names no parameter: the policy is called {Path(name).stem}, as its file is"
        raise InputError(problem, file=name, field=NAME)
    found: Any = POLICIES[kind]()
    own = {NAME: Path(name).stem} if any(each.name == NAME and each.init for each in fields(found)) else {}
    return str(kind), own | content
