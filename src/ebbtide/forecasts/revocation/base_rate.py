"""The base rate: a baseline that uses nothing but the frequency of past rises."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.inputs import (
    prices_of,
)
from ebbtide.forecasts.revocation.minutes import Floats, Minutes
from ebbtide.forecasts.revocation.predictions import certain, places
from ebbtide.forecasts.revocation.splits import Samples
from ebbtide.market.markets import Market


@dataclass
class BaseRate:
    """How often, in training, the price rose within the hour by more than a max price allows.

    Attributes:
        name: Name of the model in tables.
        markets: Markets that it was fitted on.
        rises: For each market, highest price of the next hour over the price, sorted, shape (training minutes,).
    """

    name: str = "base-rate"
    markets: tuple[Market, ...] = ()
    rises: list[Floats] = field(default_factory=list)

    def fit(self, minutes: Minutes, training: Samples, validation: Samples) -> None:
        self.markets = minutes.markets
        self.rises = []
        for row in range(len(minutes.markets)):
            parts = [part.of(row) for part in (training, validation)]
            rises = [minutes.highest_next_hour[row, s.minute] / minutes.prices[row, s.minute] for s in parts]
            self.rises.append(np.sort(np.concatenate(rises)))
        if not sum(map(len, self.rises)):
            raise InputError("no complete minute to learn a base rate from")

    def probabilities(self, minutes: Minutes, samples: Samples, max_prices: Floats) -> Floats:
        place = places(self.markets, minutes.markets, np.unique(samples.market))
        ratio = max_prices / prices_of(minutes, samples)[:, None]
        result = np.empty_like(ratio)
        everyone = np.sort(np.concatenate(self.rises))
        for row in np.unique(samples.market):
            own = samples.market == row
            rises = self.rises[place[row]] if len(self.rises[place[row]]) else everyone
            result[own] = 1.0 - np.searchsorted(rises, ratio[own], side="right") / len(rises)
        return certain(result, ratio)
