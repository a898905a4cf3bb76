"""Public signals of capacity, applied to spell models: shares of machines interrupted, chances of a request.

They are coarse and are not published together with outcomes, so their effect is an assumption, stated here: the
share of machines that were interrupted scales the hazard of up spells in proportion; the chance of a request
changes the hazard of down spells so that machines are available for that share of time. Without signals, models
stay as they were fitted. Signals are those that `ebbtide watch` has kept, or of AWS's table of interruption bands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ebbtide.base.input_files import read_json
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import DOWN, UP, SpellModel
from ebbtide.forecasts.capacity.models import SpellModels
from ebbtide.market.markets import Market
from ebbtide.market.signals import Signal, SignalKind
from ebbtide.market.sources.ec2_bands import BAND_SHARES, shares_of

# A market whose machines are interrupted this often has the hazard of the model.
_USUAL_SHARE = 0.125

_MOST, _LEAST = 0.95, 0.05

# Cloud, zone or region, and instance type.
Key = tuple[str, str, str]


@dataclass(frozen=True)
class PublicSignals:
    """The latest signals, by cloud, zone or region, and instance type; a zone's go before its region's.

    Attributes:
        interrupted: Share of machines that were interrupted, 0 to 1.
        available: Chance that a request for one machine succeeds, 0 to 1.
    """

    interrupted: Mapping[Key, float] = field(default_factory=dict)
    available: Mapping[Key, float] = field(default_factory=dict)

    @classmethod
    def of_signals(cls, signals: Iterable[Signal]) -> PublicSignals:
        """The latest of some signals, whoever told them."""
        found: dict[SignalKind, dict[Key, float]] = {SignalKind.INTERRUPTION: {}, SignalKind.AVAILABILITY: {}}
        for signal in sorted(signals, key=lambda signal: signal.time_s):
            market = signal.market
            if signal.kind in found:
                found[signal.kind][market.cloud, market.zone, market.instance_type] = signal.value
        return cls(found[SignalKind.INTERRUPTION], found[SignalKind.AVAILABILITY])

    def __or__(self, others: PublicSignals) -> PublicSignals:
        """These and others; of both, the others'."""
        return PublicSignals({**self.interrupted, **others.interrupted}, {**self.available, **others.available})

    def applied(self, model: SpellModel, market: Market) -> SpellModel:
        """A market's model with its signals applied; unchanged where there are none."""
        per_hour = np.array(model.per_hour)
        share = _of(self.interrupted, market)
        if share is not None:
            per_hour[UP] *= min(max(share, BAND_SHARES[0]), BAND_SHARES[-1]) / _USUAL_SHARE
        found = replace(model, per_hour=per_hour)
        chance = _of(self.available, market)
        if chance is not None:
            wanted = min(max(chance, _LEAST), _MOST)
            now = min(max(found.share_up, _LEAST), _MOST)
            per_hour[DOWN] *= wanted / (1.0 - wanted) * (1.0 - now) / now
            found = replace(model, per_hour=per_hour)
        return found

    def told_of(self, market: Market) -> bool:
        """Return whether there is any signal of a market."""
        return _of(self.interrupted, market) is not None or _of(self.available, market) is not None

    def of(self, models: SpellModels, markets: Sequence[Market]) -> SpellModels:
        """The models with the signals of these markets applied."""
        own = {str(market): self.applied(models.of(market), market) for market in markets}
        return replace(models, by_market={**models.by_market, **own})


def _of(values: Mapping[Key, float], market: Market) -> float | None:
    of_zone = values.get((market.cloud, market.zone, market.instance_type))
    return values.get((market.cloud, market.region, market.instance_type)) if of_zone is None else of_zone


def read_interruption_bands(path: Path, product: str = "Linux") -> PublicSignals:
    """Read the Spot Instance Advisor's table, as AWS publishes it (`spot-advisor-data.json`).

    Raises:
        InputError: The file is not such a table.
    """
    content = read_json(path)
    try:
        shares = shares_of(content, product)
    except InputError as error:
        raise InputError(error.problem, file=path) from None
    return PublicSignals({("aws", region, kind): share for (region, kind), share in shares.items()})
