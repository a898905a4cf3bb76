"""SpotLake's scores: the scale of a family is that of its time or of its file, and what is unknown is passed over."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.errors import CloudError
from ebbtide.market.signals import SignalKind
from ebbtide.market.sources.spotlake import SpotLake
from ebbtide.market.sources.web import Web

BEFORE, AFTER = "2025-09-24 23:50:00", "2025-09-25 00:00:00"


class Rows(Web):
    """A service that answers with the same rows."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        super().__init__("http://nowhere", "SpotLake")
        object.__setattr__(self, "rows", list(rows))

    def get(self, path: str, *_: Any, **__: Any) -> Any:  # noqa: ARG002
        return self.__dict__["rows"]


def row(kind: str, score: Any, *, time: str = AFTER, zone: str = "use1-az1", **more: Any) -> dict[str, Any]:
    cells = {"time": time, "InstanceType": kind, "Region": "us-east-1", "AZ": zone, "SPS": score, "IF": 3.0}
    return cells | {"SpotPrice": 20.0, "OndemandPrice": 55.0} | more


def chances(*rows: dict[str, Any]) -> dict[tuple[str, str], float]:
    found = SpotLake(web=Rows(*rows)).observe({}, 1.8e9)
    return {
        (signal.market.instance_type, signal.market.zone): signal.value
        for signal in found.signals
        if signal.kind is SignalKind.AVAILABILITY and signal.market.zone != signal.market.region
    }


@pytest.mark.parametrize(
    ("kind", "score", "time", "chance"),
    [
        ("p5.48xlarge", 9, AFTER, 0.9),
        ("p5.48xlarge", 4, AFTER, 0.4),
        ("p5.48xlarge", 3, AFTER, 0.3),
        ("p4d.24xlarge", "3", AFTER, 0.3),
        ("p5.48xlarge", 10, AFTER, 1.0),
        ("p5.48xlarge", 3, BEFORE, 1.0),
        ("p5.48xlarge", 1, BEFORE, 1 / 3),
        ("g5.xlarge", 2, AFTER, 2 / 3),
        ("g5.xlarge", 3.0, BEFORE, 1.0),
    ],
)
def test_a_score_is_a_share_of_the_best_of_its_family(kind: str, score: Any, time: str, chance: float) -> None:
    assert chances(row(kind, score, time=time)) == {(kind, "use1-az1"): pytest.approx(chance)}


def test_one_score_above_three_shows_the_scale_of_its_family() -> None:
    found = chances(row("g6.xlarge", 3), row("g5.xlarge", 7, zone="use1-az2"), row("c5.large", 3))
    assert found == {("g6.xlarge", "use1-az1"): 0.3, ("g5.xlarge", "use1-az2"): 0.7, ("c5.large", "use1-az1"): 1.0}
    # What is not asked for says so, too.
    web = Rows(row("g6.xlarge", 3), row("g5.xlarge", 7))
    signals = SpotLake(instance_types=["g6.xlarge"], web=web).observe({}, 1.8e9).signals
    assert {one.value for one in signals if one.kind is SignalKind.AVAILABILITY} == {0.3}


@pytest.mark.parametrize("unknown", [None, "", " ", -1, -1.0, "-1", float("nan"), "NaN", "null", "N/A"])
def test_what_is_unknown_is_passed_over(unknown: Any) -> None:
    rows = [row("p5.48xlarge", unknown, IF=unknown, SpotPrice=unknown), row("g5.xlarge", 3)]
    found = SpotLake(web=Rows(*rows)).observe({}, 1.8e9)
    assert {signal.market.instance_type for signal in found.signals} == {"g5.xlarge"}
    assert found.prices["instance_type"].tolist() == ["g5.xlarge"]


@pytest.mark.parametrize("score", [11, "high", [3]])
def test_a_score_of_no_scale_is_told(score: Any) -> None:
    with pytest.raises(CloudError, match="a row that cannot be read"):
        chances(row("g5.xlarge", score))
