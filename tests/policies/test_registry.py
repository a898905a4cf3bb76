"""Policies by name or by a file of parameters, with and without what a model bundle has learnt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.forecasts.bundle import ModelBundle
from ebbtide.forecasts.capacity.models import default_spell_models
from ebbtide.forecasts.hazard.model import default_hazard
from ebbtide.forecasts.learning_curves.calibration import default_calibration
from ebbtide.forecasts.revocation.forecasts import Never, RecentFrequency
from ebbtide.policies.deadline.policy import Deadline
from ebbtide.policies.registry import ASK_MODELS, POLICIES, policies, policy
from ebbtide.policies.spottune.offers import BestBid, StepCost
from ebbtide.policies.spottune.policy import SpotTune

# Stands for a bundle whose revocation model says "never".
LEARNT = cast(
    ModelBundle,
    SimpleNamespace(
        revocation=Never(),
        early_curve=replace(default_calibration().everywhere, band=7.0),
        spells=replace(default_spell_models(), by_market={"here": default_spell_models().otherwise}),
        hazard=replace(default_hazard(), prior_ends=9.0),
    ),
)
NOTHING_LEARNT = cast(ModelBundle, SimpleNamespace(revocation=None, early_curve=None, spells=None, hazard=None))


@pytest.mark.parametrize("name", ["spottune", "spottune-full"])
def test_spottune_asks_the_bundle(name: str) -> None:
    learnt, plain = policy(name, LEARNT), policy(name)
    assert isinstance(learnt, SpotTune)
    assert isinstance(plain, SpotTune)
    assert isinstance(learnt.provisioner, StepCost)
    assert isinstance(plain.provisioner, StepCost)
    assert learnt.provisioner.forecast == Never()
    assert isinstance(plain.provisioner.forecast, RecentFrequency)
    assert learnt.predictor == LEARNT.early_curve
    # In all else it is the policy of that name.
    assert replace(learnt, provisioner=plain.provisioner, predictor=None) == plain


def test_the_best_bid_is_for_prices_and_its_trials_for_the_bundle() -> None:
    learnt = policy("spottune-bid", LEARNT)
    assert isinstance(learnt, SpotTune)
    assert isinstance(learnt.provisioner, BestBid)
    assert learnt.predictor == LEARNT.early_curve


@pytest.mark.parametrize("name", ["deadline", "uniform-progress", "next-cheapest", "greedy-spot"])
def test_policies_for_deadlines_ask_the_bundle_for_spells(name: str) -> None:
    learnt = policy(name, LEARNT)
    assert isinstance(learnt, Deadline)
    assert learnt.models is LEARNT.spells
    assert cast(Deadline, policy(name)).models is default_spell_models()


@pytest.mark.parametrize("name", [name for name, parts in ASK_MODELS.items() if "hazard" in parts])
def test_policies_ask_the_bundle_for_its_hazard(name: str) -> None:
    learnt, plain = policy(name, LEARNT), policy(name)
    asks: list[Any] = [each.provisioner if isinstance(each, SpotTune) else each for each in (learnt, plain)]
    assert [each.hazard for each in asks] == [LEARNT.hazard, default_hazard()]


@pytest.mark.parametrize("name", list(POLICIES))
def test_what_a_bundle_lacks_the_package_has(name: str) -> None:
    assert repr(policy(name, NOTHING_LEARNT)) == repr(policy(name))
    if name not in ASK_MODELS:
        assert repr(policy(name, LEARNT)) == repr(policy(name))


def written(folder: Path, text: str) -> str:
    (folder / "mine.yaml").write_text(text)
    return str(folder / "mine.yaml")


def test_parameters_come_from_a_file(tmp_path: Path) -> None:
    found = cast(SpotTune, policy(written(tmp_path, "policy: spottune\ntheta: 0.5\nmcnt: 2\nstays: false\n")))
    as_named = replace(cast(SpotTune, policy("spottune")), theta=0.5, mcnt=2, stays=False, name="mine")
    assert repr(found) == repr(as_named)
    both = policies([written(tmp_path, "policy: spottune\ntheta: 0.5\n"), "spottune"])
    assert [each.name for each in both] == ["mine", "spottune"]
    due = cast(Deadline, policy(written(tmp_path, "policy: deadline\ntimes_work: 2\nrule: greedy-spot\n"), LEARNT))
    assert (due.times_work, due.name) == (2.0, "greedy-spot")
    assert isinstance(due.times_work, float)
    assert due.models is LEARNT.spells


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("theta: 0.5", "field policy: unknown policy 'None'"),
        ("policy: spotune", "did you mean 'spottune'?"),
        ("policy: spottune\nthetta: 0.5", "field thetta: unknown parameter 'thetta' (did you mean 'theta'?)"),
        ("policy: spottune\ntheta: much", "field theta: is 'much'; a number is needed"),
        ("policy: spottune\nstays: 1", "field stays: is 1; true or false is needed"),
        ("policy: spottune\nname: half", "field name: names no parameter: the policy is called mine, as its file"),
        ("policy: spottune\nprovisioner: x", "field provisioner: unknown parameter"),
        ("policy: deadline\nrule: lazily", "field rule: is 'lazily'; one of deadline, uniform-progress"),
        ("policy: deadline\ntimes_work: -1", "field times_work: is -1.0; it must be positive"),
        ("- spottune", "a mapping"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError) as refused:
        policy(written(tmp_path, text))
    said: Any = str(refused.value)
    assert told in said
    assert "\n" not in said


def test_a_missing_file_is_told() -> None:
    with pytest.raises(InputError, match=r"none\.yaml: there is no such file"):
        policy("none.yaml")


def test_the_default_has_a_name_of_its_own() -> None:
    assert type(eb.policy("default")) is type(eb.policy("ebbtide"))
    assert eb.policy("default").name == "ebbtide"
