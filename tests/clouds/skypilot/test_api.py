"""The client of SkyPilot's API server: what it sends fits the server's schemas, and what it gets was recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import jsonschema
import pytest
import yaml
from tests.cut_answers import CUTS, cut_answers
from tests.recorded import recording

from ebbtide.clouds.cloud import MachineRequest
from ebbtide.clouds.skypilot.api import SkyApi
from ebbtide.clouds.skypilot.settings import SkyPilotPlace, SkyPilotSettings
from ebbtide.clouds.skypilot.task import task_yaml
from ebbtide.errors import CloudError, InputError
from ebbtide.market.markets import Market
from ebbtide.testing.skypilot_stand_in.api import SkyPilotApi

RECORDED = json.loads(recording("skypilot_api.json"))
SETTINGS = SkyPilotSettings(
    places={"aws/us-east-1": SkyPilotPlace(image="ami-1"), "lambda/us-west-1": SkyPilotPlace()},
    prices="prices.parquet",
    store="s3://bucket/x",
    labels={"team": "a"},
    disk_gib=60,
    setup=["pip install x", 'echo "it\'s: {all} #1"'],
)
AGENT = {"machine": "run-1-7", "bundle": "runs/r/agent-0.tar.gz"}
SPOT = MachineRequest("run-1-7", Market("aws", "us-east-1", "us-east-1a", "m5.large"), 0.25, False, AGENT)


def schema(name: str) -> dict[str, Any]:
    return {**RECORDED["schemas"][name], "components": {"schemas": RECORDED["schemas"]}}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[SkyPilotApi]:
    monkeypatch.delenv("SKYPILOT_SERVICE_ACCOUNT_TOKEN", raising=False)
    api = SkyPilotApi()
    yield api
    api.close()


def test_a_task_is_one_that_skypilot_takes() -> None:
    found = yaml.safe_load(task_yaml("run-1", SPOT, SETTINGS))
    run = found.pop("run")
    jsonschema.validate({**found, "run": run}, json.loads(recording("skypilot_task.json")))
    assert found == {
        "name": "ebbtide",
        "resources": {
            "infra": "aws/us-east-1/us-east-1a",
            "instance_type": "m5.large",
            "use_spot": True,
            "autostop": {"idle_minutes": 5, "down": True},
            "labels": {"team": "a", "ebbtide-run": "run-1", "ebbtide-token": "run-1-7"},
            "max_hourly_cost": 0.25,
            "image_id": "ami-1",
            "disk_size": 60,
        },
    }
    assert 'echo "it\'s: {all} #1"\n' in run
    assert "shutdown" not in run
    elsewhere = MachineRequest(
        "run-1-8", Market("lambda", "us-west-1", "us-west-1", "gpu_1x_a10"), math.inf, True, AGENT
    )
    other = yaml.safe_load(task_yaml("run-1", elsewhere, SETTINGS))["resources"]
    assert (other["infra"], other["use_spot"], "image_id" in other) == ("lambda/us-west-1", False, False)


def test_what_is_sent_fits_the_schemas_of_the_server(served: SkyPilotApi) -> None:
    api = SkyApi(served.url)
    request_id = api.launch("ebbtide-1", task_yaml("run-1", SPOT, SETTINGS))
    api.clusters()
    api.cancel([request_id])
    api.down("ebbtide-1")
    names = {
        "/launch": "LaunchBody",
        "/status": "StatusBody",
        "/down": "StopOrDownBody",
        "/api/cancel": "RequestCancelBody",
    }
    assert [path for path, _ in served.asked] == ["/launch", "/status", "/api/cancel", "/down"]
    for path, body in served.asked:
        jsonschema.validate(body, schema(names[path]))


def test_the_stand_in_answers_as_the_server_did(served: SkyPilotApi) -> None:
    """The same fields, of the same kinds, in what is read of them."""
    api = SkyApi(served.url)
    served.refusals.launches.append("ResourcesUnavailableError")
    api.launch("ebbtide-abc-r-1", "resources: {}\nrun: x\n")
    api.down("ebbtide-abc-r-1")
    api.clusters()
    for one in served._requests.values():
        kept = {
            "sky.launch": RECORDED["failed"]["sky.launch"]["detail"],
            "sky.down": RECORDED["failed"]["sky.down"]["detail"],
            "sky.status": RECORDED["status"],
        }[one["name"]]
        assert one.keys() <= kept.keys()
        for name, value in one.items():
            assert isinstance(kept[name], type(value)), name
        if one["error"] != "null":
            assert json.loads(one["error"]).keys() == json.loads(kept["error"]).keys()
    found = served._listed({"cluster_name": ["ebbtide-abc-r-1"], "all_status": ["true"]})
    assert [(one["name"], one["status"], one["error"]) for one in found] == [
        (one["name"], one["status"], one["error"]) for one in RECORDED["requests"]
    ]


def test_what_the_server_answered_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, tuple[int, Any]] = {
        "/api/health": (200, RECORDED["health"]),
        "/api/status": (200, RECORDED["requests"]),
        "/status": (200, None),
        "/api/get": (200, RECORDED["status"]),
    }

    class Answer:
        def __init__(self, status: int, content: Any) -> None:
            self.status, self.data = status, json.dumps(content).encode()
            self.headers = {"X-Skypilot-Request-ID": "an-id"}

    api = SkyApi("http://127.0.0.1:1")
    monkeypatch.setattr(
        api._pool,
        "request",
        lambda _method, url, **_: Answer(*answers[url.removeprefix(api.url).partition("?")[0]]),
    )
    api.check()
    assert api.clusters() == []
    launch, down = api.requests("ebbtide-abc-r-1")
    assert (launch.what, launch.status, launch.is_done, launch.cluster) == ("launch", "FAILED", True, down.cluster)
    assert down.what == "down"
    assert launch.finished_s is not None
    assert launch.created_s < launch.finished_s
    answers["/api/get"] = (500, RECORDED["failed"]["sky.down"])
    assert api.failure("an-id") == ("ClusterDoesNotExist", "Cluster 'ebbtide-abc-r-1' does not exist.")
    answers["/api/get"] = (500, RECORDED["failed"]["sky.launch"])
    kind, said = api.failure("an-id")
    assert kind == "ConnectionError"
    assert said.startswith("HTTPSConnectionPool(host='raw.githubusercontent.com'")
    answers["/api/get"] = (404, RECORDED["missing"])
    assert api.failure("an-id") == ("", "")
    for answer in [(200, {"return_value": "torn {"}), (200, []), (200, {"return_value": '{"a": 1}'})]:
        answers["/api/get"] = answer
        with pytest.raises(CloudError, match="does not list its clusters"):
            api.clusters()
    answers["/api/status"] = (200, {})
    with pytest.raises(CloudError, match="does not list its requests"):
        api.requests()


@pytest.mark.parametrize("where", CUTS)
def test_an_answer_that_is_cut_off_is_no_answer(where: str) -> None:
    with cut_answers(where) as url:
        api = SkyApi(url)
        with pytest.raises(CloudError, match="does not answer"):
            api.clusters()
        with pytest.raises(InputError, match="does not answer"):
            api.check()


def test_a_token_is_sent_and_only_where_nobody_else_reads_it(
    served: SkyPilotApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.refusals.token = "sky_secret"
    with pytest.raises(InputError, match=r"refused \(401\): Authentication required; set SKYPILOT_SERVICE"):
        SkyApi(served.url).check()
    # A file may end in another line than it should.
    monkeypatch.setenv("SKYPILOT_SERVICE_ACCOUNT_TOKEN", "sky_secret\r\n")
    SkyApi(served.url).check()
    monkeypatch.setenv("SKYPILOT_SERVICE_ACCOUNT_TOKEN", "sky_\rsecret€")
    with pytest.raises(InputError, match="holds characters that no token has") as wrong:
        SkyApi(served.url)
    assert "secret" not in str(wrong.value)
    monkeypatch.setenv("SKYPILOT_SERVICE_ACCOUNT_TOKEN", "sky_secret")
    with pytest.raises(InputError, match="unencrypted") as told:
        SkyApi("http://sky.example.org")
    assert "sky_secret" not in str(told.value)
    SkyApi("https://sky.example.org")


@pytest.mark.parametrize(
    "url", ["http://user:pw@host", "http://[::1", "ftp://host", "http://", "http://h:x", "pw h"]
)
def test_an_address_that_is_none_is_told_and_not_repeated(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", url)
    with pytest.raises(InputError, match="holds a name or a password|is no address of an API server") as told:
        SkyApi()
    assert told.value.field == "SKYPILOT_API_SERVER_ENDPOINT"
    assert "pw" not in str(told.value)


@pytest.mark.parametrize("answer", ["<html>", "null", "[]", "{}", "[" * 100_000])
def test_what_is_no_api_server_is_told(answer: str) -> None:
    with cut_answers("content", times=0, then=answer.encode()) as url:
        api = SkyApi(url)
        with pytest.raises(InputError, match="answers, and is no API server of SkyPilot"):
            api.check()
        with pytest.raises(CloudError):
            api.clusters()
        with pytest.raises(CloudError) if answer != "[]" else nullcontext():
            api.requests()
