"""Google Cloud as a cloud, on its stand-in: requested once, labelled, refused, found, ended."""

from __future__ import annotations

import base64
import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.runs.sweeps import G, H, steady
from tests.waiting import eventually

from ebbtide.clouds.cloud import Instance, MachineRequest
from ebbtide.clouds.gcp.cloud import GcpCloud
from ebbtide.clouds.gcp.settings import GcpSettings
from ebbtide.errors import CloudError, InputError
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.testing.gcp_stand_in.api import GcpApi
from ebbtide.testing.gcp_stand_in.running import gcp_stand_in
from ebbtide.testing.stand_in.machines import StandInMachines
from ebbtide.testing.stand_in.money import until_now

PRICES = until_now(steady(), time.time())
GCP = tuple[GcpApi, StandInMachines, GcpSettings]


@pytest.fixture
def gcp(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[GCP]:
    with gcp_stand_in(tmp_path / "stand-in", PRICES) as found:
        found[1].ignores_shutdown = True
        if "processes" not in request.fixturenames:
            # Where this machine is slow, an instance's program would begin before its test ends.
            found[1].close()
        yield found


@pytest.fixture
def cloud(gcp: GCP) -> GcpCloud:
    return made(gcp)


def made(gcp: GCP, run: str = "run-1", **options: Any) -> GcpCloud:
    return GcpCloud(run, gcp[2].model_copy(update=options), lambda: PRICES)


def wanted(token: str, market: Market = G, **options: Any) -> MachineRequest:
    given = {"max_price_usd_per_hour": 0.21, "on_demand": False, "agent": {"bundle": "runs/r/agent-0.tar.gz"}}
    return MachineRequest(token, market, **{**given, **options})


def listed(cloud: GcpCloud) -> dict[str, Instance]:
    return {one.token: one for one in cloud.instances()}


def states(cloud: GcpCloud) -> dict[str, LeaseState]:
    return {token: one.state for token, one in listed(cloud).items()}


def wait_for(cloud: GcpCloud, token: str, state: LeaseState) -> Instance:
    def reached() -> Instance | None:
        found = listed(cloud).get(token)
        return found if found is not None and found.state is state else None

    return eventually(reached, message=lambda: f"{token} is not {state}: {listed(cloud).get(token)}")


def test_a_machine_is_asked_for_as_wanted(gcp: GCP) -> None:
    api, _, _ = gcp
    made(gcp, disk_gib=60, tags=["training"], labels={"team": "vision"}, notice_s=120).launch(
        wanted("run-1-m0000")
    )
    (asked,) = api.compute.requested
    assert asked["machineType"] == "zones/us-central1-a/machineTypes/n1-standard-4"
    assert asked["scheduling"] == {
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": "604800"},
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
        "preemptionNoticeDuration": {"seconds": "120"},
    }
    assert asked["labels"] == {"team": "vision", "ebbtide-run": "run-1", "ebbtide-token": "run-1-m0000"}
    (disk,) = asked["disks"]
    assert (disk["autoDelete"], disk["initializeParams"]["diskSizeGb"]) == (True, "60")
    assert asked["tags"] == {"items": ["training"]}
    assert asked["serviceAccounts"][0]["email"].startswith("agent@")
    items = {item["key"]: item["value"] for item in asked["metadata"]["items"]}
    assert items["ebbtide-token"] == "run-1-m0000"
    config = re.search(r"printf %s (\S+)", items["startup-script"])
    assert config is not None
    agent = json.loads(base64.b64decode(config.group(1)))
    assert (agent["metadata_of"], agent["notice_s"]) == ("gcp", 120.0)


def test_on_demand_is_no_spot_and_accelerators_come_by_type_or_beside_it(gcp: GCP) -> None:
    api, _, _ = gcp
    cloud = made(gcp, external_ip=False)
    cloud.launch(wanted("a", on_demand=True))
    cloud.launch(wanted("b", replace(G, instance_type="g2-standard-8"), on_demand=True))
    cloud.launch(wanted("c", replace(G, instance_type="n1-standard-8+nvidia-tesla-t4:2"), on_demand=True))
    plain, l4, t4 = api.compute.requested
    assert [one["scheduling"]["provisioningModel"] for one in (plain, l4, t4)] == ["STANDARD"] * 3
    hosts = [one["scheduling"]["onHostMaintenance"] for one in (plain, l4, t4)]
    assert hosts == ["MIGRATE", "TERMINATE", "TERMINATE"]
    assert "guestAccelerators" not in l4
    assert t4["machineType"].endswith("/n1-standard-8")
    (given,) = t4["guestAccelerators"]
    assert given == {
        "acceleratorType": "zones/us-central1-a/acceleratorTypes/nvidia-tesla-t4",
        "acceleratorCount": 2,
    }
    assert "accessConfigs" not in plain["networkInterfaces"][0]
    with pytest.raises(InputError, match="is no instance type of GCP; write for example g2-standard-8"):
        cloud.launch(wanted("d", replace(G, instance_type="N1 standard"), on_demand=True))


@pytest.mark.parametrize("code", ["ZONE_RESOURCE_POOL_EXHAUSTED", "quotaExceeded"])
def test_a_refusal_is_told_as_a_launch_that_failed(cloud: GcpCloud, gcp: GCP, code: str) -> None:
    gcp[0].compute.refusals.launches.append(code)
    cloud.launch(wanted("a"))
    found = wait_for(cloud, "a", LeaseState.FAILED)
    assert code in found.why
    # Asked again, it stays refused: the policy asks elsewhere, with another token.
    cloud.launch(wanted("a"))
    assert states(cloud) == {"a": LeaseState.FAILED}


@pytest.mark.long
def test_a_price_above_the_max_price_is_a_refusal_of_our_own(cloud: GcpCloud, gcp: GCP) -> None:
    cloud.launch(wanted("a", max_price_usd_per_hour=0.02))
    assert "the price, 0.03 USD an hour, is above the max price" in listed(cloud)["a"].why
    assert not gcp[0].compute.requested


def test_too_many_requests_are_repeated_and_then_told(cloud: GcpCloud, gcp: GCP) -> None:
    refusals = gcp[0].compute.refusals
    refusals.launches.extend(["rateLimitExceeded", "backendError"])
    with pytest.raises(CloudError, match="503 backendError"):
        cloud.launch(wanted("a"))
    refusals.launches.append("backendError")
    # Once more within the same call.
    cloud.launch(wanted("a"))
    assert len(gcp[0].compute.requested) == 1
    assert set(states(cloud)) == {"a"}


@pytest.mark.parametrize("code", ["forbidden", "invalid", "notFound"])
def test_what_only_the_user_can_mend_is_said_to_the_user(cloud: GcpCloud, gcp: GCP, code: str) -> None:
    gcp[0].compute.refusals.launches.append(code)
    with pytest.raises(InputError, match=f"us-central1-a will not rent as it is asked to.*{code}"):
        cloud.launch(wanted("a"))


def test_a_project_that_may_not_be_read_rents_nothing(cloud: GcpCloud, gcp: GCP) -> None:
    """Before, the request was repeated for minutes, and no other cloud was asked."""
    gcp[0].compute.refusals.reads = "accessNotConfigured"
    with pytest.raises(InputError, match="us-central1-a will not rent as it is asked to.*accessNotConfigured"):
        cloud.launch(wanted("a"))
    gcp[0].compute.refusals.reads = ""
    gcp[0].compute.refusals.launches.extend(["backendError"] * 2)
    with pytest.raises(CloudError) as sent:
        cloud.launch(wanted("a"))
    gcp[0].compute.refusals.reads = "rateLimitExceeded"
    with pytest.raises(CloudError) as unsent:
        cloud.launch(wanted("a"))
    assert (sent.value.is_unsent, unsent.value.is_unsent) == (False, True)


@pytest.mark.parametrize(
    ("status", "page"),
    [
        (200, b"<!DOCTYPE html><title>Sign in</title>"),
        (302, b""),
        (200, b""),
        (200, b"[]"),
        (200, b'{"status": "ok"}'),
        (403, b"<p>Forbidden"),
        (404, b"{}"),
        (502, b"upstream"),
    ],
)
def test_an_answer_that_is_not_google_s_is_no_empty_list(
    cloud: GcpCloud, monkeypatch: pytest.MonkeyPatch, status: int, page: bytes
) -> None:
    """Before, a proxy's page meant that there are no machines: they were no longer charged, and rented again."""
    cloud.launch(wanted("a"))
    assert set(states(cloud)) == {"a"}
    compute: Any = cloud._compute
    monkeypatch.setattr(compute, "_sleep", lambda _duration_s: None)
    monkeypatch.setattr(compute._tokens, "token", lambda: "token")
    monkeypatch.setattr(compute._pool, "request", lambda *_, **__: SimpleNamespace(status=status, data=page))
    for ask in (cloud.instances, cloud.end_all, lambda: cloud.terminate("a"), lambda: cloud.launch(wanted("b"))):
        with pytest.raises(CloudError, match="Compute Engine does not answer.*none of Google's"):
            ask()


def test_credentials_that_were_renewed_are_found(cloud: GcpCloud, gcp: GCP) -> None:
    cloud.instances()
    gcp[0].expired.update(gcp[0].given)
    before = len(gcp[0].given)
    assert cloud.instances() == []
    assert len(gcp[0].given) == before + 1


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_another_process_finds_what_has_become_of_machines_that_are_no_longer_listed(gcp: GCP) -> None:
    """Without the memory of the one that rented them: a controller that was killed, or runs elsewhere."""
    _, machines, _ = gcp
    first = made(gcp)
    for number in range(2):
        first.launch(wanted(f"run-1-m000{number}"))
    before = {token: wait_for(first, token, LeaseState.RUNNING) for token in ("run-1-m0000", "run-1-m0001")}
    first.terminate("run-1-m0000")
    taken = eventually(lambda: [one for one in machines.running if "m0001" in one.instance["name"]])
    machines.take(taken[0], 0.0)
    again = made(gcp)
    released = wait_for(again, "run-1-m0000", LeaseState.RELEASED)
    revoked = wait_for(again, "run-1-m0001", LeaseState.REVOKED)
    assert revoked.why == "Instance was preempted."
    for one in (released, revoked):
        assert one.started_s == pytest.approx(before[one.token].started_s, abs=1.0)
        assert one.ended_s >= one.started_s
    # And rents none of them again.
    again.launch(wanted("run-1-m0001"))
    assert len(gcp[0].compute.requested) == 2


@pytest.mark.usefixtures("processes")
def test_all_of_a_run_are_found_on_all_pages_and_ended_and_no_others(
    gcp: GCP, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.testing.gcp_stand_in.compute._PAGE", 3)
    cloud, other = made(gcp), made(gcp, "run-2")
    other.launch(wanted("other"))
    for number in range(7):
        cloud.launch(wanted(f"m{number}", G if number % 2 else H))
    assert set(states(cloud)) == {f"m{number}" for number in range(7)}
    assert cloud.end_all() == {f"m{number}": "" for number in range(7)}
    assert cloud.end_all() == {}
    for number in range(7):
        wait_for(cloud, f"m{number}", LeaseState.RELEASED)
    assert wait_for(other, "other", LeaseState.RUNNING)


def test_an_end_that_is_refused_is_told(cloud: GcpCloud, gcp: GCP) -> None:
    cloud.launch(wanted("a"))
    gcp[0].compute.refusals.ends = "forbidden"
    with pytest.raises(CloudError, match="403 forbidden") as refused:
        cloud.terminate("a")
    assert refused.value.is_refusal
    (why,) = cloud.end_all().values()
    assert re.match(r"cannot end ebbtide-\w+-t-a in us-central1-a: .*403 forbidden", why)


@pytest.mark.usefixtures("processes")
def test_a_machine_that_shut_itself_down_is_over_and_is_deleted(gcp: GCP) -> None:
    """It would be kept as stopped, and its disk paid for."""
    api, machines, _ = gcp
    cloud = made(gcp, setup=["false"])
    cloud.launch(wanted("a"))
    wait_for(cloud, "a", LeaseState.RUNNING)
    machines.ignores_shutdown = False
    found = wait_for(cloud, "a", LeaseState.RELEASED)
    assert found.ended_s >= found.started_s
    assert not math.isnan(found.ended_s)
    deleted = [one for one in api.compute._operations if one["operationType"] == "delete"]
    assert len(deleted) == 1
    cloud.instances()
    assert len([one for one in api.compute._operations if one["operationType"] == "delete"]) == 1


@pytest.mark.usefixtures("processes")
def test_a_zone_that_does_not_answer_holds_nothing_up_in_the_others(
    cloud: GcpCloud, gcp: GCP, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = gcp[0].compute.refusals
    cloud.launch(wanted("a", G))
    cloud.launch(wanted("b", H))
    for token in "ab":
        wait_for(cloud, token, LeaseState.RUNNING)
    refusals.silent_zones.add(H.zone)
    silent_s = time.time()
    found = listed(cloud)
    assert found["a"].listed_s >= silent_s > found["b"].listed_s
    assert found["b"].state is LeaseState.RUNNING
    assert "GCP in us-central1-b does not answer" in caplog.text
    # One that never answered may have machines of the run that nobody knows of.
    with pytest.raises(CloudError, match="does not answer for us-central1-b"):
        made(gcp).instances()
    for call in (lambda: cloud.terminate("c"), cloud.end_all):
        with pytest.raises(CloudError, match="does not answer for us-central1-b"):
            call()
    # One elsewhere is ended, and so is one there, if its zone answers when it is asked alone.
    for token in "ab":
        assert cloud.terminate(token) is not None
    refusals.silent_zones.clear()
    eventually(lambda: states(cloud) == {"a": LeaseState.RELEASED, "b": LeaseState.RELEASED})


def test_markets_are_those_of_its_zones(gcp: GCP) -> None:
    assert set(made(gcp).markets) == {G, H}
    only = gcp[2].regions["us-central1"].model_copy(update={"zones": [H.zone]})
    assert set(made(gcp, regions={"us-central1": only}).markets) == {H}
