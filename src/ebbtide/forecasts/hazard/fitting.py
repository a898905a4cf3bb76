"""Fit a hazard to records: lengths of spells, levels of markets, and weights of what has been seen lately.

Levels are pooled partially: each group of markets has a factor against the group above it, with the weight of a
few spells at 1. Weights of losses come from a Poisson regression on the losses expected in each part of the time
ahead, those of refusals from a logistic one; both are pulled towards the weights of another hazard, so that a
short record changes little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import UP, SpellModel, Spells, fit_spells, spells_of_probes
from ebbtide.forecasts.hazard.evidence import Evidence
from ebbtide.forecasts.hazard.model import (
    LOSS_FEATURES,
    REFUSAL_FEATURES,
    SEGMENTS_S,
    Hazard,
    Level,
    Price,
    keys_of,
)
from ebbtide.forecasts.hazard.observations import MarketObservations
from ebbtide.forecasts.revocation.passage import SimilarMoments
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats

# Time between two moments of a market that are asked about, seconds.
ASK_EVERY_S = 600.0

# Moments that are asked about at most: of more, each market's are thinned.
_MOST_ASKED = 40_000

# Spells of the prior of a level, and standard deviation of the prior of a weight.
_LEVEL_ENDS, _WEIGHT_SD = 10.0, 0.5

# Moments asked about overlap: this many of them tell as much as one.
_OVERLAP = 6.0


@dataclass(frozen=True, eq=False)
class AskedMoments:
    """Moments of a record at which a hazard is asked, with what followed.

    Attributes:
        place: Index of the market, shape (n,).
        time_s: Time, seconds since 1970, shape (n,).
        features: Features, shape (n, features).
        level: Factor on the level of the market that was seen until then, shape (n,).
        age_s: Of losses: age of the spell, seconds; of refusals: time since the last observation; shape (n,).
        until_s: Time until a machine was lost, seconds; infinity: it was not, shape (n,). Of refusals 0 if
            refused.
        known_s: Time for which the outcome is known, seconds, shape (n,).
        last: Of losses: time since the last loss; of refusals: 1 if the last request was refused; shape (n,).
    """

    place: np.ndarray
    time_s: Floats
    features: Floats
    level: Floats
    age_s: Floats
    until_s: Floats
    known_s: Floats
    last: Floats

    def where(self, kept: np.ndarray) -> AskedMoments:
        """Some of the moments, by a mask."""
        return AskedMoments(*(getattr(self, name)[kept] for name in self.__dataclass_fields__))


def base_of(
    observations: Sequence[MarketObservations], prior: Hazard | None
) -> tuple[SpellModel, dict[str, Level]]:
    """Lengths of spells in all markets together, and levels of clouds, types, regions and markets.

    Raises:
        InputError: There is no spell.
    """
    seen = {
        each.market: spells_of_probes(each.times_s, each.is_up, each.longest_gap_s)
        for each in observations
        if len(each.times_s) > 1
    }
    if not seen or not any(one.exposure_h.sum() > 0.0 for one in seen.values()):
        if prior is None:
            raise InputError("there is no spell whose beginning is known")
        return prior.base, {}
    base = fit_spells(None, _with_prior(list(seen.values()), prior))
    levels: dict[str, Level] = {}
    expected = {market: (one.exposure_h.sum(2) * base.per_hour).sum(1) for market, one in seen.items()}
    for depth in range(len(keys_of(next(iter(seen))))):
        groups: dict[str, np.ndarray] = {}
        for market, one in seen.items():
            key = keys_of(market)[depth]
            counted = np.stack([one.ended.sum((1, 2)), expected[market]])
            groups[key] = groups.get(key, 0.0) + counted
        for key, (ended, hoped) in groups.items():
            down, up = ((ended + _LEVEL_ENDS) / (hoped + _LEVEL_ENDS)).tolist()
            levels[key] = Level(down, up, tuple((ended + _LEVEL_ENDS).tolist()))
        for market in seen:
            own = levels[keys_of(market)[depth]]
            expected[market] = expected[market] * np.array([own.down, own.up])
    return base, levels


def _with_prior(seen: list[Spells], prior: Hazard | None) -> list[Spells]:
    """The spells, and a few of the prior, so that ages that were not seen have its hazard."""
    if prior is None:
        return seen
    rates = prior.base.per_hour
    shape = seen[0].exposure_h.shape
    ended = np.full(shape, 1.0 / shape[2])
    return [*seen, Spells(ended / rates[:, :, None], ended)]


def fit_hazard(
    observations: Sequence[MarketObservations],
    prior: Hazard | None = None,
    learnt_from: Sequence[str] = (),
) -> Hazard:
    """Fit a hazard to observations of markets.

    Args:
        observations: Observations of each market.
        prior: Hazard whose weights are the prior; None: all weights are 0, and that of the expected refusal 1.
        learnt_from: Names of the records.

    Raises:
        InputError: There is no spell.
    """
    base, levels = base_of(observations, prior)
    start = unweighted(base, levels, prior)
    markets = [each.market for each in observations]
    # What is seen lately tells most of markets that are not known: weights are those of such.
    unknown = weighted(start.pooled(), markets, *asked(start.pooled(), observations))
    return replace(
        start,
        loss=unknown.loss,
        refusal=unknown.refusal,
        learnt_from=tuple(dict.fromkeys([*(() if prior is None else prior.learnt_from), *learnt_from])),
    )


def unweighted(base: SpellModel, levels: dict[str, Level], prior: Hazard | None) -> Hazard:
    """A hazard with the weights of the prior, or without any."""
    if prior is not None:
        return Hazard(base, levels, prior.loss, prior.refusal, prior.prior_ends, prior.learnt_from)
    refusal = np.zeros(len(REFUSAL_FEATURES))
    refusal[1] = 1.0
    return Hazard(base, levels, np.zeros((len(SEGMENTS_S) - 1, len(LOSS_FEATURES))), refusal)


def weighted(hazard: Hazard, markets: Sequence[Market], losses: AskedMoments, refusals: AskedMoments) -> Hazard:
    """The hazard with weights that were fitted to some moments of markets."""
    loss = np.array(hazard.loss)
    expected = expected_by_segment(hazard, markets, losses, np.minimum(losses.until_s, losses.known_s))
    for segment in range(len(loss)):
        begins_s, ends_s = SEGMENTS_S[segment], SEGMENTS_S[segment + 1]
        there = (losses.until_s > begins_s) & (losses.known_s > begins_s)
        ended = (losses.until_s[there] <= ends_s).astype(float)
        features = losses.features[there]
        loss[segment] = poisson_weights(features, expected[there, segment], ended, loss[segment])
    refused = (refusals.until_s <= 0.0).astype(float)
    refusal = logistic_weights(refusals.features, refused, hazard.refusal)
    return replace(hazard, loss=loss, refusal=refusal)


def expected_by_segment(
    hazard: Hazard, markets: Sequence[Market], losses: AskedMoments, within_s: Floats
) -> Floats:
    """Losses expected within some time by age, level and time of day alone; shape (n, segments)."""
    columns = (losses.place, losses.time_s, losses.age_s, np.minimum(within_s, SEGMENTS_S[-1]))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    found = [hazard.by_segment(markets[place], *times_s) for place, *times_s in rows]
    return np.array(found).reshape(-1, len(SEGMENTS_S) - 1) * losses.level[:, None]


def asked(
    hazard: Hazard, observations: Sequence[MarketObservations], every_s: float = ASK_EVERY_S
) -> tuple[AskedMoments, AskedMoments]:
    """Moments at which the hazard is asked for losses and for refusals, from the past of each alone.

    Args:
        hazard: Its base, levels and features are used, not its weights.
        observations: Observations of each market.
        every_s: Least time between two moments of a market, seconds.
    """
    markets = [each.market for each in observations]
    span_s = sum(float(each.times_s[-1] - each.times_s[0]) for each in observations)
    columns = [_moments(each, max(every_s, span_s / _MOST_ASKED)) for each in observations]
    place = np.concatenate([np.full(len(each.times_s), number) for number, each in enumerate(observations)])
    times_s = np.concatenate([each.times_s for each in observations])
    index = np.concatenate([np.arange(len(each.times_s)) for each in observations])
    order = np.lexsort((place, times_s))
    evidence = Evidence()
    lost_s = [-np.inf] * len(markets)
    losses: list[tuple[object, ...]] = []
    refusals: list[tuple[object, ...]] = []
    for number, time_s, at in zip(
        place[order].tolist(), times_s[order].tolist(), index[order].tolist(), strict=True
    ):
        market, own, column = markets[number], observations[number], columns[number]
        is_up = bool(own.is_up[at])
        before = evidence.spell(market)
        is_known = before is not None and time_s - before.seen_s <= own.longest_gap_s
        if column.is_asked[at] and own.are_requests and is_known and before is not None:
            features = hazard.refusal_features(evidence, market, time_s, column.price(at, own, None))
            since_s, until_s = time_s - before.seen_s, np.inf if is_up else 0.0
            refusals.append((number, time_s, features, 1.0, since_s, until_s, np.inf, float(not before.is_up)))
        if is_known and before is not None and before.is_up and not is_up:
            lost_s[number] = time_s
        is_machine = own.is_machine
        hazard.observe(
            evidence, market, time_s, is_up=is_up, is_machine=is_machine, longest_gap_s=own.longest_gap_s
        )
        if column.is_asked[at] and is_up and column.known_s[at] > 0.0:
            spell = evidence.spell(market)
            assert spell is not None
            features = hazard.loss_features(evidence, market, time_s, spell.age_s, column.price(at, own, time_s))
            until_s, known_s = float(column.until_s[at]), float(column.known_s[at])
            level = hazard.seen_level(evidence, market)[UP]
            losses.append(
                (number, time_s, features, level, spell.age_s, until_s, known_s, time_s - lost_s[number])
            )
    return _asked(losses, len(LOSS_FEATURES)), _asked(refusals, len(REFUSAL_FEATURES))


def _asked(rows: Sequence[tuple[object, ...]], features: int) -> AskedMoments:
    if not rows:
        empty = np.empty(0)
        none = np.empty((0, features))
        return AskedMoments(np.empty(0, dtype=np.int64), empty, none, empty, empty, empty, empty, empty)
    return AskedMoments(*(np.array(column) for column in zip(*rows, strict=True)))


@dataclass(frozen=True, eq=False)
class _Moments:
    """Observations of a market that are asked about, with prices and outcomes, shape (n,) each."""

    is_asked: np.ndarray
    until_s: Floats
    known_s: Floats
    of_on_demand: Floats
    of_day: Floats

    def price(self, at: int, own: MarketObservations, time_s: float | None) -> Price:
        """The price at an observation; with a forecast if a time is given and the price takes machines."""
        rises = None if time_s is None or not own.is_of_prices else expected_rises(own, time_s)
        return Price(float(self.of_on_demand[at]), float(self.of_day[at]), rises)


def _moments(own: MarketObservations, every_s: float) -> _Moments:
    times_s = own.times_s
    slots = (times_s // every_s).astype(np.int64)
    is_asked = np.append(True, np.diff(slots) > 0)
    # The record is broken where two observations are too far apart.
    breaks = np.append(np.diff(times_s) > own.longest_gap_s, True)
    ends = np.flatnonzero(breaks)
    known_s = times_s[ends[np.searchsorted(ends, np.arange(len(times_s)))]] - times_s
    if not own.is_up[-1]:
        # What was lost stays lost.
        known_s = np.maximum(known_s, own.known_until_s - times_s)
    down = np.flatnonzero(~own.is_up)
    following = np.append(times_s[down], np.inf)[np.searchsorted(down, np.arange(len(times_s)))]
    until_s = following - times_s
    until_s = np.where(until_s > known_s, np.inf, until_s)
    of_on_demand = of_day = np.ones(len(times_s))
    if own.series is not None:
        prices = own.series.at_each(times_s)
        if own.is_of_prices:
            of_on_demand = prices / own.max_price_usd_per_hour
        of_day = prices / _mean_of_day(own, times_s)
    return _Moments(is_asked, until_s, known_s, np.maximum(of_on_demand, 1e-3), np.maximum(of_day, 1e-3))


def _mean_of_day(own: MarketObservations, times_s: Floats) -> Floats:
    """Mean price of the day before each time, shape (n,)."""
    assert own.series is not None
    changes_s, prices = own.series.times_s, own.series.prices
    spent = np.append(0.0, np.cumsum(np.diff(changes_s) * prices[:-1]))

    def until(at_s: Floats) -> Floats:
        place = np.maximum(np.searchsorted(changes_s, at_s, side="right") - 1, 0)
        found: Floats = spent[place] + (at_s - changes_s[place]) * prices[place]
        return found

    begin_s = np.maximum(times_s - DAY_S, changes_s[0])
    lasted_s = np.maximum(times_s - begin_s, 1.0)
    found: Floats = np.where(
        times_s - begin_s > 1.0, (until(times_s) - until(begin_s)) / lasted_s, own.series.at_each(times_s)
    )
    return found


_MOMENTS = SimilarMoments()


@dataclass(frozen=True)
class _PricesUntil:
    """The prices of one market up to a moment."""

    own: MarketObservations
    now_s: float

    def price(self, market: Market) -> float:  # noqa: ARG002
        assert self.own.series is not None
        return float(self.own.series.at_each(np.array([self.now_s]))[0])

    def past_prices(self, market: Market, duration_s: float) -> tuple[Floats, Floats]:  # noqa: ARG002
        assert self.own.series is not None
        begin_s = max(self.now_s - duration_s, float(self.own.series.times_s[0]))
        return self.own.series.between(begin_s, self.now_s + 1e-3)


@lru_cache(maxsize=_MOST_ASKED)
def _passages(own: MarketObservations, time_s: float) -> tuple[float, ...]:
    """The chances that the price first comes above the max price in each cell of the hour ahead."""
    view = _PricesUntil(own, time_s)
    rise = own.max_price_usd_per_hour / view.price(own.market) - 1.0
    return tuple(_MOMENTS.chances(view, own.market, np.array([rise]))[0, :-1].tolist())


def passage_chance(own: MarketObservations, time_s: float, horizon_s: float) -> float:
    """The chance that the price comes above the max price within some time, from similar past moments."""
    cells = _passages(own, time_s)
    share = horizon_s / HOUR_S
    if share < 1.0:
        return sum(cells[: round(share * len(cells))])
    return float(1.0 - max(1.0 - sum(cells), 0.0) ** share)


def expected_rises(own: MarketObservations, time_s: float) -> float:
    """Times that the price is expected to come above the max price within an hour."""
    return float(-np.log1p(-min(passage_chance(own, time_s, HOUR_S), 0.999)))


def poisson_weights(features: Floats, expected: Floats, ended: Floats, prior: Floats) -> Floats:
    """Weights of a Poisson regression of events on expected ones, with a normal prior.

    Args:
        features: Features, shape (n, k).
        expected: Events expected without weights, shape (n,).
        ended: Events, 0 or 1, shape (n,).
        prior: Mean of the prior, shape (k,).
    """
    found = np.array(prior)
    for _ in range(30):
        mean = expected * np.exp(np.clip(features @ found, -8.0, 8.0))
        gradient = features.T @ (ended - mean) / _OVERLAP - (found - prior) / _WEIGHT_SD**2
        curvature = (features.T * mean) @ features / _OVERLAP + np.eye(len(found)) / _WEIGHT_SD**2
        step = np.clip(np.linalg.solve(curvature, gradient), -1.0, 1.0)
        found = found + step
        if np.abs(step).max() < 1e-8:
            break
    return found


def logistic_weights(features: Floats, happened: Floats, prior: Floats) -> Floats:
    """Weights of a logistic regression with a normal prior; see `poisson_weights`."""
    found = np.array(prior)
    for _ in range(30):
        chance = 1.0 / (1.0 + np.exp(-np.clip(features @ found, -12.0, 12.0)))
        gradient = features.T @ (happened - chance) / _OVERLAP - (found - prior) / _WEIGHT_SD**2
        curvature = (features.T * (chance * (1.0 - chance))) @ features / _OVERLAP + np.eye(
            len(found)
        ) / _WEIGHT_SD**2
        step = np.clip(np.linalg.solve(curvature, gradient), -1.0, 1.0)
        found = found + step
        if np.abs(step).max() < 1e-8:
            break
    return found
