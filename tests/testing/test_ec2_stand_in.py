"""The stand-in for EC2, where its machines and its API meet."""

from __future__ import annotations

import threading
from pathlib import Path

import boto3
import pytest
from tests.runs.sweeps import flapping
from tests.waiting import LIMIT_S

from ebbtide.testing.ec2_stand_in.instances import MotoInstances
from ebbtide.testing.ec2_stand_in.running import REGIONS, stand_in

pytestmark = pytest.mark.usefixtures("processes")


def test_a_spot_instance_that_is_being_launched_is_never_seen_as_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moto.ec2.models.instances import Instance

    has_begun, may_end, tag = threading.Event(), threading.Event(), Instance.add_tags

    def tag_slowly(instance: Instance, tags: dict[str, str]) -> None:
        """moto tags an instance after it lists it, and before it says that it is a spot instance."""
        has_begun.set()
        may_end.wait(0.5)
        tag(instance, tags)

    monkeypatch.setattr(Instance, "add_tags", tag_slowly)
    with stand_in(tmp_path / "stand-in", flapping(hours=2.0)) as (_, _, settings):
        client = boto3.Session().client("ec2", region_name=REGIONS[0])
        image = settings.regions[REGIONS[0]].image_id
        spot = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}
        asked = {"ImageId": image, "MinCount": 1, "MaxCount": 1, "UserData": "exit", "InstanceMarketOptions": spot}
        launch = threading.Thread(target=lambda: client.run_instances(InstanceType="c3.xlarge", **asked))
        launch.start()
        assert has_begun.wait(LIMIT_S)
        seen = MotoInstances().running()
        may_end.set()
        launch.join()
    assert [rented.is_spot for rented in seen] == [True]
