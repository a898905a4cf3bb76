"""Hazard: the chance that a machine requested now is refused, and that one that runs is lost within some time.

A machine is lost for its capacity or for its price. For each cause there is an expected number of losses from what
is always known (the age of the spell, with levels for cloud, type, region and zone that are partially pooled;
forecasts of the price), times a factor for what has been seen lately: losses and refusals of the market itself, of
its region and of other regions, and its price. The factor has weights of its own for the next ten minutes, the
rest of the hour and the five hours after, since a shortage that goes on now says little of tonight.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ebbtide.base.files import write_text
from ebbtide.base.input_files import read_json
from ebbtide.base.json_values import misfit
from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import (
    AGE_BINS_S,
    DOWN,
    PARTS_OF_DAY,
    UP,
    SpellModel,
    a_tick_later,
    onward_in,
)
from ebbtide.forecasts.hazard.evidence import Evidence, cloud_of, key_of, region_of
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats

# Parts of the time ahead, each with its own weights: they begin at these times, seconds. The last ends after 6 h,
# and later only the expected losses count.
SEGMENTS_S = (0.0, 600.0, HOUR_S, 6 * HOUR_S)

# Factors on expected losses are exp(weights x features).
LOSS_FEATURES = (
    "always",
    "lost in the last hours",
    "lost in the last days",
    "lost in the region",
    "down in the region",
    "lost in other regions",
    "down in other regions",
    "price of on demand",
    "price of the day",
    "price forecast",
)
REFUSAL_FEATURES = (
    "always",
    "expected",
    "down in the last hours",
    "down in the last days",
    "down in the region",
    "down in other regions",
    "price of on demand",
    "price of the day",
)

# Losses, and hours, that are added to what was seen: little evidence moves little.
_ADDED = 0.5

# Spells that a group's factor of 1 counts for against what was seen of it since the model was fitted.
_SEEN_ENDS = 10.0

# The same for rises of the price within an hour.
_ADDED_RISES = 0.01

# Logarithm of the largest factor.
_MOST_LOG = 8.0

# A larger hazard, level or number of spells is no such number.
_MOST_RATE = 1e9

# Chances are never closer to 0 or 1: what was never seen is not impossible.
LEAST_CHANCE = 1e-4

_TICK_S, _DOUBLINGS = 600.0, 11

# Half-width of an 80 % interval in standard deviations.
_WIDTH = 1.2816


@dataclass(frozen=True)
class Level:
    """The level of a group of markets against the group above it.

    Attributes:
        down: Factor on the hazard that capacity comes back.
        up: Factor on the hazard that capacity goes.
        ends: Number of spells that ended, down and up, with those that the prior counts for.
    """

    down: float = 1.0
    up: float = 1.0
    ends: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True)
class Price:
    """The price of a market as a hazard sees it.

    Attributes:
        of_on_demand: Price as a share of the on-demand price; 1 where that is not known.
        of_day: Price as a share of its mean over the last day.
        rises: Times that the price is expected to come above the max price within an hour; None: it takes no
            machine.
    """

    of_on_demand: float = 1.0
    of_day: float = 1.0
    rises: float | None = None


NO_PRICE = Price()
_ANY = Market("", "", "", "")


@dataclass(frozen=True)
class Chance:
    """A chance, and the interval that holds it in four of five cases.

    Attributes:
        value: The chance.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Hazard:
    """Chances of refusals and losses.

    Attributes:
        base: How long spells last, in all markets together.
        levels: Level by key of cloud, type, region and market.
        loss: Weights for losses of capacity, shape (segments, len(LOSS_FEATURES)).
        refusal: Weights for refusals, shape (len(REFUSAL_FEATURES),).
        prior_ends: Spells that the level of an unknown market counts for, in its uncertainty.
        learnt_from: Names of the records.
    """

    base: SpellModel
    levels: Mapping[str, Level]
    loss: Floats
    refusal: Floats
    prior_ends: float = 4.0
    learnt_from: tuple[str, ...] = ()
    _tables: dict[tuple[int, int], Floats] = field(default_factory=dict, repr=False)
    _levels: dict[Market, Level] = field(default_factory=dict, repr=False)

    def level(self, market: Market) -> Level:
        """The level of a market: that of its cloud, type, region and zone, as far as they are known."""
        if market not in self._levels:
            self._levels[market] = self._joined(market)
        return self._levels[market]

    def observe(
        self,
        evidence: Evidence,
        market: Market,
        time_s: float,
        *,
        is_up: bool,
        is_machine: bool = False,
        is_held: bool = False,
        longest_gap_s: float = 2 * HOUR_S,
    ) -> None:
        """Add an observation to the evidence; see `Evidence.observe`.

        Args:
            evidence: What has been seen so far.
            market: The market.
            time_s: Its time, seconds since 1970.
            is_up: Whether a machine was granted or runs; else one was refused or lost.
            is_machine: Whether it is of one machine, whose age is known; else capacity may have been there for a
                while.
            is_held: Whether a machine was held since the observation before, however long ago that is.
            longest_gap_s: Longest time between two observations of one spell, seconds.
        """
        spell, expected = evidence.spell(market), 0.0
        if is_held and spell is not None and spell.is_up:
            longest_gap_s = math.inf
        age_s = self.likely_age_s(evidence, market, time_s) if is_up and not is_machine else 0.0
        if spell is not None:
            kind, level = (UP, self.level(market).up) if spell.is_up else (DOWN, self.level(market).down)
            until_s = spell.age_s + max(time_s - spell.seen_s, 0.0)
            expected = level * (self._cumulated(until_s, kind) - self._cumulated(spell.age_s, kind))
        evidence.observe(market, time_s, is_up=is_up, expected=expected, age_s=age_s, longest_gap_s=longest_gap_s)

    def _joined(self, market: Market) -> Level:
        down = up = 1.0
        ends = (self.prior_ends, self.prior_ends)
        for key in keys_of(market):
            if (known := self.levels.get(key)) is not None:
                down, up, ends = down * known.down, up * known.up, known.ends
            else:
                # Each group that is not known may differ as much again.
                ends = (
                    1.0 / (1.0 / ends[0] + 1.0 / self.prior_ends),
                    1.0 / (1.0 / ends[1] + 1.0 / self.prior_ends),
                )
        return Level(down, up, ends)

    def seen_level(self, evidence: Evidence, market: Market) -> tuple[float, float]:
        """Factors on the market's level, down and up, from all ends of spells that were seen, pooled partially."""
        return self._seen_levels(evidence, market)[-1]

    def _seen_levels(self, evidence: Evidence, market: Market) -> list[tuple[float, float]]:
        """The same of its cloud, region and market, each with those before it."""
        down = up = 1.0
        found = []
        for key in (cloud_of(market), region_of(market), key_of(market)):
            if (ends := evidence.ends.get(key)) is not None:
                down *= (ends[0] + _SEEN_ENDS) / (ends[1] * down + _SEEN_ENDS)
                up *= (ends[2] + _SEEN_ENDS) / (ends[3] * up + _SEEN_ENDS)
            found.append((down, up))
        return found

    def expected(self, market: Market, age_s: float, within_s: float) -> float:
        """Losses of capacity expected within some time from the age of the spell and the market's level alone."""
        return self.level(market).up * (self._cumulated(age_s + within_s) - self._cumulated(age_s))

    def expected_losses(
        self,
        evidence: Evidence,
        market: Market,
        now_s: float,
        age_s: float,
        within_s: float,
        price: Price = NO_PRICE,
    ) -> float:
        """Losses of capacity expected within some time, with what has been seen so far.

        Args:
            evidence: What has been seen.
            market: The market of the machine.
            now_s: The present time, seconds since 1970.
            age_s: How long machines have been there, seconds.
            within_s: The time ahead, seconds, finite.
            price: The market's price.
        """
        factors = self.loss_factors(evidence, market, now_s, age_s, price)
        found: float = sum(map(operator.mul, self.by_segment(market, now_s, age_s, within_s), factors))
        if within_s > SEGMENTS_S[-1]:
            found += self.expected(market, age_s + SEGMENTS_S[-1], within_s - SEGMENTS_S[-1])
        return found * self.seen_level(evidence, market)[UP]

    def by_segment(self, market: Market, now_s: float, age_s: float, within_s: float) -> list[float]:
        """Losses expected in each segment of the time ahead, from age, level and time of day alone."""
        level = self.level(market).up
        part = float(self.base.by_part[UP, int(now_s % DAY_S * PARTS_OF_DAY // DAY_S)])
        ends = [self._cumulated(age_s + min(within_s, end_s)) for end_s in SEGMENTS_S]
        found = [level * (high - low) for low, high in itertools.pairwise(ends)]
        # The time of day holds for the next hour.
        return [found[0] * part, found[1] * part, *found[2:]]

    def lost(
        self,
        evidence: Evidence,
        market: Market,
        now_s: float,
        age_s: float,
        within_s: float,
        price: Price = NO_PRICE,
    ) -> Chance:
        """The chance that a machine is lost for capacity within some time; see `expected_losses`."""
        expected = self.expected_losses(evidence, market, now_s, age_s, within_s, price)
        ends = sum(evidence.ends.get(key_of(market), (0.0,))[2:])
        width = math.exp(_WIDTH / math.sqrt(self.level(market).ends[UP] + ends))
        chances = [_bounded(-math.expm1(-expected * by)) for by in (1.0, 1.0 / width, width)]
        return Chance(*chances)

    def kept(self, evidence: Evidence, market: Market, now_s: float, within_s: float) -> Chance:
        """The chance that a machine that is granted now is kept for some time; see `expected_losses`."""
        lost = self.lost(evidence, market, now_s, self.likely_age_s(evidence, market, now_s), within_s)
        return Chance(1.0 - lost.value, 1.0 - lost.high, 1.0 - lost.low)

    def refused(self, evidence: Evidence, market: Market, now_s: float, price: Price = NO_PRICE) -> Chance:
        """The chance that a request is refused now.

        Args:
            evidence: What has been seen.
            market: The market of the request.
            now_s: The present time, seconds since 1970.
            price: The market's price.
        """
        logit = float(self.refusal @ np.array(self.refusal_features(evidence, market, now_s, price)))
        hours = evidence.others(market, now_s)[0][7]
        width = _WIDTH / math.sqrt(min(self.level(market).ends) + hours)
        logit = min(max(logit, -_MOST_LOG), _MOST_LOG)
        chances = [_bounded(1.0 / (1.0 + math.exp(-logit - by))) for by in (0.0, -width, width)]
        return Chance(*chances)

    def life_s(
        self, evidence: Evidence, market: Market, now_s: float, age_s: float = 0.0, price: Price = NO_PRICE
    ) -> float:
        """Mean time until capacity takes a machine, seconds: the next six hours, then the market's own level."""
        level = self.level(market).up * self.seen_level(evidence, market)[UP]
        within_s, alive, total_s = SEGMENTS_S[-1], 1.0, 0.0
        before_s = 0.0
        for end_s in (600.0, 1800.0, HOUR_S, 2 * HOUR_S, 4 * HOUR_S, within_s):
            left = math.exp(-self.expected_losses(evidence, market, now_s, age_s, end_s, price))
            total_s += 0.5 * (alive + left) * (end_s - before_s)
            alive, before_s = left, end_s
        later = replace(self.base, per_hour=self.base.per_hour * level)
        return total_s + alive * later.mean_left_s(UP, age_s + within_s)

    def usual_life_s(self, markets: Iterable[Market]) -> float:
        """Mean time until capacity takes a machine that begins with its spell, seconds: the median of markets.

        Args:
            markets: The markets; none: all that the hazard was fitted to, pooled.
        """
        lives_s = [self.life_s(Evidence(), market, 0.0) for market in markets]
        return float(np.median(lives_s)) if lives_s else self.life_s(Evidence(), _ANY, 0.0)

    def loss_factors(
        self, evidence: Evidence, market: Market, now_s: float, age_s: float, price: Price = NO_PRICE
    ) -> list[float]:
        """Factors on expected losses, for each segment of the time ahead."""
        features = self.loss_features(evidence, market, now_s, age_s, price)
        # As lists: for so few numbers NumPy takes three times as long.
        sums = [sum(map(operator.mul, weights, features)) for weights in self._loss_weights]
        return [math.exp(min(max(each, -_MOST_LOG), _MOST_LOG)) for each in sums]

    @cached_property
    def _loss_weights(self) -> list[list[float]]:
        found: list[list[float]] = self.loss.tolist()
        return found

    def loss_features(
        self, evidence: Evidence, market: Market, now_s: float, age_s: float, price: Price = NO_PRICE
    ) -> list[float]:
        """Features of losses, in the order of `LOSS_FEATURES`."""
        forecast = 0.0
        if price.rises is not None:
            expected = self.expected(market, age_s, HOUR_S)
            forecast = math.log((price.rises + _ADDED_RISES) / (expected + _ADDED_RISES))
        own, region, cloud = evidence.others(market, now_s)
        # Against what is expected at the level that was seen: what it says is not counted twice.
        of_cloud, of_region, level = (up for _, up in self._seen_levels(evidence, market))
        down = self.share_down(market)
        return [
            1.0,
            _log_ratio(own[0], level * own[1]),
            _log_ratio(own[4], level * own[5]),
            _log_ratio(region[0], of_region * region[1]),
            _share(region[2], region[3], down) - down,
            _log_ratio(cloud[0], of_cloud * cloud[1]),
            _share(cloud[2], cloud[3], down) - down,
            math.log(price.of_on_demand),
            math.log(price.of_day),
            forecast,
        ]

    def refusal_features(
        self, evidence: Evidence, market: Market, now_s: float, price: Price = NO_PRICE
    ) -> list[float]:
        """Features of refusals, in the order of `REFUSAL_FEATURES`."""
        own, region, cloud = evidence.others(market, now_s)
        down = self.share_down(market)
        return [
            1.0,
            _logit(self.expected_refusal(evidence, market, now_s)),
            _share(own[2], own[3], down) - down,
            _share(own[6], own[7], down) - down,
            _share(region[2], region[3], down) - down,
            _share(cloud[2], cloud[3], down) - down,
            math.log(price.of_on_demand),
            math.log(price.of_day),
        ]

    def expected_refusal(self, evidence: Evidence, market: Market, now_s: float) -> float:
        """The chance of a refusal from the last known state of the market, its age, and the time since."""
        spell = evidence.spell(market)
        if spell is None:
            return self.share_down(market, self.seen_level(evidence, market))
        table = self._states_later(market, self.seen_level(evidence, market))
        kind = UP if spell.is_up else DOWN
        place = int(np.searchsorted(AGE_BINS_S, spell.age_s, side="right")) - 1
        since = max(now_s - spell.seen_s, 0.0) / _TICK_S
        if since < 1.0:
            now = 0.0 if spell.is_up else 1.0
            return now + since * (float(table[0, kind, place]) - now)
        later = min(math.log2(since), _DOUBLINGS - 1.0)
        low = min(int(later), _DOUBLINGS - 2)
        share = later - low
        return float((1.0 - share) * table[low, kind, place] + share * table[low + 1, kind, place])

    def likely_age_s(self, evidence: Evidence, market: Market, now_s: float) -> float:
        """Return how long machines of a market have been there if a request is granted now, seconds.

        Capacity that was not there a while ago has come back since, halfway in the mean. Capacity that was never
        seen is taken to be as old as that of any market at any time: its losses in the next hour are.
        """
        spell = evidence.spell(market)
        if spell is None:
            return self._usual_age_s
        since_s = max(now_s - spell.seen_s, 0.0)
        return spell.age_s + since_s if spell.is_up else min(0.5 * since_s, self._usual_age_s)

    @cached_property
    def _usual_age_s(self) -> float:
        """Age at which as many losses are expected in the next hour as in the mean over all spell time."""
        shares, ages_s = self.base.ages(UP), AGE_BINS_S + 0.5 * np.diff(AGE_BINS_S, append=2 * AGE_BINS_S[-1])
        wanted = sum(
            share * (self._cumulated(age_s + HOUR_S) - self._cumulated(age_s))
            for share, age_s in zip(shares.tolist(), ages_s.tolist(), strict=True)
        )
        grid: list[float] = np.geomspace(60.0, AGE_BINS_S[-1], 200).tolist()
        return next(
            (age_s for age_s in grid if self._cumulated(age_s + HOUR_S) - self._cumulated(age_s) <= wanted),
            grid[-1],
        )

    def share_down(self, market: Market, seen: tuple[float, float] = (1.0, 1.0)) -> float:
        """The share of time in which a market has no machine, in the long run.

        Args:
            market: The market.
            seen: Factors on its level; see `seen_level`.
        """
        level = self.level(market)
        down_s, up_s = self._mean_s[DOWN] / (level.down * seen[DOWN]), self._mean_s[UP] / (level.up * seen[UP])
        return down_s / (down_s + up_s)

    @cached_property
    def _mean_s(self) -> tuple[float, float]:
        return self.base.mean_left_s(DOWN, 0.0), self.base.mean_left_s(UP, 0.0)

    @cached_property
    def _cumulative(self) -> tuple[tuple[list[float], list[float], list[float]], ...]:
        """Begins of the bins of age, ends expected before each, and ends expected a second in each; by kind."""
        found = []
        for per_s in self.base.per_hour / HOUR_S:
            before = np.concatenate([[0.0], np.cumsum(np.diff(AGE_BINS_S) * per_s[:-1])])
            found.append((AGE_BINS_S.tolist(), before.tolist(), per_s.tolist()))
        return tuple(found)

    def _cumulated(self, age_s: float, kind: int = UP) -> float:
        """Ends of spells that markets of a level of 1 expect until an age: losses, or capacity that comes back."""
        begins, before, per_s = self._cumulative[kind]
        place = 0 if age_s < _TICK_S else min(int(math.log2(age_s / _TICK_S)) + 1, len(begins) - 1)
        return before[place] + (age_s - begins[place]) * per_s[place]

    def _states_later(self, market: Market, seen: tuple[float, float]) -> Floats:
        """The chance of no machine after 1, 2, 4... ticks, by kind and age of the spell now."""
        level = self.level(market)
        key = round(10.0 * math.log(level.down * seen[DOWN])), round(10.0 * math.log(level.up * seen[UP]))
        if key not in self._tables:
            levels = np.exp(np.array(key) / 10.0)
            self._tables[key] = _chances_down(self.base.per_hour * levels[:, None])
        return self._tables[key]

    def pooled(self) -> Hazard:
        """The hazard without levels of single markets: letters of zones mean other zones in another account."""
        groups = {key: level for key, level in self.levels.items() if key.count("|") < key_of(_ANY).count("|")}
        return replace(self, levels=groups, _tables={}, _levels={})

    def write(self, path: Path) -> None:
        """Write the hazard to a JSON file, atomically."""
        content = {
            "age_bins_s": AGE_BINS_S.tolist(),
            "loss_features": LOSS_FEATURES,
            "refusal_features": REFUSAL_FEATURES,
            "learnt_from": self.learnt_from,
            "prior_ends": self.prior_ends,
            "per_hour": self.base.per_hour.tolist(),
            "by_part": self.base.by_part.tolist(),
            "levels": {key: [each.down, each.up, *each.ends] for key, each in sorted(self.levels.items())},
            "loss": self.loss.tolist(),
            "refusal": self.refusal.tolist(),
        }
        write_text(path, json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Hazard:
        """Read what `write` wrote.

        Raises:
            InputError: The file is missing or is not a hazard of this version.
        """
        return cls._parsed(read_json(path), str(path))

    @classmethod
    def _parsed(cls, content: Any, file: str) -> Hazard:
        try:
            own = [AGE_BINS_S.tolist(), list(LOSS_FEATURES), list(REFUSAL_FEATURES)]
            if [content["age_bins_s"], content["loss_features"], content["refusal_features"]] != own:
                raise InputError("has other features than this version; fit it again", file=file)
            levels = {
                str(key): Level(float(down), float(up), (float(one), float(other)))
                for key, (down, up, one, other) in content["levels"].items()
            }
            base = SpellModel(np.array(content["per_hour"], float), np.array(content["by_part"], float))
            loss, refusal = np.array(content["loss"], float), np.array(content["refusal"], float)
            shapes = (len(SEGMENTS_S) - 1, len(LOSS_FEATURES)), (len(REFUSAL_FEATURES),)
            if (loss.shape, refusal.shape) != shapes or not (
                np.isfinite(loss).all() and np.isfinite(refusal).all()
            ):
                raise ValueError("weights are finite numbers, one a feature")
            if base.per_hour.shape != (2, len(AGE_BINS_S)) or base.by_part.shape != (2, PARTS_OF_DAY):
                raise ValueError("there is a hazard for each kind of spell and bin of age or part of the day")
            numbers = [each for level in levels.values() for each in (level.down, level.up, *level.ends)]
            numbers += [*base.per_hour.ravel(), *base.by_part.ravel(), float(content["prior_ends"])]
            if not all(0.0 < each < _MOST_RATE for each in numbers):
                raise ValueError("hazards, levels and numbers of spells are positive numbers")
            return cls(base, levels, loss, refusal, float(content["prior_ends"]), tuple(content["learnt_from"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"is not a hazard: {misfit(error)}", file=file) from None


def keys_of(market: Market) -> tuple[str, ...]:
    """Keys of the groups that a market belongs to, the largest first."""
    return market.cloud, cloud_of(market), region_of(market), key_of(market)


@cache
def default_hazard() -> Hazard:
    """The default hazard of any market, learnt from public records.

    Made with `ebbtide hazard fit`; the records are named in the file.
    """
    content = json.loads((resources.files("ebbtide.forecasts.hazard") / "data" / "hazard.json").read_text())
    return Hazard._parsed(content, "hazard.json")


def _chances_down(per_hour: Floats) -> Floats:
    """The chance of no machine after 1, 2, 4... ticks, shape (doublings, kinds, bins of age)."""
    bins = len(AGE_BINS_S)
    ends = -np.expm1(-per_hour * _TICK_S / HOUR_S)
    onward = onward_in(_TICK_S)
    step = np.empty((2 * bins, 2 * bins))
    for place in range(2 * bins):
        state = np.zeros((2, bins))
        state[divmod(place, bins)] = 1.0
        step[place] = a_tick_later(state, ends, onward).ravel()
    found = np.empty((_DOUBLINGS, 2, bins))
    for place in range(_DOUBLINGS):
        found[place] = step[:, :bins].sum(axis=1).reshape(2, bins)
        step = step @ step
    return found


def _log_ratio(seen: float, expected: float) -> float:
    return math.log((seen + _ADDED) / (expected + _ADDED))


def _share(part: float, whole: float, prior: float) -> float:
    return (part + _ADDED * prior) / (whole + _ADDED)


def _logit(chance: float) -> float:
    bounded = _bounded(chance)
    return math.log(bounded / (1.0 - bounded))


def _bounded(chance: float) -> float:
    return min(max(chance, LEAST_CHANCE), 1.0 - LEAST_CHANCE)
