"""SpotTune's evaluation (IV) on other prices: its policies, its baselines and its bounds.

The predictors are trained on the first part of the history; every run starts after it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ebbtide.backtesting.backtest import backtest
from ebbtide.base.utc import DAY_S, HOUR_S, MINUTE_S
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.forecasts.learning_curves.calibration import default_calibration
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.forecasts.revocation.evaluation import DELTAS, Answers, Questions, asked_max_prices, scores_of
from ebbtide.forecasts.revocation.forecasts import Forecast, Foresight, Learnt, PastFrequency
from ebbtide.forecasts.revocation.minutes import Minutes, minutes_of
from ebbtide.forecasts.revocation.models import revpred, tributary
from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.forecasts.revocation.passage import ForeseenPassages
from ebbtide.forecasts.revocation.splits import VALIDATION_SHARE, split_at
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.baselines import CheapestSpot, FastestSpot
from ebbtide.policies.spottune.offers import BestBid, Provisioner, StepCost
from ebbtide.policies.spottune.policy import SpotTune
from ebbtide.replay.starts import work_s
from ebbtide_papers.spottune.combining import ChosenOffers, LowestOf, chosen_offers
from ebbtide_papers.spottune.sweeps import WorkloadTrials, sweeps_of

# Share of the history for training, and the most days.
_TRAIN_SHARE = 0.4
_TRAIN_DAYS = 40.0

# The label of a sample looks an hour ahead; this much is left out between training and scoring, days.
_GAP_D = 2.0 / 24.0

# Forecasts that are judged by what they choose, and the minutes from one choice to the next.
_CANDIDATES = ("revpred", "tributary", "past-frequency", "lowest")
_JUDGED_MIN = 30

# Standard deviation of the logarithm of a machine's speed: virtual machines of one type differ by about a tenth.
SPEED_NOISE = 0.1

# Time after a start, in units of the longest trial's work: for waiting, and a second round of the best trials.
_ROOM = 3.0

# Values of theta in Fig. 8; 1 is `spottune-full`.
_THETAS = tuple(step / 10 for step in range(1, 10))

OnProgress = Callable[[str], None]

# Outcomes of each start, by workload and policy.
Runs = Mapping[str, Mapping[str, tuple[Outcome, ...]]]


@dataclass(frozen=True)
class StudyResult:
    """The results of the study.

    Attributes:
        outcomes: Outcomes of each start, by workload and policy.
        without_refund: Outcomes of two policies under a billing rule without refunds.
        with_noise: Outcomes of SpotTune(0.7) where machines of one type differ in speed by `SPEED_NOISE`.
        by_theta: Outcomes of SpotTune at each theta below 1, by theta in place of policy.
        step_seconds: Seconds per step of each workload's first trial, by instance type.
        forecast_scores: Scores of RevPred and Tributary on all days after those that they were trained on.
        chosen_offers: What came, before the days of the runs, of the offers that each forecast would have chosen.
    """

    outcomes: Runs
    without_refund: Runs
    with_noise: Runs
    by_theta: Runs
    step_seconds: Mapping[str, Mapping[str, float]]
    forecast_scores: Mapping[str, Mapping[str, Any]]
    chosen_offers: Mapping[str, ChosenOffers]

    @property
    def best_forecast(self) -> str:
        """The forecast whose offers cost least on the days before those of the runs."""
        return min(self.chosen_offers, key=lambda name: (self.chosen_offers[name].usd, name))


def means(runs: Runs, policy: str, of: Callable[[Outcome], float]) -> dict[str, float]:
    """Mean by workload over the starts from which every policy finished."""
    found = {}
    for workload, by_policy in runs.items():
        own = by_policy[policy]
        whole = [all(outs[n].finished for outs in by_policy.values()) for n in range(len(own))]
        values = [of(out) for out, counted in zip(own, whole, strict=True) if counted]
        found[workload] = float(np.mean(values)) if values else float("nan")
    return found


def forecasts(
    minutes: Minutes, *, train_until: int, stride: int, seed: int, report: OnProgress
) -> tuple[dict[str, Forecast], dict[str, dict[str, Any]]]:
    """Learnt forecasts, trained on minutes up to `train_until`, and their lower and upper bounds; and scores.

    The scores are those of the learnt ones on the days after `train_until`, with max prices as published.
    """
    days = min(train_until * MINUTE_S / DAY_S, _TRAIN_DAYS)
    first = train_until - round(days * DAY_S / MINUTE_S)
    later_days = (len(minutes.times_s) - train_until) * MINUTE_S / DAY_S - _GAP_D
    split = split_at(minutes, first, days, later_days, stride=stride, test_stride=stride)
    asked, tuned_on = (
        asked_max_prices(minutes, samples, [seed, part]) for part, samples in enumerate((split.test, split.known))
    )
    questions, scores = Questions.of(minutes, split, asked, tuned_on), {}
    found: dict[str, Forecast] = {"past-frequency": PastFrequency(minutes), "foresight": Foresight(minutes)}
    makers: dict[str, Callable[[int], NetworkModel]] = {"revpred": revpred, "tributary": tributary}
    for name, make in makers.items():
        report(f"training {name}")
        model = make(seed)
        with warnings.catch_warnings():
            # Markets with too few rises get constants; the model's card says so.
            warnings.simplefilter("ignore")
            model.fit(minutes, split.train, split.validation)
        found[name] = Learnt(model, minutes, name=name)
        answers = {delta: Answers() for delta in DELTAS}
        later = model.probabilities(minutes, split.test, asked)
        questions.mark(answers, later, model.probabilities(minutes, split.known, tuned_on))
        scores[name] = scores_of(answers, [str(market) for market in minutes.markets])[0]["published"]
    found["lowest"] = LowestOf((found["revpred"], found["past-frequency"]), "lowest")
    return found, scores


def judged(
    known: Mapping[str, Forecast], minutes: Minutes, train_until: int, seconds: Mapping[str, float]
) -> dict[str, ChosenOffers]:
    """Results of the offers that each forecast chose, on the last days before `train_until`.

    Those are the days on which learnt forecasts were validated, not trained.
    """
    days = min(train_until * MINUTE_S / DAY_S, _TRAIN_DAYS)
    first = train_until - round(days * VALIDATION_SHARE * DAY_S / MINUTE_S)
    moments = np.arange(first, train_until - round(_GAP_D * DAY_S / MINUTE_S), _JUDGED_MIN)
    doubt = StepCost(known["revpred"]).doubt
    return {name: chosen_offers(known[name], minutes, moments, seconds, doubt) for name in _CANDIDATES}


def policies_of(known: Mapping[str, Forecast], prices: PriceHistory) -> list[Policy]:
    """The paper's four policies; SpotTune with other forecasts, as published, and with `BestBid`."""
    learnt = StepCost(known["revpred"])
    published = StepCost(known["revpred"], delta=None, doubt=0.0)
    bound = BestBid(ForeseenPassages(prices), doubt=0.0)
    rivals = ("tributary", "past-frequency", "lowest", "foresight")
    return [
        CheapestSpot(),
        FastestSpot(),
        SpotTune(theta=1.0, provisioner=learnt, name="spottune-full"),
        _at_theta(learnt, "spottune"),
        SpotTune(theta=0.7, provisioner=learnt, name="spottune-and-best-three"),
        *(_at_theta(StepCost(known[name]), f"spottune-{name}") for name in rivals),
        SpotTune(
            theta=0.7, trains_on=False, provisioner=published, stays=False, parallel=1.0, name="spottune-published"
        ),
        _at_theta(BestBid(), "spottune-bid"),
        _at_theta(bound, "spottune-bid-foresight"),
    ]


def _at_theta(provisioner: Provisioner, name: str, theta: float = 0.7) -> SpotTune:
    """SpotTune as the paper evaluates it: its cost ends when the best trials are chosen."""
    return SpotTune(theta=theta, trains_on=False, provisioner=provisioner, name=name)


def study(
    prices: PriceHistory,
    curves: Sequence[Curve],
    *,
    starts: int = 20,
    seed: int = 1,
    stride: int = 30,
    catalogue: Catalogue | None = None,
    on_progress: OnProgress | None = None,
) -> StudyResult:
    """Run every policy on every workload from the same starts.

    Args:
        prices: Price history; its first part is for training.
        curves: Learning curves of the workloads.
        starts: Number of start times.
        seed: Seed of models, starts and policies.
        stride: Minutes between training samples.
        catalogue: Instance types and their list prices.
        on_progress: Called with the current activity.

    Raises:
        InputError: The history is too short to train on and to run after.
    """
    report = on_progress or (lambda _text: None)
    known_types = catalogue or default_catalogue()
    minutes = minutes_of(prices)
    train_until = round(len(minutes.times_s) * _TRAIN_SHARE)
    sweeps = sweeps_of(curves, prices, known_types)
    start_times = _starts(prices, sweeps, float(minutes.times_s[train_until]), starts, seed, known_types)
    known, scores = forecasts(minutes, train_until=train_until, stride=stride, seed=seed, report=report)
    rates = {sweep.name: sweep.jobs[0].steps_per_hour for sweep in sweeps}
    seconds = {name: {kind: HOUR_S / rate for kind, rate in own.items()} for name, own in rates.items()}
    chosen = judged(known, minutes, train_until, next(iter(seconds.values())))

    def run(
        sweep: WorkloadTrials, policies: Sequence[Policy], billing: str, speed_noise: float = 0.0
    ) -> Mapping[str, tuple[Outcome, ...]]:
        return backtest(
            sweep.jobs,
            policies,
            prices,
            billing=billing,
            starts=start_times,
            seed=seed,
            catalogue=known_types,
            curves=sweep.curves,
            speed_noise=speed_noise,
        ).outcomes

    learnt = StepCost(known["revpred"])
    full = SpotTune(theta=1.0, provisioner=learnt, name="spottune-full")
    thetas = [_at_theta(learnt, f"{theta:g}", theta) for theta in _THETAS]
    outcomes, without, noisy, by_theta = {}, {}, {}, {}
    for sweep in sweeps:
        report(f"running {sweep.name}")
        outcomes[sweep.name] = run(sweep, policies_of(known, prices), "ec2-second")
        without[sweep.name] = run(sweep, [CheapestSpot(), full], "gcp-preemptible")
        noisy[sweep.name] = run(sweep, [_at_theta(learnt, "spottune")], "ec2-second", SPEED_NOISE)
        by_theta[sweep.name] = run(sweep, thetas, "ec2-second")
    return StudyResult(outcomes, without, noisy, by_theta, seconds, scores, chosen)


def _starts(
    prices: PriceHistory,
    sweeps: Sequence[WorkloadTrials],
    after_s: float,
    number: int,
    seed: int,
    catalogue: Catalogue,
) -> list[float]:
    longest = max(max(work_s(job, prices, catalogue).values()) for sweep in sweeps for job in sweep.jobs)
    first, last = after_s + DAY_S, prices.end_s - _ROOM * longest
    if last <= first:
        need_h = (_ROOM * longest + DAY_S) / HOUR_S / (1.0 - _TRAIN_SHARE)
        have_h = (prices.end_s - prices.start_s) / HOUR_S
        raise InputError(
            f"the history has {have_h:.0f} h; training on its first part and running after needs {need_h:.0f}"
        )
    drawn = np.random.default_rng([seed, number]).uniform(first, last, number)
    return [float(time_s) for time_s in np.floor(drawn)]


def refunded_share(outcome: Outcome) -> float:
    """Share of the steps run on machines whose whole cost was refunded (Fig. 9)."""
    free = {
        lease.lease_id
        for lease in outcome.leases
        if outcome.ledger.refund_of(lease.lease_id) > 0.0 and outcome.ledger.usd_of(lease.lease_id) <= 1e-12
    }
    on: list[tuple[int, float]] = [pair for job in outcome.jobs for pair in job.steps_on.items()]
    total = sum(steps for _, steps in on)
    return sum(steps for lease_id, steps in on if lease_id in free) / total if total else float("nan")


def moving_share(outcome: Outcome) -> float:
    """Time for saving and restoring, as a share of the training time (Fig. 12)."""
    training = sum(job.training_s for job in outcome.jobs)
    return sum(job.moving_s for job in outcome.jobs) / training if training else float("nan")


def tables_of(found: StudyResult, curve_scores: Mapping[str, Any]) -> dict[str, Any]:
    """Means by workload and policy, and by theta, in plain values: what the paper's figures show.

    Args:
        found: The result of `study`.
        curve_scores: Scores `by_theta` of predicted final metrics, by method.
    """
    measures: dict[str, Callable[[Outcome], float]] = {
        "cost_usd": lambda out: out.cost_usd,
        "makespan_h": lambda out: out.makespan_s / HOUR_S,
        "refunded_step_share": refunded_share,
        "moving_share": moving_share,
        "revocations": lambda out: float(out.revocations),
        "steps_lost": lambda out: out.steps_lost,
    }
    names = next(iter(found.outcomes.values()))
    by_policy = {name: {key: means(found.outcomes, name, of) for key, of in measures.items()} for name in names}
    unfinished = {
        name: sum(not out.finished for runs in found.outcomes.values() for out in runs[name]) for name in names
    }
    predictor = default_calibration().everywhere.thresholds
    thetas = {
        theta: {key: means(found.by_theta, theta, measures[key]) for key in ("cost_usd", "makespan_h")}
        for theta in next(iter(found.by_theta.values()))
    }
    return {
        "seconds_per_step": {name: dict(by_type) for name, by_type in found.step_seconds.items()},
        "by_policy": by_policy,
        "by_theta": thetas,
        "forecasts": {name: dict(scores) for name, scores in found.forecast_scores.items()},
        "chosen_offers": {name: asdict(one) for name, one in found.chosen_offers.items()},
        "curve_ends": {name: scores["by_theta"] for name, scores in curve_scores.items()},
        "unfinished": unfinished,
        "stage_thresholds": {"xi": predictor.change, "epsilon": predictor.steady, "window": predictor.window},
    }
