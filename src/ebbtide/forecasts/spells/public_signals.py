"""Public signals of capacity: AWS's interruption bands and spot placement scores, applied to spell models.

Both are coarse and are not published together with outcomes, so their effect is an assumption, stated here: a band
scales the hazard of up spells in proportion; a score changes the hazard of down spells so that machines are
available for the share of time that it gives. Without signals, models stay as they were fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ebbtide._input_files import read_json
from ebbtide.errors import InputError
from ebbtide.forecasts.spells.fitting import DOWN, UP, SpellModel
from ebbtide.forecasts.spells.models import SpellModels
from ebbtide.market.markets import Market

# Spot Instance Advisor's bands: share of machines interrupted in the last month, under 5 %, to 10, 15, 20, more.
_BANDS = (0.025, 0.075, 0.125, 0.175, 0.25)
_USUAL_BAND = 0.125

_MOST, _LEAST = 0.95, 0.05


@dataclass(frozen=True)
class PublicSignals:
    """The latest published signals.

    Attributes:
        bands: Interruption band by region and instance type, from 0 (rarely interrupted) to 4.
        scores: Placement score by region or zone and instance type, from 1 to 10 (likely to succeed).
    """

    bands: Mapping[tuple[str, str], int] = field(default_factory=dict)
    scores: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def applied(self, model: SpellModel, market: Market) -> SpellModel:
        """A market's model with its signals applied; unchanged where there are none."""
        per_hour = np.array(model.per_hour)
        band = self.bands.get((market.region, market.instance_type))
        if band is not None:
            per_hour[UP] *= _BANDS[band] / _USUAL_BAND
        found = replace(model, per_hour=per_hour)
        score = self.scores.get(
            (market.zone, market.instance_type), self.scores.get((market.region, market.instance_type))
        )
        if score is not None:
            wanted = min(max(score / 10.0, _LEAST), _MOST)
            now = min(max(found.share_up, _LEAST), _MOST)
            per_hour[DOWN] *= wanted / (1.0 - wanted) * (1.0 - now) / now
            found = replace(model, per_hour=per_hour)
        return found

    def of(self, models: SpellModels, markets: Sequence[Market]) -> SpellModels:
        """The models with the signals of these markets applied."""
        own = {str(market): self.applied(models.of(market), market) for market in markets}
        return replace(models, by_market={**models.by_market, **own})


def read_interruption_bands(path: Path, product: str = "Linux") -> PublicSignals:
    """Read the Spot Instance Advisor's table, as AWS publishes it (`spot-advisor-data.json`).

    Raises:
        InputError: The file is not such a table.
    """
    try:
        regions = read_json(path)["spot_advisor"]
        bands = {
            (str(region), str(kind)): int(row["r"])
            for region, products in regions.items()
            for kind, row in products.get(product, {}).items()
        }
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"is not the Spot Instance Advisor's table: {error!r}", file=path) from None
    wrong = next((key for key, band in bands.items() if not 0 <= band < len(_BANDS)), None)
    if wrong is not None:
        problem = f"band {bands[wrong]} of {' '.join(wrong)} is not one of 0 to {len(_BANDS) - 1}"
        raise InputError(problem, file=path)
    return PublicSignals(bands=bands)


class _Ec2(Protocol):
    def get_spot_placement_scores(self, **options: Any) -> Any: ...


def placement_scores(client: _Ec2, instance_types: Sequence[str], regions: Sequence[str]) -> PublicSignals:
    """Ask EC2 for the placement score of one machine of each type, by region.

    Args:
        client: `boto3.client("ec2")`, with credentials of the standard chain.
        instance_types: Types to score, one request each: a request for several gets one score for all.
        regions: Names of the AWS regions to score.
    """
    scores: dict[tuple[str, str], int] = {}
    for kind in instance_types:
        asked: dict[str, Any] = {"InstanceTypes": [kind], "TargetCapacity": 1, "RegionNames": list(regions)}
        while True:
            answer = client.get_spot_placement_scores(**asked)
            for row in answer.get("SpotPlacementScores", []):
                scores[str(row["Region"]), kind] = int(row["Score"])
            if not answer.get("NextToken"):
                break
            asked["NextToken"] = answer["NextToken"]
    return PublicSignals(scores=scores)
