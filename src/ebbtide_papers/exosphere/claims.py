"""ExoSphere's claims (6), each with the paper's figure and ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError, PolicyError
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.exosphere.portfolio import best_portfolio, greedy_portfolio
from ebbtide.policies.exosphere.solving import solve_portfolio
from ebbtide_papers.exosphere.mpi import EVERY_S, mpi_study
from ebbtide_papers.exosphere.packing import packing_reduction
from ebbtide_papers.exosphere.soft_signals import soft_signals
from ebbtide_papers.exosphere.study import (
    ABOUT,
    MEDIUM_ALPHA,
    Judged,
    PortfolioStudy,
    correlated,
    portfolio_study,
    solving_seconds,
)
from ebbtide_papers.exosphere.transiency import SHOWN_QUERY_S, transiency_study
from ebbtide_papers.reproduction import (
    ClaimRow,
    PaperClaim,
    Reproduction,
    Tolerance,
    around,
    at_least,
    at_most,
    half_the_effect,
    half_to_twice_the_effect,
)

_MARKETS = 2_500
_MOST_S = 1.0
_SHOWN_ALPHAS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)

_NO_RISK = "{} has no risk on these prices, so there is no ratio to it"

# Google's preemptible machines in 2017: all at almost the same discount (Figure 7c).
_FIXED_SAVING = (0.800, 0.802)


def reproduce_exosphere(
    prices: PriceHistory,
    regions: Mapping[str, PriceHistory],
    catalogue: Catalogue,
    *,
    inputs: dict[str, str],
    draws: int = 20,
    starts_every_s: float = EVERY_S,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> Reproduction:
    """The claims of Figures 3, 4, 7 to 9, 11 and 12, and of Table 1.

    A claim that cannot be worked out on these prices is a row without a figure, with the reason.

    Args:
        prices: Price history of auction markets.
        regions: Price histories of whole regions, by name, for the tables.
        catalogue: Instance types and their list prices.
        inputs: SHA-256 of the input files, by name.
        draws: Number of random moments at which markets are lost.
        starts_every_s: Time between starts of the MPI job, seconds.
        seed: Seed of all random numbers.
        on_progress: Called with the current activity.

    Raises:
        InputError: The record is too short to fit portfolios.
    """
    report = on_progress or (lambda _text: None)
    report("portfolios")
    study = portfolio_study(prices, catalogue)
    best_greedy = study.best_greedy()
    in_sample, later = study.against(best_greedy)
    fleet, fleet_later = study.against_lowest_cost()
    alone, _ = study.against(study.greedy[1])
    ours = study.medium
    of_later = study.later.judge(ours.weights)
    report(f"a portfolio of {_MARKETS} markets")
    seconds = solving_seconds(_MARKETS)
    report("sharing machines")
    packed = _packed(study, catalogue)
    reduction = float(np.mean([row["reduction"] for row in packed.values()]))
    count = len(ours.markets)
    about = f"at no more than {ABOUT:g} of the on-demand price less saved; {count} markets, the paper has 250"
    one = "what is cheapest by the core whenever it is asked for; over the market that saves most, known in "
    one += f"hindsight, {_words(alone)}: where the cheapest is the steadiest, too, there is nothing to gain"
    rows: tuple[ClaimRow, ...] = (
        PaperClaim(
            "what a portfolio of middling aversion saves",
            0.80,
            "fraction",
            at_least(0.7, "not more than 0.1 below the paper's"),
            "mean prices over all time",
        ).row("saving_vs_on_demand", ours.saving),
        PaperClaim(
            "risk over the best greedy choice's, of one market or of several",
            1 / 50,
            "ratio",
            at_most(2 / 50, "twice the paper's"),
            about,
        ).row("risk_vs_best_greedy", in_sample, missing=_NO_RISK.format("the greedy choice")),
        PaperClaim(
            "the same over Spot Fleet's lowest cost",
            1 / 100,
            "ratio",
            at_most(2 / 100, "twice the paper's"),
            f"{about}; {one}; later {_words(fleet_later)}",
        ).row("risk_vs_lowest_cost_fleet", fleet, missing=_NO_RISK.format("Spot Fleet's choice")),
        PaperClaim(
            "the same portfolio on later days",
            None,
            "fraction",
            at_least(0.7),
            "fitted on the first three fifths",
        ).row("saving_out_of_sample", of_later.saving),
        PaperClaim(
            "risk over best greedy's on later days",
            None,
            "ratio",
            at_most(0.5, "half of its risk"),
            "what is risky on later days is not known when portfolios are fitted",
        ).row(
            "risk_out_of_sample_vs_best_greedy",
            later,
            missing=_NO_RISK.format("the greedy choice, on later days,"),
        ),
        PaperClaim(
            "what sharing machines saves, mean of four spreads of aversion",
            0.50,
            "fraction",
            half_the_effect(0.50),
            "arrivals are generated; the wider portfolios are spread, the more machines stand half empty alone",
        ).row("packing_cost_reduction", reduction),
        PaperClaim(
            "to solve a portfolio of 2,500 markets",
            25.0,
            "s",
            at_most(_MOST_S),
            "another solver and another machine than the paper's",
        ).row("solve_seconds_2500", seconds),
    )
    report("losses of markets")
    lost = transiency_study(draws=draws, seed=seed)
    report("jobs that restart when a machine is lost")
    mpi: dict[str, Any]
    try:
        mpi = mpi_study(prices, study.split_s, catalogue, every_s=starts_every_s)
    except (InputError, PolicyError) as error:
        mpi = {"not_computed": str(error)}
    studies = {name: _region_study(name, region, catalogue, report) for name, region in regions.items()}
    rows += (*_losses(lost), *_mpi(mpi), *_whole_region(studies))
    tables: dict[str, Any] = {
        "losses": lost,
        "mpi": mpi,
        "soft_signals": soft_signals(prices, study.fitted.candidates),
        "markets": _markets(study.fitted),
        "frontier": _frontier(study),
        "greedy": _greedy(study),
        "correlated_markets": _correlated(study),
        "fixed_discount": _fixed_discount(study),
        "correlations": _correlations(study.fitted.covariance),
        "packing": packed,
        "regions": {name: _region(study, len(regions[name])) for name, study in studies.items()},
    }
    return Reproduction("exosphere", inputs, seed, rows, tables)


def _words(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "not defined"


_ON_ENGINE = "one market of one, or of fifteen, lost at a random moment; runs on the engine"

# Rows on the cost of losing a market (Figures 9, 10 and 12).
_LOSSES = {
    "spark_checkpoint_overhead_high_diversity": PaperClaim(
        "longer with checkpoints, many markets", 0.05, "fraction", around(0.05, 0.5), _ON_ENGINE
    ),
    "spark_checkpoint_overhead_low_diversity": PaperClaim(
        "longer with checkpoints, one market",
        0.16,
        "fraction",
        around(0.16, 0.5),
        "new machines take five minutes of the hour, and half an interval of 35 minutes is lost",
    ),
    "spark_no_checkpoint_overhead_high_diversity": PaperClaim(
        "longer without checkpoints, many markets",
        0.18,
        "fraction",
        around(0.18, 0.5),
        "ours counts the lost servers' work alone, Spark computes again what that was made from, too, so "
        "checkpoints pay there and not here",
    ),
    "bag_lazy_overhead": PaperClaim(
        "a bag of tasks, saved on a warning",
        0.01,
        "fraction",
        at_most(0.02, "not more than 0.01 above the paper's"),
        "new machines take five minutes of the hour, which no saving brings back",
    ),
    "bag_restart_overhead": PaperClaim(
        "a bag of tasks, begun again",
        0.02,
        "fraction",
        at_most(0.03, "not more than 0.01 above the paper's"),
        "new machines take five minutes of the hour, and half a task of ten minutes is lost",
    ),
    "black_swan_spark_batch": PaperClaim(
        "time when all markets go, over on demand",
        1.5,
        "ratio",
        half_to_twice_the_effect(1.5, none=1.0),
        "all are back after a quarter of an hour, a choice of ours",
    ),
    "black_swan_spark_interactive": PaperClaim(
        "the same of an answer that someone waits for",
        4.0,
        "ratio",
        half_to_twice_the_effect(4.0, none=1.0),
        f"an answer of {SHOWN_QUERY_S:g} s, which is not the paper's; table queries has others",
    ),
}


def _losses(found: Mapping[str, Any]) -> tuple[ClaimRow, ...]:
    spark, bag, swan = found["spark"], found["bag"], found["black_swan"]
    figures = {
        "spark_checkpoint_overhead_high_diversity": spark["high"]["checkpoints"],
        "spark_checkpoint_overhead_low_diversity": spark["low"]["checkpoints"],
        "spark_no_checkpoint_overhead_high_diversity": spark["high"]["none"],
        "bag_lazy_overhead": bag["lazy"],
        "bag_restart_overhead": bag["restart"],
        "black_swan_spark_batch": swan["batch"]["all_markets"],
        "black_swan_spark_interactive": swan["interactive"]["all_markets"],
    }
    beside = {
        "black_swan_spark_batch": swan["batch"]["one_market"],
        "black_swan_spark_interactive": swan["interactive"]["one_market"],
    }
    return tuple(
        claim.row(name, figures[name], note=f"{beside[name]:.2f} when one market goes" if name in beside else "")
        for name, claim in _LOSSES.items()
    )


# Rows on a job that restarts when a machine is lost (Figure 10).
_MPI = {
    "mpi_mttr_overhead": PaperClaim(
        "MPI in the market that saves most of those that live long",
        0.03,
        "fraction",
        at_most(0.06, "twice the paper's"),
    ),
    "mpi_cost_overhead": PaperClaim(
        "MPI in the cheapest market while it is paid",
        0.10,
        "fraction",
        Tolerance("half to twice the paper's (0.05 to 0.2)", 0.05, 0.2),
        "how often the cheapest market is lost is up to the record",
    ),
}


def _mpi(found: Mapping[str, Any]) -> tuple[ClaimRow, ...]:
    why = found.get("not_computed")
    if why is None and any(part["overhead"] is None for part in found.values()):
        runs = max(part["unfinished"] for part in found.values())
        why = (
            f"none of {runs} later starts ended within the record"
            if runs
            else "the days after those that portfolios are fitted on are fewer than the five that a run may need"
        )
    if why is not None:
        return tuple(claim.row(name, None, missing=why) for name, claim in _MPI.items())
    by_mttr, by_cost = found["mttr"], found["cost"]
    where = f"{next(iter(by_mttr['markets']))} most often, against {next(iter(by_cost['markets']))}; "
    where += f"{by_cost['runs']} later starts; {found['cost_now']['overhead']:.3f} where what is cheapest at the "
    where += f"start is taken, {found['mttr_diverse']['overhead']:.3f} over many markets"
    return (
        _MPI["mpi_mttr_overhead"].row("mpi_mttr_overhead", by_mttr["overhead"], note=where),
        _MPI["mpi_cost_overhead"].row("mpi_cost_overhead", by_cost["overhead"], note=where),
    )


def _markets(judged: Judged) -> dict[str, Any]:
    """Both definitions of E[S], and the time to revocation with a bid of the on-demand price."""
    found = judged.candidates
    return {
        str(market): {
            "saving_over_all_time": float(found.returns[place]),
            "saving_while_paid": float(found.returns_paid[place]),
            "mttr_h": _plain(float(found.mttr_s[place]) / HOUR_S),
            "revocations": int(found.revocations[place]),
            "on_demand_known": bool(found.is_listed[place]),
        }
        for place, market in enumerate(found.markets)
    }


def _frontier(study: PortfolioStudy) -> dict[str, Any]:
    """Figures 3 and 4, in and out of sample."""
    found = {}
    for alpha, portfolio in study.frontier.items():
        later = study.later.judge(portfolio.weights)
        found[f"{alpha:g}"] = {
            "saving": portfolio.saving,
            "risk": portfolio.risk,
            "later_saving": later.saving,
            "later_risk": later.risk,
            "mttr_h": _plain(portfolio.mttr_s(study.fitted.candidates) / HOUR_S),
            "weights": {str(market): weight for market, weight in list(portfolio.used.items())[:15]},
            "markets": len(portfolio.used),
        }
    return found


def _greedy(study: PortfolioStudy) -> dict[str, Any]:
    """Figure 7a: rivals by number of markets, and the risk of a portfolio with the same saving."""
    found = {}
    for count, rival in study.greedy.items():
        ratio, later = study.against(rival)
        found[str(count)] = {
            "saving": rival.saving,
            "risk": rival.risk,
            "portfolio_risk_ratio": _plain(ratio),
            "portfolio_risk_ratio_later": _plain(later),
        }
    return found


def _correlated(study: PortfolioStudy) -> dict[str, Any]:
    """Figure 7b: portfolios if all pairs of markets are correlated."""
    candidates, matrix = study.fitted.candidates, correlated(study.fitted.covariance)
    ours = {f"{alpha:g}": best_portfolio(candidates, matrix, alpha) for alpha in _SHOWN_ALPHAS}
    rivals = {str(count): greedy_portfolio(candidates, matrix, count) for count in study.greedy}
    return {
        "portfolios": {name: {"saving": one.saving, "risk": one.risk} for name, one in ours.items()},
        "greedy": {name: {"saving": one.saving, "risk": one.risk} for name, one in rivals.items()},
    }


def _fixed_discount(study: PortfolioStudy) -> dict[str, Any]:
    """Figure 7c: almost the same discount everywhere, revocations as here; lowest risk over that of one market."""
    matrix = study.fitted.covariance
    count = len(matrix)
    savings = np.linspace(*_FIXED_SAVING, count)
    least = float(min(_risk(savings, matrix, alpha) for alpha in _SHOWN_ALPHAS))
    alone = float(np.median(matrix.diagonal()))
    reduction = 1.0 - least / alone if alone > 0.0 else None
    return {"least_risk": least, "risk_of_the_median_market": alone, "reduction": reduction}


def _packed(study: PortfolioStudy, catalogue: Catalogue) -> dict[str, dict[str, float]]:
    """Figure 11: portfolios of low, medium and high risk aversion, at the prices paid."""
    alphas = {"low": min(study.frontier), "medium": MEDIUM_ALPHA, "high": max(study.frontier)}
    found = study.fitted.candidates
    usd_per_hour = dict(zip(found.markets, found.mean_paid_usd.tolist(), strict=True))
    shares = {name: study.frontier[alpha].shares for name, alpha in alphas.items()}
    return packing_reduction(shares, usd_per_hour, catalogue)


def _risk(savings: np.ndarray, matrix: np.ndarray, alpha: float) -> float:
    weights = solve_portfolio(savings, matrix, alpha)
    return float(weights @ matrix @ weights)


def _correlations(matrix: np.ndarray) -> dict[str, Any]:
    """Figure 8: quantiles of the correlations of two markets."""
    deviations = np.sqrt(np.maximum(matrix.diagonal(), 0.0))
    moving = deviations > 0.0
    scaled = matrix[np.ix_(moving, moving)] / np.outer(deviations[moving], deviations[moving])
    pairs = scaled[np.triu_indices(len(scaled), 1)]
    if not len(pairs):
        return {}
    shares = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
    found = {f"{share:g}": float(np.quantile(pairs, share)) for share in shares}
    return {"quantiles_of_correlation": found, "share_below_0.1": float((pairs < 0.1).mean())}


# Rows on the largest of the whole regions that are given: the paper's scale.
_REGION = {
    "region_saving_vs_on_demand": PaperClaim(
        "what a portfolio of middling aversion saves over a whole region",
        0.80,
        "fraction",
        at_least(0.7, "not more than 0.1 below the paper's"),
    ),
    "region_risk_vs_best_greedy": PaperClaim(
        "risk over the best greedy choice's there, of one market or of many",
        1 / 50,
        "ratio",
        at_most(2 / 50, "twice the paper's"),
    ),
    "region_risk_out_of_sample_vs_best_greedy": PaperClaim(
        "the same on later days",
        None,
        "ratio",
        at_most(0.5, "half of its risk"),
    ),
}


def _whole_region(studies: Mapping[str, PortfolioStudy | str]) -> tuple[ClaimRow, ...]:
    """The claims on portfolios over the region of most markets; rows without figures where none was worked out."""
    able = {name: study for name, study in studies.items() if isinstance(study, PortfolioStudy)}
    if not able:
        why = "; ".join(f"{name}: {study}" for name, study in studies.items()) or "no region is given (--region)"
        return tuple(claim.row(name, None, missing=why) for name, claim in _REGION.items())
    name, study = max(able.items(), key=lambda pair: len(pair[1].fitted.candidates.markets))
    rival = study.best_greedy()
    in_sample, later = study.against(rival)
    where = f"{name}, {len(study.fitted.candidates.markets)} markets whose prices vary alone; the greedy choice "
    where += f"has {len(rival.used)}"
    figures = dict(zip(_REGION, (study.medium.saving, in_sample, later), strict=True))
    missing = _NO_RISK.format("the greedy choice there")
    return tuple(claim.row(row, figures[row], note=where, missing=missing) for row, claim in _REGION.items())


def _region_study(
    name: str, prices: PriceHistory, catalogue: Catalogue, report: Callable[[str], None]
) -> PortfolioStudy | str:
    """Portfolios over a whole region, by how its prices vary together; or why there are none."""
    report(f"region {name}, {len(prices)} markets")
    try:
        return portfolio_study(prices, catalogue, covariance="price", alphas=_SHOWN_ALPHAS, counts=(1, 10, 100))
    except InputError as error:
        return f"not computed: {error}"


def _region(study: PortfolioStudy | str, count: int) -> dict[str, Any]:
    """The tables of a region."""
    if isinstance(study, str):
        empty: dict[str, Any] = {"frontier": {}, "greedy": {}, "correlations": {}}
        return {"markets": count, "note": study, **empty}
    known = study.fitted.candidates.is_listed
    return {
        "markets": len(known),
        "on_demand_known": int(known.sum()),
        "note": "where the on-demand price is not known, the highest price that the type had stands for it",
        "frontier": _frontier(study),
        "greedy": _greedy(study),
        "correlations": _correlations(study.fitted.covariance),
    }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
