"""Scores of hazards and their rivals on later observations: losses within some time, and refusals.

Everything is learnt from the first part of a record and scored on the rest. Beside it, markets are left out in
turn: a market is scored by what was learnt from the first part of the others, and by what is seen of it from then
on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import UP, SpellModel, fit_spells, spells_of_probes
from ebbtide.forecasts.hazard.fitting import (
    AskedMoments,
    asked,
    base_of,
    expected_by_segment,
    passage_chance,
    unweighted,
    weighted,
)
from ebbtide.forecasts.hazard.model import LEAST_CHANCE, Hazard
from ebbtide.forecasts.hazard.observations import MarketObservations
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats

# Times ahead for which losses are scored, seconds.
HORIZONS_S = (600.0, HOUR_S, 6 * HOUR_S)

ESTIMATES = ("hazard", "prices", "spells", "constant", "persistence")

# Share of a record that is learnt from.
LEARNT_SHARE = 0.6

# Groups in which markets are left out in turn.
_FOLDS = 5

_BINS = 10


@dataclass(frozen=True)
class HazardScore:
    """Score of one estimate of one event.

    Attributes:
        data: Name of the record, and whether its markets were left out.
        event: `loss` or `refusal`.
        horizon_s: Losses: time ahead; refusals: median time since the observation before; seconds.
        estimate: One of `ESTIMATES`.
        log_loss: Mean negative logarithm of the chance given to what happened.
        brier: Mean squared error of the chance.
        calibration_error: Mean distance of chance and frequency over ten groups of equal size.
        n: Number of moments.
        happened: Share of them at which it happened.
    """

    data: str
    event: str
    horizon_s: float
    estimate: str
    log_loss: float
    brier: float
    calibration_error: float
    n: int
    happened: float


@dataclass(frozen=True, eq=False)
class HazardEvaluation:
    """Scores on a record, with the chances they are of.

    Attributes:
        rows: The scores.
        chances: Chances and outcomes of the hazard, by event and horizon in seconds; those of later days.
    """

    rows: tuple[HazardScore, ...]
    chances: Mapping[tuple[str, float], tuple[Floats, Floats]]


def evaluate_hazard(
    observations: Sequence[MarketObservations],
    data: str,
    prior: Hazard | None = None,
    learnt_share: float = LEARNT_SHARE,
    *,
    leaves_out: bool = True,
) -> HazardEvaluation:
    """Score a hazard and its rivals on a record.

    Args:
        observations: Observations of each market.
        data: Name of the record.
        prior: Hazard that the first part of the record is learnt on top of; None: none.
        learnt_share: Share of the record that is learnt from.
        leaves_out: Whether markets are left out in turn, too.

    Raises:
        InputError: The first part of the record has no spell, or the rest no moment that can be scored.
    """
    split_s = splits_s(observations, learnt_share)
    later = _scored(observations, split_s, frozenset(), prior)
    rows = list(later.rows(data))
    places = [(each.market.cloud, each.market.zone, each.clock) for each in observations]
    order = sorted(set(places))
    parts = min(_FOLDS, len(order)) if leaves_out else 0
    answers = []
    for fold in range(parts):
        left_out = frozenset(n for n, place in enumerate(places) if order.index(place) % parts == fold)
        # The first part may be of these alone.
        if any(
            len(each.between(-math.inf, split_s[n]).times_s) > 1 for n, each in _others(observations, left_out)
        ):
            answers.append(_scored(observations, split_s, left_out, prior))
    if answers:
        rows += _joined(answers).rows(f"{data}, zones left out")
    if not rows:
        raise InputError("has no moment after its first part whose outcome is known", file=data)
    return HazardEvaluation(tuple(rows), later.of("hazard"))


def _others(
    observations: Sequence[MarketObservations], left_out: frozenset[int]
) -> list[tuple[int, MarketObservations]]:
    """The markets that are not left out, with their indices."""
    return [(n, each) for n, each in enumerate(observations) if n not in left_out]


def splits_s(observations: Sequence[MarketObservations], learnt_share: float) -> Floats:
    """End of the first part of each market's clock, seconds since 1970, shape (markets,).

    Raises:
        InputError: The share is not between 0 and 1.
    """
    if not 0.0 < learnt_share < 1.0:
        raise InputError(f"is {learnt_share:g}; a share between 0 and 1 is needed", field="learnt_share")
    spans: dict[str, tuple[float, float]] = {}
    for each in observations:
        begin_s, end_s = spans.get(each.clock, (math.inf, -math.inf))
        spans[each.clock] = min(begin_s, float(each.times_s[0])), max(end_s, float(each.times_s[-1]))
    ends = {clock: begin_s + learnt_share * (end_s - begin_s) for clock, (begin_s, end_s) in spans.items()}
    return np.array([ends[each.clock] for each in observations])


@dataclass(frozen=True, eq=False)
class _Answers:
    """Chances by estimate, and outcomes, by event and horizon."""

    chances: Mapping[tuple[str, float], Mapping[str, Floats]]
    happened: Mapping[tuple[str, float], Floats]

    def rows(self, data: str) -> list[HazardScore]:
        return [
            _score(data, *key, name, by_name[name], self.happened[key])
            for key, by_name in self.chances.items()
            if len(self.happened[key])
            for name in ESTIMATES
        ]

    def of(self, name: str) -> dict[tuple[str, float], tuple[Floats, Floats]]:
        return {key: (by_name[name], self.happened[key]) for key, by_name in self.chances.items()}


def _joined(folds: Sequence[_Answers]) -> _Answers:
    """The answers of several folds; the horizon of refusals is that of the first."""
    keys = list(folds[0].chances)
    pairs = [list(zip(keys, fold.chances, strict=True)) for fold in folds]
    chances = {
        key: {
            name: np.concatenate(
                [fold.chances[dict(own)[key]][name] for fold, own in zip(folds, pairs, strict=True)]
            )
            for name in ESTIMATES
        }
        for key in keys
    }
    happened = {
        key: np.concatenate([fold.happened[dict(own)[key]] for fold, own in zip(folds, pairs, strict=True)])
        for key in keys
    }
    return _Answers(chances, happened)


def _scored(
    observations: Sequence[MarketObservations], split_s: Floats, left_out: frozenset[int], prior: Hazard | None
) -> _Answers:
    """Answers of all estimates at the later moments of the markets left out, or of all where none is.

    Args:
        observations: Observations of all markets.
        split_s: End of the first part for each market, seconds since 1970, shape (markets,).
        left_out: Indices of the markets of which the first part is not seen.
        prior: Hazard that is learnt on top of.

    Raises:
        InputError: The first part has no market with two observations.
    """
    pairs = list(zip(observations, split_s.tolist(), strict=True))
    earlier = [each.between(-math.inf, end_s) for n, (each, end_s) in enumerate(pairs) if n not in left_out]
    earlier_s = np.array([end_s for n, (_, end_s) in enumerate(pairs) if n not in left_out])
    known = np.array([len(each.times_s) > 1 for each in earlier], dtype=bool)
    earlier, earlier_s = (
        [each for each, is_known in zip(earlier, known, strict=True) if is_known],
        earlier_s[known],
    )
    if not earlier:
        raise InputError("its first part has no market with two observations to learn from")
    start = unweighted(*base_of(earlier, prior), prior)
    past_losses, past_refusals = (_before(part, earlier_s) for part in asked(start.pooled(), earlier))
    fitted = weighted(start.pooled(), [each.market for each in earlier], past_losses, past_refusals)
    hazard = replace(start, loss=fitted.loss, refusal=fitted.refusal)
    # Nothing of a market that is left out was seen before.
    tested = [each.between(end_s, math.inf) if n in left_out else each for n, (each, end_s) in enumerate(pairs)]
    scored = [n for n, each in enumerate(tested) if len(each.times_s) > 1]
    tested, tested_s = [tested[n] for n in scored], split_s[scored]
    markets = [each.market for each in tested]
    is_scored = np.array([n in left_out or not left_out for n in scored], dtype=bool)
    own_losses, own_refusals = (_after(part, tested_s, is_scored) for part in asked(hazard, tested))
    spells = _spell_models(earlier)
    hours = sum(float(each.times_s[-1] - each.times_s[0]) for each in earlier if len(each.times_s)) / HOUR_S
    chances: dict[tuple[str, float], dict[str, Floats]] = {}
    happened: dict[tuple[str, float], Floats] = {}
    for horizon_s in HORIZONS_S:
        # Moments near the end of a record would count only if a machine was lost.
        there = own_losses.where(own_losses.known_s >= horizon_s)
        before = past_losses.where(past_losses.known_s >= horizon_s)
        key = "loss", horizon_s
        happened[key] = (there.until_s <= horizon_s).astype(float)
        ended = (before.until_s <= horizon_s).astype(float)
        chances[key] = {
            "hazard": _hazard_of_losses(hazard, markets, there, horizon_s),
            "prices": _prices_of_losses(tested, there, horizon_s, hours),
            "spells": _spells_of_losses(spells, tested, there, horizon_s),
            "constant": np.full(len(there.time_s), _rate(ended)),
            "persistence": _by_group(before.last <= horizon_s, ended, there.last <= horizon_s),
        }
    key = "refusal", float(np.median(own_refusals.age_s)) if len(own_refusals.age_s) else 0.0
    refused = (past_refusals.until_s <= 0.0).astype(float)
    happened[key] = (own_refusals.until_s <= 0.0).astype(float)
    total = len(own_refusals.time_s)
    logits = np.clip(own_refusals.features @ hazard.refusal, -30.0, 30.0)
    chances[key] = {
        "hazard": _clipped(1.0 / (1.0 + np.exp(-logits))),
        "prices": np.full(total, _clipped(np.array(0.5 / max(hours, 1.0)))),
        "spells": _clipped(1.0 / (1.0 + np.exp(-own_refusals.features[:, 1]))) if total else np.empty(0),
        "constant": np.full(total, _rate(refused)),
        "persistence": _by_group(past_refusals.last > 0.0, refused, own_refusals.last > 0.0),
    }
    return _Answers(chances, happened)


def _before(part: AskedMoments, split_s: Floats) -> AskedMoments:
    """Moments of the first part, what followed cut off at its end."""
    left_s = split_s[part.place] - part.time_s
    known_s = np.minimum(part.known_s, left_s)
    return replace(part, until_s=np.where(part.until_s > left_s, np.inf, part.until_s), known_s=known_s)


def _after(part: AskedMoments, split_s: Floats, is_scored: np.ndarray) -> AskedMoments:
    return part.where((part.time_s >= split_s[part.place]) & is_scored[part.place])


def _hazard_of_losses(hazard: Hazard, markets: Sequence[Market], there: AskedMoments, horizon_s: float) -> Floats:
    factors = np.exp(np.clip(there.features @ hazard.loss.T, -8.0, 8.0))
    expected = expected_by_segment(hazard, markets, there, np.full(len(there.time_s), horizon_s))
    return _clipped(-np.expm1(-(factors * expected).sum(axis=1)))


def _spell_models(earlier: Sequence[MarketObservations]) -> tuple[dict[Market, SpellModel], SpellModel]:
    """The spell model of each market, pooled partially with the others, and that of all."""
    seen = {
        each.market: spells_of_probes(each.times_s, each.is_up, each.longest_gap_s)
        for each in earlier
        if len(each.times_s) > 1
    }
    every = list(seen.values())
    total = every[0]
    for one in every[1:]:
        total = total + one
    pooled = fit_spells(None, [total])
    return {market: fit_spells(one, [total]) for market, one in seen.items()} if len(seen) < 200 else {}, pooled


def _spells_of_losses(
    models: tuple[Mapping[Market, SpellModel], SpellModel],
    observations: Sequence[MarketObservations],
    there: AskedMoments,
    horizon_s: float,
) -> Floats:
    by_market, pooled = models
    found = [
        by_market.get(observations[place].market, pooled).ends_within(UP, age_s, horizon_s)
        for place, age_s in zip(there.place.tolist(), there.age_s.tolist(), strict=True)
    ]
    return _clipped(np.array(found))


def _prices_of_losses(
    observations: Sequence[MarketObservations], there: AskedMoments, horizon_s: float, hours: float
) -> Floats:
    """Chances from prices alone: of similar past moments within the hour; of half a rise in all hours watched."""
    found = np.full(len(there.time_s), -np.expm1(-0.5 / max(hours, 1.0) * horizon_s / HOUR_S))
    for number, (place, time_s) in enumerate(zip(there.place.tolist(), there.time_s.tolist(), strict=True)):
        own = observations[place]
        if own.is_of_prices and own.series is not None:
            found[number] = passage_chance(own, time_s, horizon_s)
    return _clipped(found)


def _by_group(group: np.ndarray, happened: Floats, asked_group: np.ndarray) -> Floats:
    """The frequency of each group of earlier moments, for later ones of that group."""
    yes, no = _rate(happened[group]), _rate(happened[~group])
    return np.where(asked_group, yes, no)


def _rate(happened: Floats) -> float:
    return float((happened.sum() + 0.5) / (len(happened) + 1.0))


def _clipped(chances: Floats) -> Floats:
    found: Floats = np.clip(chances, LEAST_CHANCE, 1.0 - LEAST_CHANCE)
    return found


def _score(data: str, event: str, horizon_s: float, name: str, chances: Floats, happened: Floats) -> HazardScore:
    return HazardScore(
        data=data,
        event=event,
        horizon_s=horizon_s,
        estimate=name,
        log_loss=float(-np.mean(np.log(np.where(happened > 0.0, chances, 1.0 - chances)))),
        brier=float(np.mean((chances - happened) ** 2)),
        calibration_error=calibration_error(chances, happened),
        n=len(happened),
        happened=float(happened.mean()),
    )


def calibration_error(chances: Floats, happened: Floats) -> float:
    """Mean distance of chance and frequency over groups of about equal size; equal chances stay together."""
    edges = np.unique(np.quantile(chances, np.linspace(0.0, 1.0, _BINS + 1)[1:-1]))
    group = np.searchsorted(edges, chances, side="right")
    total = 0.0
    for each in np.unique(group):
        own = group == each
        total += abs(float(chances[own].mean() - happened[own].mean())) * int(own.sum())
    return total / len(chances)
