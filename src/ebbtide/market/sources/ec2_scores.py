"""EC2's spot placement scores: how likely a request is to succeed, by region and instance type.

A score is from 1 to 10; a tenth of it is taken for the chance of one machine. AWS says itself that scores of one
type alone are low, so they compare regions better than they tell chances.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.errors import CloudError
from ebbtide.market.markets import Market
from ebbtide.market.signals import Observation, Signal, SignalKind
from ebbtide.market.sources.ec2_api import EC2_ERRORS, ec2_client, refused, retrying

_MOST_PAGES = 100


@dataclass(frozen=True)
class Ec2Scores:
    """Placement scores of one machine of each type.

    Attributes:
        regions: Names of the AWS regions to score.
        instance_types: Names of the instance types, one request each: several in one get one score for all.
        endpoint_url: Address of another EC2 endpoint, for tests.
        attempts: Number of times one page is tried before giving up.
        first_wait_s: Wait after the first throttled try, seconds.
    """

    regions: Sequence[str]
    instance_types: Sequence[str]
    endpoint_url: str | None = None
    attempts: int = 8
    first_wait_s: float = 1.0
    name = "ec2-scores"
    # AWS limits how many different requests an account may send in a day.
    every_s = 3600.0

    def observe(self, since_s: Mapping[str, float], now_s: float) -> Observation:  # noqa: ARG002
        """See `LiveSource`."""
        try:
            client = ec2_client(self.regions[0], self.endpoint_url)
            signals = [
                Signal(now_s, SignalKind.AVAILABILITY, Market("aws", region, region, kind), score / 10.0)
                for kind in self.instance_types
                for region, score in self._scores(client, kind)
            ]
        except EC2_ERRORS as error:
            raise refused("EC2 placement scores", error) from None
        return Observation(signals=signals)

    def _scores(self, client: Any, kind: str) -> Iterator[tuple[str, int]]:
        """Scores of one type by region."""
        again = retrying(self.attempts, self.first_wait_s)
        asked: dict[str, Any] = {
            "InstanceTypes": [kind],
            "TargetCapacity": 1,
            "RegionNames": list(self.regions),
            "MaxResults": 1000,
        }
        for _ in range(_MOST_PAGES):
            answer: Any = again(client.get_spot_placement_scores, **asked)
            for row in answer.get("SpotPlacementScores", []):
                try:
                    yield str(row["Region"]), int(row["Score"])
                except KeyError as error:
                    raise CloudError(f"EC2 placement scores: a score has no {error.args[0]}") from None
            if not answer.get("NextToken"):
                return
            asked["NextToken"] = answer["NextToken"]
        raise CloudError(f"EC2 placement scores have no end: {_MOST_PAGES} pages")
