"""SkyPilot as a cloud: its settings, and what becomes of single machines, on a stand-in for its API server."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.clouds.renters import SKYPILOT, Renter, renter
from tests.runs.sweeps import G
from tests.waiting import eventually

from ebbtide.clouds.cloud import MachineRequest
from ebbtide.clouds.skypilot import cloud as sky_cloud
from ebbtide.clouds.skypilot.api import SkyApi
from ebbtide.clouds.skypilot.cloud import SkyPilotCloud
from ebbtide.clouds.skypilot.settings import SkyPilotSettings
from ebbtide.errors import InputError
from ebbtide.market.leases import LeaseState
from ebbtide.testing.skypilot_stand_in.api import SkyPilotApi

pytestmark = pytest.mark.usefixtures("processes")

# The API, a controller's view of it, and what makes another controller's.
Rented = tuple[SkyPilotApi, SkyPilotCloud, Callable[[], SkyPilotCloud]]
EXAMPLES = Path(__file__).parents[3] / "examples" / "live"
WANTED = MachineRequest("run-1-1", G, math.inf, False, {"machine": "run-1-1", "bundle": "runs/r/agent-0.tar.gz"})


@pytest.fixture
def sky(tmp_path: Path, machine_python: str) -> Iterator[Renter]:
    with renter(SKYPILOT, tmp_path, machine_python) as one:
        yield one


def test_machines_that_work_as_one_are_refused(sky: Renter) -> None:
    sky.write(trials=1)
    sky.change(machines=2)
    code, _, errors = sky.do(*sky.words)
    assert code == 2
    assert "does not tell their addresses; use ec2 or gcp" in errors


def test_the_example_and_wrong_settings(tmp_path: Path) -> None:
    found = SkyPilotSettings.read(EXAMPLES / "skypilot.yaml")
    assert [str(place) for place in found.zones] == ["aws us-east-1", "lambda us-west-1"]
    assert found.prices == str(EXAMPLES / "sky-prices.parquet")
    file = tmp_path / "skypilot.yaml"
    for wrong, field in (("us-east-1: {}", "places"), ("aws/us-east-1: {zone: a}", "zone")):
        file.write_text(f"places: {{{wrong}}}\nprices: p\nstore: s3://b/x\n")
        with pytest.raises(InputError, match=field):
            SkyPilotSettings.read(file)


@pytest.fixture
def rented(sky: Renter) -> Rented:
    sky.machines.ignores_shutdown = True

    def controller() -> SkyPilotCloud:
        return SkyPilotCloud("run-1", sky.settings, lambda: sky.prices)

    return sky.api, controller(), controller


class Lacking:
    """An API server whose list of clusters is empty."""

    def __init__(self, sky: SkyApi) -> None:
        self._sky = sky

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sky, name)

    def clusters(self) -> list[Mapping[str, Any]]:
        return []


def only(cloud: SkyPilotCloud, *states: LeaseState) -> None:
    def reached() -> bool:
        return [one.state for one in cloud.instances()] == list(states)

    eventually(reached, message=lambda: f"not {states}: {cloud.instances()}")


def test_another_controller_of_the_run_rents_no_second_machine(rented: Rented) -> None:
    api, cloud, controller = rented
    cloud.launch(WANTED)
    again = controller()
    again.launch(WANTED)
    only(again, LeaseState.RUNNING)
    assert again.terminate(WANTED.token) is not None
    eventually(lambda: not api.names())
    third = controller()
    third.launch(WANTED)
    assert [path for path, _ in api.asked].count("/launch") == 1


def test_a_node_that_has_stopped_is_revoked_and_what_is_left_taken_down(rented: Rented) -> None:
    api, cloud, controller = rented
    cloud.launch(WANTED)
    only(cloud, LeaseState.RUNNING)
    (name,) = api.names()
    api.show(name, "STOPPED")
    # One that has begun since has never seen it up.
    fresh = controller()
    only(fresh, LeaseState.REVOKED)
    only(cloud, LeaseState.REVOKED)
    (before,) = cloud.instances()
    eventually(lambda: not api.names())
    (after,) = cloud.instances()
    assert (after.state, after.ended_s) == (before.state, before.ended_s)


def test_one_in_trouble_is_not_given_up_at_once(rented: Rented, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may lose sight of a machine that trains on."""
    api, cloud, _ = rented
    cloud.launch(WANTED)
    only(cloud, LeaseState.RUNNING)
    (name,) = api.names()
    api.show(name, "INIT")
    only(cloud, LeaseState.RUNNING)
    api.show(name, "UP")
    only(cloud, LeaseState.RUNNING)
    monkeypatch.setattr(sky_cloud, "_NOT_UP_S", 0.3)
    api.show(name, "INIT")
    only(cloud, LeaseState.REVOKED)
    eventually(lambda: not api.names())


def test_a_cluster_that_one_list_lacks_is_still_there(rented: Rented, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list may lack a cluster for a moment; its machine would be taken down for it."""
    api, cloud, _ = rented
    cloud.launch(WANTED)
    only(cloud, LeaseState.RUNNING)
    with monkeypatch.context() as patch:
        patch.setattr(cloud, "_api", Lacking(sky=cloud._api))
        only(cloud, LeaseState.RUNNING)
    only(cloud, LeaseState.RUNNING)
    assert len(api.names()) == 1
    assert "/down" not in [path for path, _ in api.asked]


def test_a_cluster_that_stays_missing_was_revoked_when_it_went(
    rented: Rented, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, cloud, _ = rented
    monkeypatch.setattr(sky_cloud, "_MISSING_S", 0.5)
    cloud.launch(WANTED)
    only(cloud, LeaseState.RUNNING)
    api.take_away(api.names()[0])
    eventually(lambda: not api.names())
    (first,) = cloud.instances()
    assert first.state is LeaseState.RUNNING
    only(cloud, LeaseState.REVOKED)
    assert cloud.instances()[0].ended_s == pytest.approx(first.listed_s)


def test_a_machine_that_is_ended_after_it_is_gone_was_revoked(rented: Rented) -> None:
    """The request for its end hides no revocation that a list has shown."""
    api, cloud, _ = rented
    cloud.launch(WANTED)
    only(cloud, LeaseState.RUNNING)
    api.take_away(api.names()[0])
    eventually(lambda: not api.names())
    (seen,) = cloud.instances()
    assert cloud.terminate(WANTED.token) == pytest.approx(seen.listed_s)
    only(cloud, LeaseState.REVOKED)


def test_one_that_is_taken_before_it_was_seen_was_taken(rented: Rented) -> None:
    api, cloud, _ = rented
    cloud.launch(WANTED)
    eventually(lambda: [one.id for one in api.running()])
    api.take_away(api.names()[0])
    only(cloud, LeaseState.REVOKED)
    (found,) = cloud.instances()
    assert found.started_s <= found.running_s <= found.ended_s


def test_a_launch_under_way_is_given_up(rented: Rented) -> None:
    api, cloud, _ = rented
    api.boots_s = 600.0
    cloud.launch(WANTED)
    only(cloud, LeaseState.REQUESTED)
    assert cloud.terminate(WANTED.token) is not None
    only(cloud, LeaseState.RELEASED)
    eventually(lambda: not api.names())
    assert cloud.instances()[0].state is LeaseState.RELEASED


@pytest.mark.long
def test_a_machine_that_does_not_go_counts_until_it_does(rented: Rented, monkeypatch: pytest.MonkeyPatch) -> None:
    api, cloud, _ = rented
    monkeypatch.setattr(sky_cloud, "_GONE_S", 0.2)
    monkeypatch.setattr(sky_cloud, "_AGAIN_S", 0.1)
    cloud.launch(WANTED)
    only(cloud, LeaseState.RUNNING)
    api.refusals.downs = "ClusterStatusFetchingError"
    cloud.terminate(WANTED.token)
    only(cloud, LeaseState.RUNNING)
    api.refusals.downs = ""
    only(cloud, LeaseState.RELEASED)
    eventually(lambda: not api.names())


def test_what_only_its_user_can_mend_is_told_as_such(rented: Rented) -> None:
    api, cloud, _ = rented
    api.refusals.launches.append("NoCloudAccessError")
    cloud.launch(WANTED)
    only(cloud, LeaseState.FAILED)
    (failed,) = cloud.instances()
    assert failed.needs_user
    assert failed.why.startswith("SkyPilot will not rent as it is asked to: NoCloudAccessError: Failed to")


def test_what_its_user_has_mended_is_requested_again(rented: Rented) -> None:
    """The server keeps the request that failed, and the run that is resumed asks by the same name."""
    api, cloud, controller = rented
    api.refusals.launches.append("NoCloudAccessError")
    cloud.launch(WANTED)
    only(cloud, LeaseState.FAILED)
    resumed = controller()
    resumed.launch(WANTED)
    only(resumed, LeaseState.RUNNING)
    # One that failed for want of machines stays so: the policy asks elsewhere.
    api.refusals.launches.append("ResourcesUnavailableError")
    other = replace(WANTED, token="run-1-2")
    resumed.launch(other)
    only(resumed, LeaseState.RUNNING, LeaseState.FAILED)
    again = controller()
    again.launch(other)
    eventually(lambda: [one.state for one in again.instances() if one.token == other.token] == [LeaseState.FAILED])


@pytest.mark.parametrize("launched_at", [4e9, 1e300, "yesterday", None, -1])
def test_whatever_its_server_says_of_the_time_no_machine_ends_before_it_starts(
    rented: Rented, launched_at: object
) -> None:
    api, cloud, _ = rented
    api.launched_at = launched_at
    cloud.launch(WANTED)
    only(cloud, LeaseState.RUNNING)
    (found,) = cloud.instances()
    # Clocks of two cores may differ by milliseconds.
    assert found.started_s <= found.running_s <= time.time() + 1
    # Also when it is looked at later.
    eventually(lambda: cloud.now_s > found.running_s)
    assert cloud.instances()[0].started_s == found.started_s
    assert (cloud.terminate(WANTED.token) or 0.0) >= found.started_s
    (ended,) = cloud.instances()
    assert ended.ended_s >= ended.started_s
