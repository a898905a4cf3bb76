"""SpotTune's claims (IV), each with the paper's figure and ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebbtide.engine.outcome import Outcome
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide_papers.reproduction import (
    ClaimRow,
    PaperClaim,
    Reproduction,
    Tolerance,
    at_least,
    at_most,
    half_the_effect,
    half_to_twice_the_effect,
    ratio,
)
from ebbtide_papers.spottune.study import (
    SPEED_NOISE,
    Runs,
    StudyResult,
    means,
    moving_share,
    refunded_share,
    tables_of,
)

_PCR = "performance-cost rate"
_SPEED_FITTED = "how much faster a machine with more cores is was worked out from the paper's completion times"
_OTHER_PRICES = "other prices than the paper's two weeks of 2017, which are not public in full"


def reproduce_spottune(
    found: StudyResult,
    curve_scores: Mapping[str, Any],
    curves: Sequence[Curve],
    *,
    inputs: dict[str, str],
    seed: int,
) -> Reproduction:
    """The claims, from a study and from EarlyCurve's scores on the same curves.

    Args:
        found: The result of `study`.
        curve_scores: Scores `by_theta` of each method on the same curves; EarlyCurve with thresholds chosen on the
            other workloads.
        curves: The curves.
        inputs: SHA-256 of the input files, by name.
        seed: Seed of the study.
    """
    runs = found.outcomes
    rows = [
        _saving(runs, "cost_saving_full_vs_cheapest", "spottune-full", "cheapest-spot", 0.415),
        _saving(runs, "cost_saving_full_vs_fastest", "spottune-full", "fastest-spot", 0.8604),
        _saving(runs, "cost_saving_theta07_vs_full", "spottune", "spottune-full", 0.5716),
        _saving(runs, "cost_saving_theta07_vs_cheapest", "spottune", "cheapest-spot", 0.7564),
        _saving(runs, "cost_saving_theta07_vs_fastest", "spottune", "fastest-spot", 0.9418),
        *(_ratio(runs, ratio) for ratio in _RATIOS),
        _share(
            runs,
            "refunded_step_share",
            "share of steps run free of charge by SpotTune(0.7)",
            refunded_share,
            0.775,
            at_least(0.5, "half of the steps"),
            "delta and forecast decide, see the tables; where one market stands still far below its list price, "
            "no forecast of a refund elsewhere is worth leaving it for",
        ),
        _share(
            runs,
            "checkpoint_restore_share",
            "time of saving and restoring beside that of training",
            moving_share,
            0.1,
            at_most(0.1, "the paper's upper bound"),
            "",
        ),
        *(_accuracy(curve_scores, theta, *each) for theta in _LATE for each in (("top1", 0.7), ("top3", 1.0))),
        _curve_error(curve_scores),
        _step_times(curves),
        *(_forecast(found.forecast_scores, key, paper) for key, paper in _FORECASTS.items()),
        _saving(runs, "revpred_vs_tributary_cost", "spottune", "spottune-tributary", 0.25),
        _chosen_forecast(found),
        _noise(found),
        _no_refund(found.without_refund),
        _saving(runs, "cost_saving_bid_vs_cheapest", "spottune-bid", "cheapest-spot", None),
        _distance(runs),
    ]
    return Reproduction("spottune", inputs, seed, tuple(rows), tables_of(found, curve_scores))


def _usd(outcome: Outcome) -> float:
    return outcome.cost_usd


def _hours(outcome: Outcome) -> float:
    return outcome.makespan_s / 3600.0


def _mean(runs: Runs, policy: str, of: Callable[[Outcome], float]) -> float:
    """Mean over workloads, with equal weights; NaN where no run ended under every policy."""
    known = [value for value in means(runs, policy, of).values() if math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan


def _mean_hours(runs: Runs, policy: str) -> float:
    return _mean(runs, policy, _hours)


def _pcr(runs: Runs, policy: str) -> float:
    """1 / (completion time x cost), of the means, since a single free run would have an infinite rate."""
    return ratio(1.0, _mean_hours(runs, policy) * _mean(runs, policy, _usd))


def _why(runs: Runs, *policies: str) -> str:
    """Reason why a figure of these policies is not defined; empty: none is known."""
    if not all(math.isfinite(_mean(runs, policy, _usd)) for policy in policies):
        return "from no start did every policy finish"
    free = [policy for policy in policies if _mean(runs, policy, _usd) == 0.0]
    return f"{' and '.join(free)} cost nothing here, all of it is refunded" if free else ""


def _saving(runs: Runs, row_id: str, policy: str, rival: str, paper: float | None) -> ClaimRow:
    saving = 1.0 - ratio(_mean(runs, policy, _usd), _mean(runs, rival, _usd))
    ours, theirs = means(runs, policy, _usd), means(runs, rival, _usd)
    each = {name: 1.0 - ratio(usd, theirs[name]) for name, usd in ours.items()}
    by_workload = ", ".join(
        f"{name} {one:.0%}" if math.isfinite(one) else f"{name} -" for name, one in each.items()
    )
    size = at_least(0.1, "a tenth saved") if paper is None else half_the_effect(paper)
    claim = PaperClaim(f"what {policy} saves against {rival}", paper, "fraction", size, _OTHER_PRICES)
    return claim.row(row_id, saving, note=by_workload, missing=_why(runs, policy, rival))


@dataclass(frozen=True)
class _Ratio:
    """A claim about the ratio of two policies' figures.

    Attributes:
        row_id: Short name of the claim.
        above: The policy whose figure is divided.
        below: The policy whose figure it is divided by.
        of: The figure of a policy in all runs.
        paper: The paper's ratio of the two.
        claim: The claim in words.
        fitted: Whether the speed of machines was fitted to the paper's ratio; then neither more nor less will do.
    """

    row_id: str
    above: str
    below: str
    of: Callable[[Runs, str], float]
    paper: float
    claim: str
    fitted: bool = False


_RATIOS = (
    _Ratio(
        "jct_speedup_theta07_vs_cheapest",
        "cheapest-spot",
        "spottune",
        _mean_hours,
        2.14,
        "completion time of cheapest-spot / SpotTune(0.7)",
        fitted=True,
    ),
    _Ratio(
        "jct_ratio_theta07_vs_fastest",
        "fastest-spot",
        "spottune",
        _mean_hours,
        0.6459,
        "completion time of fastest-spot / SpotTune(0.7); the paper has SpotTune between its baselines",
        fitted=True,
    ),
    *(
        _Ratio(row_id, above, below, _pcr, paper, f"{_PCR} of {above} / {below}")
        for row_id, above, below, paper in (
            ("pcr_full_vs_cheapest", "spottune-full", "cheapest-spot", 2.65),
            ("pcr_full_vs_fastest", "spottune-full", "fastest-spot", 3.36),
            ("pcr_theta07_vs_cheapest", "spottune", "cheapest-spot", 13.11),
            ("pcr_theta07_vs_fastest", "spottune", "fastest-spot", 16.61),
        )
    ),
)


def _ratio(runs: Runs, claimed: _Ratio) -> ClaimRow:
    over = ratio(claimed.of(runs, claimed.above), claimed.of(runs, claimed.below))
    note, limits = _OTHER_PRICES, half_the_effect
    if claimed.fitted:
        note, limits = f"{_OTHER_PRICES}; {_SPEED_FITTED}", half_to_twice_the_effect
    size = limits(claimed.paper, none=1.0)
    claim = PaperClaim(claimed.claim, claimed.paper, "ratio", size, note, claimed.fitted)
    return claim.row(claimed.row_id, over, missing=_why(runs, claimed.above, claimed.below))


def _share(
    runs: Runs,
    row_id: str,
    claim: str,
    of: Callable[[Outcome], float],
    paper: float,
    size: Tolerance,
    note: str,
) -> ClaimRow:
    share = _mean(runs, "spottune", of)
    return PaperClaim(claim, paper, "fraction", size, note).row(row_id, share, missing=_why(runs, "spottune"))


# Thetas at which the paper has the three best found always (Figure 8c).
_LATE = (0.7, 0.8, 0.9)
_RIVALS = ("last-value", "slaq")
_OTHER_CURVES = "other trainings than the paper's, of the same models and settings"


def _accuracy(scores: Mapping[str, Any], theta: float, key: str, paper: float) -> ClaimRow:
    """Row on how often the best by prediction is the best in the end, or among the best three."""
    at = {name: float(own["by_theta"][f"{theta:g}"][key]) for name, own in scores.items()}
    size = at_least(paper - 1.0 / 6.0, "not more than one workload of six below the paper's")
    claim = PaperClaim(f"EarlyCurve's {key} accuracy at theta {theta:g}", paper, "fraction", size, _OTHER_CURVES)
    beside = ", ".join(f"{name} {at[name]:.2f}" for name in _RIVALS)
    return claim.row(f"{key}_accuracy_theta{round(10 * theta):02d}", at["earlycurve"], note=beside)


def _curve_error(scores: Mapping[str, Any]) -> ClaimRow:
    """Figure 11: the error of predicted final metrics beside SLAQ's, and beside the last value's."""
    error = {name: float(own["by_theta"]["0.7"]["relative_error_mean"]) for name, own in scores.items()}
    claim = PaperClaim(
        "EarlyCurve's error of final metrics / SLAQ's, at theta 0.7",
        None,
        "ratio",
        at_most(0.9, "a tenth less; the paper says significantly less, in a figure"),
        _OTHER_CURVES,
    )
    note = ", ".join(f"{name} {value:.3f}" for name, value in error.items())
    return claim.row("earlycurve_error_vs_slaq_theta07", ratio(error["earlycurve"], error["slaq"]), note=note)


def _step_times(curves: Sequence[Curve]) -> ClaimRow:
    """IV-A: how much the time of a step varies within a training."""
    claim = PaperClaim(
        "coefficient of variation of a trial's time per step, mean over trials",
        0.1,
        "fraction",
        at_most(0.1, "the paper's upper bound"),
        "trials of milliseconds a step, on cores that others share",
    )
    found = [_variation(curve) for curve in curves if curve.train_seconds is not None]
    share = f"below 0.1 in {float(np.mean(np.array(found) < 0.1)):.0%} of them" if found else ""
    value = float(np.mean(found)) if found else math.nan
    return claim.row("step_time_variation", value, note=share, missing="the curves do not tell times of training")


def _variation(curve: Curve) -> float:
    assert curve.train_seconds is not None
    seconds, steps = (np.diff(np.append(0.0, values)) for values in (curve.train_seconds, curve.steps))
    each = seconds / steps
    return float(each.std() / each.mean())


# By how much RevPred's scores are above Tributary's (IV-D).
_FORECASTS = {"accuracy": 1.2032, "f1": 1.3403}


def _forecast(scores: Mapping[str, Mapping[str, Any]], key: str, paper: float) -> ClaimRow:
    ours, theirs = (scores[name][key] for name in ("revpred", "tributary"))
    claim = PaperClaim(
        f"{key} of RevPred's forecasts / Tributary's, max prices as published",
        paper,
        "ratio",
        half_the_effect(paper, none=1.0),
        _OTHER_PRICES,
    )
    defined = ours is not None and theirs is not None
    note = f"{ours:.3f} and {theirs:.3f} on the days after those of training" if defined else ""
    value = ratio(float(ours), float(theirs)) if defined else math.nan
    why = "no price exceeded its max price on the later days"
    return claim.row(f"revpred_{key}_vs_tributary", value, note=note, missing=why)


def _chosen_forecast(found: StudyResult) -> ClaimRow:
    best = found.best_forecast
    policy = "spottune" if best == "revpred" else f"spottune-{best}"
    over = ratio(_mean(found.outcomes, policy, _usd), _mean(found.outcomes, "spottune", _usd))
    claim = PaperClaim(
        "cost with the forecast whose chosen offers were cheapest on earlier days / with RevPred",
        None,
        "ratio",
        at_most(1.03),
        "a claim of ours: forecasts, and the lower of two, are judged by the refunds of what they choose",
    )
    each = ", ".join(
        f"{name} {one.usd:.3f} with {one.free:.0%} free" for name, one in sorted(found.chosen_offers.items())
    )
    note = f"{best} was chosen; earlier days' cost beside the cheapest offer without refunds: {each}"
    return claim.row("chosen_forecast_vs_revpred_cost", over, note=note, missing=_why(found.outcomes, policy))


def _noise(found: StudyResult) -> ClaimRow:
    over = ratio(_mean(found.with_noise, "spottune", _usd), _mean(found.outcomes, "spottune", _usd))
    claim = PaperClaim(
        f"cost of SpotTune(0.7) where machines of a type differ in speed by {SPEED_NOISE:.0%} / where they do not",
        None,
        "ratio",
        at_most(1.1),
        "a claim of ours: speeds are learnt from what is measured, noise included; when machines are asked for "
        "changes with them, and so which hours are free",
    )
    ours, without = found.with_noise, found.outcomes
    apart = [
        noisy.cost_usd - even.cost_usd
        for name, by_policy in ours.items()
        for noisy, even in zip(by_policy["spottune"], without[name]["spottune"], strict=True)
    ]
    error = float(np.std(apart) / math.sqrt(max(len(apart), 1)))
    note = f"{np.mean(apart):+.3f} USD, standard error of the paired difference {error:.3f}"
    return claim.row("speed_noise_cost_ratio", over, note=note, missing=_why(without, "spottune"))


def _distance(runs: Runs) -> ClaimRow:
    ours, frequency, bound = (
        _mean(runs, f"spottune-{name}", _usd) for name in ("bid", "past-frequency", "foresight")
    )
    share = ratio(frequency - ours, max(frequency - bound, 0.0))
    claim = "what spottune-bid closes of the distance from SpotTune with past frequencies to one that foresees"
    exact = _mean(runs, "spottune-bid-foresight", _usd)
    note = (
        f"mean USD {frequency:.3f}, {ours:.3f}, {bound:.3f}; with max prices of its own, a bid that knows when "
        f"each revocation comes: {exact:.3f}"
    )
    why = "from no start did every policy finish"
    if math.isfinite(bound):
        why = "one that foresees costs no less here than one with past frequencies: there is no distance to close"
    half = PaperClaim(claim, None, "fraction", at_least(0.5), "what is left lies in the minute of a revocation")
    return half.row("bid_share_of_distance_to_foresight", share, note=note, missing=why)


def _no_refund(runs: Runs) -> ClaimRow:
    over = ratio(_mean(runs, "spottune-full", _usd), _mean(runs, "cheapest-spot", _usd))
    text = "without refunds (gcp-preemptible), cost of SpotTune(1.0) / cheapest-spot"
    claim = PaperClaim(
        text, None, "ratio", at_most(1.03), "a claim of ours: what is left of it where nothing is refunded"
    )
    return claim.row("no_refund_cost_vs_cheapest", over, missing=_why(runs, "spottune-full", "cheapest-spot"))
