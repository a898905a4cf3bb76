"""Two versions of a model on the same starts: the policy that asks it, run with the champion and with the other.

Which policy asks a kind of model is told by `registry.ASK_MODELS`; price chains are asked by the solver of
cookbooks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ebbtide.backtesting.backtest import backtest, start_times
from ebbtide.base.utc import HOUR_S, Time, iso
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError, unknown_name
from ebbtide.forecasts.bundle import ModelBundle, joined, part_of, write_manifest
from ebbtide.forecasts.learning_curves.calibration import read_calibration, write_calibration
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.job import Job
from ebbtide.jobs.job_files import ReplayedWork, read_work
from ebbtide.jobs.workflow import Workflow
from ebbtide.market.availability import Availability
from ebbtide.market.billing import billing_preset
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.cookbook.policy import FollowCookbook, elastic_job
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
from ebbtide.policies.cookbook.solving import solve
from ebbtide.policies.for_job import policies_for
from ebbtide.policies.registry import ASK_MODELS
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import StartDelay
from ebbtide.tracking.promotion import PolicyRuns, Verdict, VersionComparison, compared, judged

# What asks price chains: no policy of the registry, but what solves the cookbook that a policy follows.
COOKBOOK = "cookbook"
_CHAINS, _CURVES, _SPELLS = "price-chains", "earlycurve", "spells"


@dataclass(frozen=True)
class Setting:
    """Prices, starts and jobs on which two versions of a model are compared.

    Attributes:
        prices: The whole price record; only days that neither version was trained on are used.
        starts: Number of starts to draw from those days, or the start times themselves.
        seed: Seed of the starts and of the policies' random numbers.
        billing: Billing preset of spot leases, by name.
        confidence: Confidence level of the interval of the difference.
        jobs: File of the job or sweep by kind of model, of a workflow for price chains; kinds without one are not
            compared.
        cookbook: For price chains: `market`, `deadline_h`, `most` and `risk_aversion` of the cookbooks.
        curves: Learning curves of one workload, which the trials of EarlyCurve's sweep follow.
        availability: Recorded capacity of the markets, where spell models are compared; None: always available.
        workers: Number of processes for the replays; verdicts do not depend on it.
    """

    prices: PriceHistory
    starts: int | Sequence[Time]
    jobs: Mapping[str, str | Path | None]
    seed: int = 0
    billing: str = "ec2-second"
    confidence: float = 0.95
    cookbook: Mapping[str, Any] | None = None
    curves: Sequence[Curve] = ()
    availability: Availability | None = None
    workers: int = 1


@dataclass(frozen=True)
class Judgement:
    """Verdict on a new version of a kind of model, with its reason.

    Attributes:
        verdict: The verdict.
        reason: Reason for it, in one sentence without its subject.
        policy: Name of the policy that asked it; empty: none was run.
        job: Name of the job that was run; empty: none was.
        starts_s: Start times of the runs, seconds since 1970.
        comparison: The runs of both versions; None: they were not compared.
    """

    verdict: Verdict
    reason: str
    policy: str = ""
    job: str = ""
    starts_s: tuple[float, ...] = ()
    comparison: VersionComparison | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a report."""
        told: dict[str, Any] = {"verdict": str(self.verdict), "reason": self.reason}
        if self.comparison is not None:
            days = {"starts": len(self.starts_s), "from": iso(min(self.starts_s)), "to": iso(max(self.starts_s))}
            told |= {"policy": self.policy, "job": self.job, **days, **self.comparison.to_dict()}
        return told


@dataclass(frozen=True)
class _Case:
    """The work on which a kind is compared: its jobs, where they may run, and when they are late."""

    kind: str
    work: ReplayedWork
    prices: PriceHistory
    deadline_s: float
    policy: str
    market: Market | None = None
    workflow: Workflow | None = None


def asking(kind: str) -> str:
    """The name of the first policy of the registry that asks a kind of model; empty: none does."""
    if kind == _CHAINS:
        return COOKBOOK
    return next((name for name, asked in ASK_MODELS.items() if kind in asked), "")


def judge(kind: str, champions: ModelBundle, candidates: ModelBundle, setting: Setting, folder: Path) -> Judgement:
    """Compare a candidate with the champion of its kind, all other models being the champions.

    Args:
        kind: Name of the part of a bundle.
        champions: The champions of all kinds that have one.
        candidates: The bundle whose part may become champion.
        setting: What they are compared on.
        folder: An empty folder for the bundles that are compared.

    Raises:
        InputError: A start is within the days that a version was trained on, or the work cannot be run with the
            candidate.
    """
    if kind not in champions.parts:
        return Judgement(Verdict.FIRST, "is the first champion of its kind: there was none")
    if champions.parts[kind].version == candidates.parts[kind].version:
        return Judgement(Verdict.UNCHANGED, "is the champion already: the same content")
    if kind == "speeds" and candidates.speeds:
        return Judgement(Verdict.MEASURED, "is the new champion: measured speeds replace older measurements")
    policy, file = asking(kind), setting.jobs.get(kind)
    if not policy or file is None:
        what = f"no job is named for {kind}" if policy else f"no policy asks {kind}"
        return Judgement(Verdict.NOT_ASKED, f"remains a challenger: {what}, so that it cannot save money")
    own = {name: (champions.folder, part) for name, part in champions.parts.items()}
    new = {**own, kind: (candidates.folder, candidates.parts[kind])}
    bundles = joined(folder / "champion", own), joined(folder / "challenger", new)
    if kind == _CURVES:
        bundles = _not_calibrated_on(bundles[0], setting.curves), _not_calibrated_on(bundles[1], setting.curves)
    until_s = max(each.trained_until_s for each in bundles)
    prices, given = setting.prices, not isinstance(setting.starts, int)
    if not given and until_s > prices.start_s:
        if until_s >= prices.end_s:
            told = f"these prices end before {iso(until_s)}, until when it or the champions were trained"
            return Judgement(Verdict.NO_LATER_DAYS, f"remains a challenger: {told}")
        prices = prices.window(until_s, prices.end_s)
    case = _case(kind, policy, file, replace(setting, prices=prices))
    scenario = Scenario(case.work.jobs, case.prices, billing_preset(setting.billing), seed=setting.seed)
    starts_s = start_times(scenario, setting.starts)
    for each in bundles:
        each.check_unseen(starts_s)
    runs = PolicyRuns.of(_run(case, bundles[1], starts_s, setting), case.deadline_s)
    name = case.work.sweep.name if case.work.sweep else case.work.jobs[0].name
    try:
        before = PolicyRuns.of(_run(case, bundles[0], starts_s, setting), case.deadline_s)
    except InputError as error:
        told = f"is the new champion: the old one cannot be used here: {error.problem}"
        return Judgement(Verdict.REPLACES, told, policy, name)
    found = compared(before, runs, setting.confidence)
    return Judgement(*judged(found, setting.confidence), policy, name, starts_s, found)


def _not_calibrated_on(bundle: ModelBundle, curves: Sequence[Curve]) -> ModelBundle:
    """The bundle with the EarlyCurve that was calibrated on other workloads than that of the curves."""
    if not curves:
        return bundle
    part = bundle.parts[_CURVES]
    file = bundle.folder / part.path
    found = read_calibration(file)
    write_calibration(replace(found, everywhere=found.for_workload(curves[0].workload)), file)
    parts = {**bundle.parts, _CURVES: part_of(bundle.folder, part.path)}
    return write_manifest(bundle.folder, parts)


def _case(kind: str, policy: str, file: str | Path, setting: Setting) -> _Case:
    if kind != _CHAINS:
        work = read_work(file)
        prices = work.allowed(setting.prices, default_catalogue())
        deadline_h = work.sweep.deadline_h if work.sweep else work.jobs[0].deadline_h
        return _Case(kind, work, prices, math.inf if deadline_h is None else deadline_h * HOUR_S, policy)
    about = setting.cookbook or {}
    named = {str(market): market for market in setting.prices}
    if about["market"] not in named:
        raise unknown_name("market", about["market"], named)
    market, workflow = named[about["market"]], Workflow.read(file)
    job = elastic_job(workflow, market.instance_type)
    prices = setting.prices.select([market])
    return _Case(kind, ReplayedWork((job,)), prices, about["deadline_h"] * HOUR_S + 1.0, policy, market, workflow)


def _run(case: _Case, bundle: ModelBundle, starts_s: Sequence[float], setting: Setting) -> tuple[Outcome, ...]:
    """The runs of the policy with the models of one bundle."""
    if case.market is not None and case.workflow is not None:
        return _played(case.market, case.workflow, case, bundle, starts_s, setting)
    (policy,) = policies_for([case.policy], case.work.sweep, bundle)
    found = backtest(
        case.work.jobs,
        [policy],
        case.prices,
        billing=setting.billing,
        starts=starts_s,
        seed=setting.seed,
        availability=setting.availability if case.kind == _SPELLS else None,
        curves=_curves_of(case.work.jobs, setting.curves),
        goals=Goals.of(case.work.sweep),
        models=bundle,
        workers=setting.workers,
    )
    return found.outcomes[policy.name]


def _played(
    market: Market,
    workflow: Workflow,
    case: _Case,
    bundle: ModelBundle,
    starts_s: Sequence[float],
    setting: Setting,
) -> tuple[Outcome, ...]:
    """A cookbook solved from the price chain for each start, which decides its hours of the week, and followed."""
    if market not in bundle.price_chains:
        raise unknown_name("market with a price chain", str(market), map(str, bundle.price_chains))
    chain, about = bundle.price_chains[market], setting.cookbook or {}
    billing = billing_preset(setting.billing)
    scenario = Scenario(case.work.jobs, case.prices, billing, delay=StartDelay(0.0, 0.0), seed=setting.seed)
    found = []
    for start_s in starts_s:
        charges = ChargeModel(chain.prices, *chain.steps(start_s, about["deadline_h"], HOUR_S))
        risk = about["risk_aversion"]
        book = solve(CookbookProblem(workflow, charges, most=about["most"], risk_aversion=risk))
        found.append(scenario.run(FollowCookbook(book, market), start_s))
    return tuple(found)


def _curves_of(jobs: Sequence[Job], curves: Sequence[Curve]) -> list[Curve | None]:
    """A curve for each job, stretched to its steps; jobs beyond the last curve have none."""
    if not curves:
        return []
    kept = [
        replace(curve, steps=curve.steps * (job.steps / curve.max_steps), max_steps=job.steps)
        for job, curve in zip(jobs, curves, strict=False)
    ]
    return [*kept, *[None] * (len(jobs) - len(kept))]
