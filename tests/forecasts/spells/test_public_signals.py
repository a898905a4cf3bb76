"""Interruption bands and placement scores: how they are read, and what they do to a model."""

from __future__ import annotations

import json
from pathlib import Path

import boto3
import numpy as np
import pytest
from botocore.stub import Stubber

import ebbtide as eb
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.forecasts.spells.fitting import AGE_BINS_S, DOWN, UP, SpellModel
from ebbtide.forecasts.spells.models import SpellModels, default_spell_models
from ebbtide.forecasts.spells.public_signals import PublicSignals, placement_scores, read_interruption_bands
from ebbtide.market.markets import Market

EAST = Market("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
WEST = Market("aws", "us-west-2", "us-west-2b", "p3.2xlarge")
BINS = len(AGE_BINS_S)
MODEL = SpellModel(np.array([[1.0] * BINS, [0.5] * BINS]))


def test_bands_are_read_and_move_how_often_machines_go(tmp_path: Path) -> None:
    table = {
        "spot_advisor": {
            "us-east-1": {"Linux": {"p3.2xlarge": {"s": 70, "r": 4}}, "Windows": {}},
            "us-west-2": {"Linux": {"p3.2xlarge": {"s": 65, "r": 0}}},
        }
    }
    (tmp_path / "advisor.json").write_text(json.dumps(table))
    signals = read_interruption_bands(tmp_path / "advisor.json")
    models = signals.of(SpellModels(MODEL), [EAST, WEST])
    assert models.of(EAST).per_hour[UP] == pytest.approx(2 * MODEL.per_hour[UP])
    assert models.of(WEST).per_hour[UP] == pytest.approx(MODEL.per_hour[UP] / 5)
    assert models.of(EAST).per_hour[DOWN] == pytest.approx(MODEL.per_hour[DOWN])
    other = Market("aws", "eu-west-1", "eu-west-1a", "p3.2xlarge")
    assert models.of(other) is MODEL
    assert PublicSignals().applied(MODEL, EAST).per_hour == pytest.approx(MODEL.per_hour)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[", "is not JSON"),
        ("{}", "is not the Spot"),
        ('{"spot_advisor": {"a": {"Linux": {"t": {"r": 7}}}}}', "band 7 of a t is not one of 0 to 4"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InputError, match=told):
        read_interruption_bands(tmp_path / "x.json")
    with pytest.raises(InputError, match="there is no such file"):
        read_interruption_bands(tmp_path / "y.json")


def test_scores_are_asked_page_by_page_and_move_how_often_one_can_be_had() -> None:
    client = boto3.client("ec2", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    asked = {"InstanceTypes": ["p3.2xlarge"], "TargetCapacity": 1, "RegionNames": ["us-east-1", "us-west-2"]}
    pages = [
        ({"Region": "us-east-1", "Score": 9}, {}, {"NextToken": "t"}),
        ({"Region": "us-west-2", "Score": 2}, {"NextToken": "t"}, {}),
    ]
    with Stubber(client) as stub:
        for row, also, more in pages:
            answer = {"SpotPlacementScores": [row], **more}
            stub.add_response("get_spot_placement_scores", answer, {**asked, **also})
        signals = placement_scores(client, ["p3.2xlarge"], ["us-east-1", "us-west-2"])
        stub.assert_no_pending_responses()
    assert signals.scores == {("us-east-1", "p3.2xlarge"): 9, ("us-west-2", "p3.2xlarge"): 2}
    assert signals.applied(MODEL, EAST).share_up == pytest.approx(0.9)
    assert signals.applied(MODEL, WEST).share_up == pytest.approx(0.2)
    zonal = PublicSignals(scores={("us-east-1a", "p3.2xlarge"): 5, ("us-east-1", "p3.2xlarge"): 9})
    assert zonal.applied(MODEL, EAST).share_up == pytest.approx(0.5)


def test_the_command_adjusts_the_models_of_a_price_file_s_markets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = eb.generate_prices(days=2)
    prices.write(tmp_path / "prices.parquet")
    market = prices.markets[0]
    table = {"spot_advisor": {market.region: {"Linux": {market.instance_type: {"r": 4}}}}}
    (tmp_path / "advisor.json").write_text(json.dumps(table))
    files = [str(tmp_path / name) for name in ("prices.parquet", "spells.json", "advisor.json")]
    assert exit_code("availability", "adjust", files[0], "--out", files[1], "--bands", files[2]) == 0
    before, after = default_spell_models(), SpellModels.read(files[1])
    assert after.of(market).per_hour[UP] == pytest.approx(2 * before.of(market).per_hour[UP])
    assert str(market) in capsys.readouterr().out
    again = ("--out", files[1], "--bands", files[2], "--spells", files[1])
    assert exit_code("availability", "adjust", files[0], *again) == 0
    assert SpellModels.read(files[1]).of(market).per_hour[UP] == pytest.approx(4 * before.of(market).per_hour[UP])
    assert exit_code("availability", "adjust", files[0], "--out", files[1]) == 2
    assert "give --bands FILE, --scores or both" in capsys.readouterr().err


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)
