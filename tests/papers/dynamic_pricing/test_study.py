"""Dynamic Pricing's analysis on prices worked out by hand, and on the real ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.markets import history

import ebbtide as eb
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide_papers.dynamic_pricing.study import (
    EGRESS_USD_PER_GB,
    MODEL_GB,
    egress_share,
    follow,
    gpu_markets,
    read_throughputs,
    spot_reductions,
)

V100 = eb.Market("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
K80S = eb.Market("aws", "us-east-1", "us-east-1b", "p2.8xlarge")
K80 = eb.Market("aws", "us-east-1", "us-east-1b", "p2.xlarge")
P100 = eb.Market("azure", "us-east", "us-east", "NC6s v2")
DAY = 86_400.0

# A V100 does four times the steps of a K80, a P100 twice. The P100 is cheap on the second day only.
RATES = {"k80": 1.0, "p100": 2.0, "v100": 4.0}
AWS = history({V100: [(0, 1.0)], K80: [(0, 0.2)], K80S: [(0, 1.2)]}, hours=96.0)
AZURE = history({P100: [(0, 0.4), (DAY, 0.1), (2 * DAY, 0.4)]}, hours=96.0)


def test_every_strategy_by_hand() -> None:
    known = gpu_markets([AWS, AZURE], eb.default_catalogue())
    found = follow(known, RATES, 2.0)
    first = {name: costs[0] * 3600 for name, costs in found.usd_per_step.items()}
    assert first["1xV100"] == pytest.approx(1.0 / 4)
    assert first["gpu-type"] == pytest.approx(0.2)
    # Eight K80 for 1.2: 0.15 each.
    assert first["multi-gpu"] == pytest.approx(0.15)
    assert first["multi-cloud"] == pytest.approx(0.15)
    # A day at 0.15 a step-hour, a day of two steps at 0.05, one move of a checkpoint and of 150 seconds.
    spent = 24 * 0.15 + 24 * 0.1 + MODEL_GB["bert_base"] * EGRESS_USD_PER_GB
    assert first["dynamic"] == pytest.approx(spent / (24 + 48 - 150 / 3600 * 2))
    assert found.switches[0] == 1
    assert found.reduction("dynamic", "dynamic") == 1.0


def test_a_move_that_does_not_pay_is_not_made() -> None:
    """A tenth of a per cent cheaper for a day is not worth the egress of a checkpoint."""
    azure = history({P100: [(0, 0.4), (DAY, 0.2998), (2 * DAY, 0.4)]}, hours=96.0)
    found = follow(gpu_markets([AWS, azure], eb.default_catalogue()), RATES, 2.0)
    # Those that start on the first day; later ones begin on the P100 and leave it when it is dear.
    assert found.switches[:4].tolist() == [0] * 4
    np.testing.assert_allclose(found.usd_per_step["dynamic"][:4], found.usd_per_step["multi-cloud"][:4])


def test_dynamic_never_costs_more_than_staying_by_much() -> None:
    prices = eb.generate_prices([V100, K80, K80S], days=12, seed=4, kind="auction")
    found = follow(gpu_markets([prices], eb.default_catalogue()), RATES, 4.0)
    assert found.usd_per_step["dynamic"].mean() <= 1.02 * found.usd_per_step["multi-cloud"].mean()


def test_list_price_over_spot_price_and_egress() -> None:
    assert spot_reductions([AWS, AZURE], eb.default_catalogue())["aws", "k80"] == pytest.approx(0.9 / 0.2)
    known = gpu_markets([AWS], eb.default_catalogue())
    assert egress_share(known, 10.0) == pytest.approx(10.0 * EGRESS_USD_PER_GB / 160.0)


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    catalogue = eb.default_catalogue()
    with pytest.raises(InputError, match="no market of these prices has K80, P100 or V100"):
        gpu_markets([eb.generate_prices(days=2, seed=1, kind="auction")], catalogue)
    with pytest.raises(InputError, match="the prices have 96 h in common; jobs of 240 h need more"):
        follow(gpu_markets([AWS], catalogue), RATES, 10.0)
    with pytest.raises(InputError, match="the baseline is a single V100"):
        follow(gpu_markets([AZURE], catalogue), RATES, 1.0)
    (tmp_path / "bad.json").write_text('{"k80": {"m": {"null": -1}}}')
    with pytest.raises(InputError, match="field k80.m: -1.0 steps a second"):
        read_throughputs(tmp_path / "bad.json")
    (tmp_path / "worse.json").write_text("[1]")
    with pytest.raises(InputError, match="needs"):
        read_throughputs(tmp_path / "worse.json")


@pytest.mark.real_traces
def test_the_command_on_real_prices(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "reproduce",
                "dynamic-pricing",
                "--prices",
                str(traces / "ec2-gpu-2020.parquet"),
                "--prices",
                str(traces / "azure-gpu-2020.parquet"),
                "--throughputs",
                str(traces / "gpu-throughputs-2020.json"),
                "--json",
                str(out),
            ]
        )
    assert not ended.value.code
    rows = {row["id"]: row for row in json.loads(out.read_text())["rows"]}
    assert len(rows) == 10
    assert rows["spot_reduction_aws_k80"]["ours"] == pytest.approx(2.67, abs=0.01)
    assert rows["spot_reduction_aws_v100"]["ours"] == pytest.approx(3.33, abs=0.01)
    assert rows["total_cost_reduction_max"]["holds"]
    assert rows["dynamic_cost_reduction_max"]["ours"] > 1.0
