"""Instance metadata of many machines, as EC2's and as GCP's, each machine below its own path."""

from __future__ import annotations

import json

import pytest

from ebbtide.clouds.metadata import Answer, MachineState, MetadataService, RoleCredentials

ROLE = RoleCredentials("trainer", "KEY", "SECRET", 1_800_003_600.0)
STATES = {
    "calm": MachineState(),
    "noticed": MachineState(1_800_000_000.0, 1_700_000_000.0, ROLE),
}


class Clock:
    time_s = 1000.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(clock: Clock) -> MetadataService:
    return MetadataService(STATES.get, now=lambda: clock.time_s)


def token(service: MetadataService, machine: str, seconds: str = "60") -> str:
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": seconds}
    answer = service.answer("PUT", f"/{machine}/latest/api/token", headers)
    assert answer.status == 200
    return answer.body


def asked(service: MetadataService, machine: str, path: str, given: str | None = None) -> Answer:
    headers = {"X-AWS-EC2-Metadata-Token": given or token(service, machine)}
    return service.answer("GET", f"/{machine}/latest/meta-data/{path}", headers)


def test_each_machine_is_told_what_will_happen_to_it(service: MetadataService) -> None:
    noticed = asked(service, "noticed", "spot/instance-action")
    assert json.loads(noticed.body) == {"action": "terminate", "time": "2027-01-15T08:00:00Z"}
    assert asked(service, "noticed", "events/recommendations/rebalance").status == 200
    for path in ("spot/instance-action", "events/recommendations/rebalance", "iam/security-credentials/"):
        assert asked(service, "calm", path) == Answer(404)
        assert asked(service, "no-such", path) == Answer(404)


def test_a_role_s_credentials_are_found_by_its_name(service: MetadataService) -> None:
    assert asked(service, "noticed", "iam/security-credentials/") == Answer(200, "trainer")
    found = json.loads(asked(service, "noticed", "iam/security-credentials/trainer").body)
    assert (found["AccessKeyId"], found["Expiration"]) == ("KEY", "2027-01-15T09:00:00Z")
    assert asked(service, "noticed", "iam/security-credentials/other") == Answer(404)


def test_a_token_is_good_for_its_machine_and_its_time(service: MetadataService, clock: Clock) -> None:
    of_calm = token(service, "calm")
    assert asked(service, "calm", "spot/instance-action", of_calm).status == 404
    assert asked(service, "noticed", "spot/instance-action", of_calm).status == 401
    assert asked(service, "calm", "spot/instance-action", "guessed").status == 401
    assert service.answer("GET", "/calm/latest/meta-data/spot/instance-action", {}).status == 401
    clock.time_s += 61
    assert asked(service, "calm", "spot/instance-action", of_calm).status == 401
    assert service.tokens == 0


@pytest.mark.parametrize("seconds", ["", "0", "21601", "-1", "soon"])
def test_a_token_needs_a_life_that_ec2_allows(service: MetadataService, seconds: str) -> None:
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": seconds}
    assert service.answer("PUT", "/latest/api/token", headers) == Answer(400)


def test_other_requests_are_refused(service: MetadataService) -> None:
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    assert service.answer("PUT", "/latest/api/token", headers | {"X-Forwarded-For": "10.0.0.1"}) == Answer(403)
    assert service.answer("PUT", "/latest/meta-data/", headers) == Answer(404)
    assert service.answer("POST", "/latest/meta-data/", headers) == Answer(405)
    assert service.answer("GET", "/etc/passwd", headers) == Answer(404)


def google(service: MetadataService, machine: str, path: str, **headers: str) -> Answer:
    given = headers or {"metadata_flavor": "Google"}
    named = {name.replace("_", "-"): value for name, value in given.items()}
    return service.answer("GET", f"/{machine}/computeMetadata/v1/instance/{path}", named)


def test_gcp_s_machines_are_told_by_words(service: MetadataService) -> None:
    flavor = {"Metadata-Flavor": "Google"}
    assert google(service, "calm", "preempted") == Answer(200, "FALSE", flavor)
    assert google(service, "noticed", "preempted") == Answer(200, "TRUE", flavor)
    assert google(service, "calm", "maintenance-event").body == "NONE"
    assert google(service, "noticed", "maintenance-event").body == "TERMINATE_ON_HOST_MAINTENANCE"
    token = "service-accounts/default/token"
    assert json.loads(google(service, "noticed", token).body)["access_token"] == "KEY"
    assert google(service, "calm", token) == google(service, "no-such", "preempted") == Answer(404)


def test_requests_without_google_s_header_or_by_a_proxy_are_refused(service: MetadataService) -> None:
    assert google(service, "calm", "preempted", accept="*/*") == Answer(403)
    assert google(service, "calm", "preempted", metadata_flavor="Google", x_forwarded_for="10.0.0.1") == Answer(
        403
    )
    path, headers = "/calm/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"}
    assert service.answer("POST", path, headers) == Answer(405)
