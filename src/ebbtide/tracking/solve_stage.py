"""Decisions of the five systems at the end of the training days, as files of a model bundle.

Each function solves with the policy's own solver on what its policy would see at that moment, writes a file, and
gives its expected cost and risk. Cümülön-D's cookbook is played by a policy; the others are records of decisions,
since prices have changed when a run begins and its policy solves anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from ebbtide.base.files import replacing, write_text
from ebbtide.base.input_files import read_json
from ebbtide.base.json_values import json_text
from ebbtide.base.utc import DAY_S, HOUR_S, iso, to_epoch_s
from ebbtide.errors import unknown_name
from ebbtide.forecasts.bundle import SOLVED, BundlePart, ModelBundle, part_of
from ebbtide.forecasts.capacity.models import default_spell_models
from ebbtide.jobs.job_files import ReplayedWork, read_work
from ebbtide.jobs.workflow import Workflow
from ebbtide.market.billing import billing_preset
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.api.view import View
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
from ebbtide.policies.cookbook.solving import solve
from ebbtide.policies.cookbook.storage import load_cookbook, save_cookbook
from ebbtide.policies.deadline.policy import Deadline
from ebbtide.policies.deadline.table import cost_at_start
from ebbtide.policies.dynamic_pricing.policy import DynamicPricing, Goal
from ebbtide.policies.exosphere.allocation import CoresAndMemory, allocate
from ebbtide.policies.exosphere.applications import PortfolioRequest
from ebbtide.policies.exosphere.portfolio import assessed
from ebbtide.policies.for_job import policy_for
from ebbtide.policies.registry import policy
from ebbtide.policies.spottune.offers import Offer
from ebbtide.policies.spottune.policy import SpotTune
from ebbtide.replay.scenario import Scenario

# Weight of the standard deviation in a second table, from which the deviation of the first follows.
_GAMMA = 0.01

# Distance of the past starts over which the cost of an allocation is compared, seconds.
_EVERY_S = 6 * HOUR_S


@dataclass(frozen=True)
class Known:
    """Models and prices that are known when a problem is solved.

    Attributes:
        models: The bundle of trained models.
        prices: Prices of the training days, without the days held back.
        file: The price file that they come from.
    """

    models: ModelBundle
    prices: PriceHistory
    file: Path

    @property
    def window_s(self) -> tuple[float, float]:
        """Start and end of the training days, seconds since 1970."""
        return self.prices.start_s, self.prices.end_s

    def view(self, work: ReplayedWork, policy: Policy, billing: str) -> View:
        """View that a policy has of some work and its markets at the end of the training days."""
        allowed = work.allowed(self.prices, default_catalogue())
        return Scenario(work.jobs, allowed, billing_preset(billing)).at_end(policy)


@dataclass(frozen=True)
class Solved:
    """Something that was solved, and its file.

    Attributes:
        kind: Name of the part in the bundle, such as `bids`.
        path: File below the bundle's folder, with forward slashes.
        window_s: Start and end of the market data that decided, seconds since 1970.
        scores: Expected cost and risk, by name; USD or probabilities.
        about: What it was solved for, by name, for tracked runs.
        data: Files that it was solved from, beside the models.
    """

    kind: str
    path: str
    window_s: tuple[float, float]
    scores: Mapping[str, float]
    about: Mapping[str, Any]
    data: Sequence[Path] = field(default=())

    def part(self, folder: Path) -> BundlePart:
        """Entry of the solution in the bundle's manifest."""
        return part_of(folder, self.path, window_s=self.window_s, data=self.data, scores=self.scores)


def solve_cookbook(known: Known, settings: Mapping[str, Any], folder: Path) -> Solved:
    """Cümülön-D: how many machines to hold at each price, time and work left, on a market with a price chain.

    Args:
        known: Models and prices.
        settings: `job`, `market`, `deadline_h`, `start`, `most`, `risk_aversion`, `on_demand_usd_per_hour`.
        folder: The bundle's folder.

    Raises:
        InputError: The market has no chain, or the deadline cannot be met.
    """
    chains = {str(market): chain for market, chain in known.models.price_chains.items()}
    name = settings["market"]
    if name not in chains:
        raise unknown_name("market with a price chain", name, chains)
    part = known.models.parts["price-chains"]
    assert part.trained_from_s is not None
    assert part.trained_until_s is not None
    window = part.trained_from_s, part.trained_until_s
    start_s = to_epoch_s(settings["start"]) if settings["start"] is not None else window[1]
    market = ChargeModel(chains[name].prices, *chains[name].steps(start_s, settings["deadline_h"], HOUR_S))
    if settings["on_demand_usd_per_hour"] is not None:
        market = market.with_on_demand(settings["on_demand_usd_per_hour"])
    problem = CookbookProblem(
        Workflow.read(settings["job"]),
        market,
        most=settings["most"],
        risk_aversion=settings["risk_aversion"],
    )
    book = solve(problem)
    path = f"{SOLVED}/cookbook/cookbook.safetensors"
    save_cookbook(book, folder / path)
    about = {
        "workflow": problem.workflow.name,
        "deadline_h": market.steps * problem.step_h,
        "most": problem.most,
        "risk_aversion": problem.risk_aversion,
        "work_h": problem.workflow.work_h,
        "market": name,
        **_span(window),
    }
    return Solved("cookbook", path, window, _expected_of(book), about)


def solve_bids(known: Known, settings: Mapping[str, Any], folder: Path) -> Solved:
    """SpotTune: the max price that it would bid in each market, by its own rule and by `spottune-bid`.

    Args:
        known: Models and prices.
        settings: `job` and `billing`.
        folder: The bundle's folder.

    Raises:
        InputError: No market can run the job.
    """
    work, billing = read_work(settings["job"]), settings["billing"]
    rules: dict[str, Any] = {}
    scores: dict[str, float] = {}
    for name in ("spottune", "spottune-bid"):
        chosen = policy_for(work.sweep, name, None, known.models) if work.sweep else policy(name, known.models)
        rule = _spottune(chosen)
        view = known.view(work, rule, billing)
        offers = sorted(rule.offers(view, view.jobs[0]), key=lambda one: (one.usd_per_step, one.market))
        rules[name] = {"best": str(offers[0].market), "offers": [_plain_offer(offer) for offer in offers]}
        if name == "spottune":
            scores = _cost_of_offer(view, offers[0])
    content = {"job": settings["job"], "billing": billing, "at": iso(known.prices.end_s), "policies": rules}
    about = {"job": settings["job"], "billing": billing, "market": rules["spottune"]["best"]}
    return _as_json("bids", known, folder, content, about, scores)


def solve_allocation(known: Known, settings: Mapping[str, Any], folder: Path) -> Solved:
    """Dynamic Pricing: the share of time of each job on each instance type, and machines and hours by type.

    Args:
        known: Models and prices.
        settings: `job`, `goal` (throughput, cost or makespan) and `quotas` (machines by instance type).
        folder: The bundle's folder.

    Raises:
        InputError: No job can run now, or limits cannot all be met.
    """
    work = read_work(settings["job"])
    rule = DynamicPricing(Goal(settings["goal"]), quotas=dict(settings["quotas"]))
    view = known.view(work, rule, "ec2-second")
    found, markets = rule.allocation(view)
    hours = found.machine_hours
    spent_h = dict(zip(found.problem.types, hours.sum(axis=0).tolist(), strict=True))
    types = {
        kind: {"market": str(markets[kind]), "machines": machines, "hours": spent_h[kind]}
        for kind, machines in zip(found.problem.types, found.shares.sum(axis=0).tolist(), strict=True)
        if spent_h[kind] > 0.0
    }
    jobs = {
        job: {kind: share for kind, share in zip(found.problem.types, row, strict=True) if share > 0.0}
        for job, row in zip(found.problem.jobs, found.shares.tolist(), strict=True)
    }
    lasts_h = float(found.duration_h.max())
    by_market = {markets[kind]: spent_h[kind] for kind in types}
    scores = {
        "expected_usd": found.expected_usd,
        "deviation_usd": _past_deviation(known.prices, by_market, lasts_h),
        "makespan_h": lasts_h,
    }
    content = {"job": settings["job"], "goal": settings["goal"], "types": types, "shares_of_time": jobs}
    about = {"job": settings["job"], "goal": settings["goal"], "types": ", ".join(types)}
    return _as_json("allocation", known, folder, content, about, scores)


def solve_portfolio(known: Known, settings: Mapping[str, Any], folder: Path) -> Solved:
    """ExoSphere: the share of a cluster in each market, for the saving and the risk that all are lost together.

    Args:
        known: Models and prices.
        settings: `job`, `alpha`, `covariance` and `history_days`.
        folder: The bundle's folder.

    Raises:
        InputError: No market that can run the job can be rented now.
    """
    (job,) = (work := read_work(settings["job"])).jobs
    view = known.view(work, policy("exosphere"), "ec2-second")
    cores = min(view.machine(market).vcpus for market in view.markets if view.steps_per_s(job, market) > 0.0)
    request = PortfolioRequest(CoresAndMemory(job.most_machines * cores, 0.0), settings["alpha"])
    history_s = settings["history_days"] * DAY_S
    found = assessed(view, job, request, history_s=history_s, covariance=settings["covariance"])
    shares, markets = found.portfolio.shares, found.candidates.markets
    machines = allocate(shares, request.resources, view.machine).new
    # Machine-hours in each market, if each does its share of the work.
    slower = job.most_machines / job.speedup_of(job.most_machines)
    per_share_h = np.array([job.steps / (view.steps_per_s(job, market) * HOUR_S) for market in markets]) * slower
    weights = np.array([shares.get(market, 0.0) for market in markets])
    listed_usd = weights * per_share_h * found.candidates.on_demand_usd
    mttr_s = found.portfolio.mttr_s(found.candidates)
    scores = {
        "expected_usd": float(weights * per_share_h @ found.candidates.mean_usd),
        "deviation_usd": math.sqrt(max(float(listed_usd @ found.prices @ listed_usd), 0.0)),
        "on_demand_usd": float(listed_usd.sum()),
        "saving": found.portfolio.saving,
        "risk": found.portfolio.risk,
        "mttr_h": mttr_s / HOUR_S,
    }
    rows = {str(market): {"share": share, "machines": machines.get(market, 0)} for market, share in shares.items()}
    content = {"job": settings["job"], "alpha": settings["alpha"], "markets": rows}
    about = {name: settings[name] for name in ("job", "alpha", "covariance")} | {"markets": len(rows)}
    return _as_json("portfolio", known, folder, content, about, scores)


def solve_deadline(known: Known, settings: Mapping[str, Any], folder: Path) -> Solved:
    """Deadlines: the expected cost from every state on, by which `deadline` chooses spot, on demand or waiting.

    Args:
        known: Models and prices.
        settings: `job`, whose file has a deadline.
        folder: The bundle's folder.

    Raises:
        InputError: The deadline cannot be kept, or no market can run the job.
    """
    work = read_work(settings["job"])
    deadline_h = math.inf if work.sweep is None else work.sweep.deadline_h or math.inf
    models = known.models.spells or default_spell_models()
    rule = Deadline(deadline_s=deadline_h * HOUR_S, models=models)
    view = known.view(work, rule, "ec2-second")
    table, risky = (rule.table(view, view.jobs[0], weight) for weight in (0.0, _GAMMA))
    expected_usd, deviation_usd = cost_at_start(table, risky, _GAMMA)
    problem = table.problem
    up = [model.share_up for model in table.models]
    scores = {
        "expected_usd": expected_usd,
        "deviation_usd": deviation_usd,
        "on_demand_usd": (problem.work_h + problem.restart_h) * problem.on_demand_usd_per_hour,
        "spot_available": 1.0 - math.prod(1.0 - share for share in up),
    }
    about = {
        "job": settings["job"],
        "work_h": problem.work_h,
        "deadline_h": problem.deadline_h,
        "zones": len(problem.zones),
        "spells": "bundle" if known.models.spells else "package",
    }
    path = f"{SOLVED}/deadline/deadline.safetensors"
    zones = {"zones": problem.zones, "spot_usd_per_hour": problem.spot_usd_per_hour, "share_up": up}
    steps = {"tick_s": table.tick_s, "slack_step_s": table.step_s, "home": table.home}
    with replacing(folder / path) as temporary:
        save_file({"usd": table.usd}, temporary, {"ebbtide-deadline": json.dumps({**about, **zones, **steps})})
    return Solved("deadline", path, known.window_s, scores, about | _span(known.window_s), [known.file])


# The solver of each artifact, by the name of its section in params.yaml.
SOLVERS = {
    "cookbook": solve_cookbook,
    "bids": solve_bids,
    "allocation": solve_allocation,
    "portfolio": solve_portfolio,
    "deadline": solve_deadline,
}


# Names of what each solver decides, for reports.
_SYSTEMS = {
    "cookbook": "Cümülön-D",
    "bids": "SpotTune",
    "allocation": "Dynamic Pricing",
    "portfolio": "ExoSphere",
    "deadline": "Deadline",
}


def solved_rows(folder: Path) -> list[dict[str, str]]:
    """Rows of a report: job and decision of each system, with expected cost and its standard deviation.

    Args:
        folder: The model bundle's folder.
    """
    parts = ModelBundle.read(folder).parts
    return [
        {
            "system": _SYSTEMS[kind],
            **_decision(kind, folder / parts[kind].path),
            "expected": _rounded(parts[kind].scores["expected_usd"]),
            "deviation": _rounded(parts[kind].scores["deviation_usd"]),
        }
        for kind in SOLVERS
        if kind in parts
    ]


def _decision(kind: str, file: Path) -> dict[str, str]:
    """Job and decision of a solved part in words."""
    if kind == "cookbook":
        told = "how many machines to hold at each price, time and work left"
        return {"job": load_cookbook(file).problem.workflow.name, "decision": told}
    if kind == "deadline":
        with safe_open(file, framework="numpy") as tensors:
            about = json.loads(tensors.metadata()["ebbtide-deadline"])
        told = f"when to use spot in {len(about['zones'])} zones, on-demand machines, or none"
        return {"job": Path(about["job"]).stem, "decision": told}
    content = read_json(file)
    if kind == "bids":
        offers = content["policies"]["spottune"]
        prices = {offer["market"]: offer["max_price_usd_per_hour"] for offer in offers["offers"]}
        price = prices.get(offers["best"])
        limit = "without a max price" if price is None else f"max price {price:.4g} USD/h"
        told = f"{offers['best']}, {limit}"
    else:
        machines = content["types" if kind == "allocation" else "markets"]
        told = ", ".join(f"{row['machines']:g} {name}" for name, row in machines.items() if row["machines"])
    return {"job": Path(content["job"]).stem, "decision": told}


def _rounded(usd: float | None) -> str:
    """A cost to a cent, or to three digits where it is less."""
    if usd is None:
        return "-"
    return f"{usd:.2f}" if usd >= 0.995 or usd < 1e-6 else f"{usd:.3g}"


def _as_json(
    kind: str,
    known: Known,
    folder: Path,
    content: Mapping[str, Any],
    about: Mapping[str, Any],
    scores: Mapping[str, float],
) -> Solved:
    path = f"{SOLVED}/{kind}/{kind}.json"
    write_text(folder / path, json_text({**content, "scores": dict(scores)}))
    return Solved(kind, path, known.window_s, scores, {**about, **_span(known.window_s)}, [known.file])


def _span(window_s: tuple[float, float]) -> dict[str, str]:
    return {"from": iso(window_s[0]), "until": iso(window_s[1])}


def _expected_of(book: Cookbook) -> dict[str, float]:
    """Expected cost of a cookbook at the middle price of its market, and its standard deviation, USD."""
    middle = len(book.problem.market.prices) // 2
    return {
        "expected_usd": float(book.mean_usd[0, -1, 0, middle]),
        "deviation_usd": float(book.deviation_usd[0, -1, 0, middle]),
        "price_usd_per_hour": float(book.problem.market.prices[middle]),
    }


def _spottune(chosen: Policy) -> SpotTune:
    """SpotTune itself, with the job's own speeds; a sweep's budget does not change its offers."""
    found = getattr(chosen, "policy", chosen)
    assert isinstance(found, SpotTune)
    return replace(found, measured=True)


def _plain_offer(offer: Offer) -> dict[str, Any]:
    """An offer as plain values; not a number: not computed, since other markets are better anyway."""
    return {
        "market": str(offer.market),
        "max_price_usd_per_hour": offer.max_price_usd_per_hour,
        "usd_per_step": offer.usd_per_step,
        "revoked_within_the_hour": offer.revoked,
        "seconds_per_step": offer.seconds_per_step,
    }


def _cost_of_offer(view: View, offer: Offer) -> dict[str, float]:
    """Cost of the whole job at an offer: each hour is paid, or refunded if the machine is revoked within it."""
    hours = view.jobs[0].job.steps * offer.seconds_per_step / HOUR_S
    price, refund = view.mean_price(offer.market, HOUR_S), offer.revoked
    return {
        "expected_usd": hours * price * (1.0 - refund),
        "deviation_usd": price * math.sqrt(hours * refund * (1.0 - refund)),
        "refund_probability": refund,
        "usd_per_step": offer.usd_per_step,
    }


def _past_deviation(prices: PriceHistory, hours: Mapping[Market, float], lasts_h: float) -> float:
    """Standard deviation of the cost of machine-hours at prices of the past, begun every few hours, USD."""
    last_s = prices.end_s - lasts_h * HOUR_S
    starts_s = np.arange(prices.start_s, last_s, _EVERY_S)
    costs = [
        sum(spent * prices[market].mean(start_s, start_s + lasts_h * HOUR_S) for market, spent in hours.items())
        for start_s in starts_s.tolist()
    ]
    return float(np.nanstd(costs, ddof=1)) if len(costs) > 1 else 0.0
