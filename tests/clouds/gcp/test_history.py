"""What has become of a machine, from every state that Google lists and the operations on it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ebbtide.base.utc import to_epoch_s
from ebbtide.clouds.gcp.history import Operations, machine_of
from ebbtide.market.leases import LeaseState

T = "2026-03-01T00:00:{:02d}.000-07:00"
BEGAN_S = to_epoch_s("2026-03-01T07:00:00Z")


def operation(kind: str, at: int, done: int | None = None, **more: Any) -> dict[str, Any]:
    found = {"operationType": kind, "insertTime": T.format(at), "status": "RUNNING", **more}
    return found if done is None else found | {"status": "DONE", "endTime": T.format(done)}


INSERT = operation("insert", 0, 5)
PREEMPTED = operation("compute.instances.preempted", 30, 40, statusMessage="Instance was preempted.")
DELETE = operation("delete", 20, 50)
FAILED = operation("insert", 0, 5, error={"errors": [{"code": "QUOTA_EXCEEDED", "message": "no\nmore"}]})


def described(status: str, **more: str) -> dict[str, Any]:
    return {
        "name": "x",
        "status": status,
        "creationTimestamp": T.format(1),
        "lastStartTimestamp": T.format(5),
        **more,
    }


@pytest.mark.parametrize(
    ("instance", "operations", "state", "ended"),
    [
        (None, [operation("insert", 0)], LeaseState.STARTING, math.nan),
        (described("PROVISIONING"), [INSERT], LeaseState.STARTING, math.nan),
        (described("STAGING"), [INSERT], LeaseState.STARTING, math.nan),
        (described("RUNNING"), [INSERT], LeaseState.RUNNING, math.nan),
        # Its agent is still saving.
        (
            described("STOPPING"),
            [INSERT, operation("compute.instances.preempted", 30)],
            LeaseState.RUNNING,
            math.nan,
        ),
        (described("STOPPING"), [INSERT], LeaseState.RUNNING, math.nan),
        (None, [INSERT, PREEMPTED], LeaseState.REVOKED, 40),
        # Given back after the preemption had begun: it is one all the same.
        (None, [INSERT, PREEMPTED, operation("delete", 35, 41)], LeaseState.REVOKED, 40),
        (described("TERMINATED", lastStopTimestamp=T.format(42)), [INSERT, PREEMPTED], LeaseState.REVOKED, 42),
        # Given back, it is over at once, and charged until it is gone.
        (described("STOPPING"), [INSERT, operation("delete", 20)], LeaseState.RELEASED, 20),
        (None, [INSERT, DELETE], LeaseState.RELEASED, 50),
        (None, [INSERT, operation("compute.instances.hostError", 25, 26)], LeaseState.RELEASED, 26),
        (described("TERMINATED", lastStopTimestamp=T.format(9)), [INSERT], LeaseState.RELEASED, 9),
        (None, [FAILED], LeaseState.FAILED, 5),
    ],
)
def test_states(instance: Any, operations: list[dict[str, Any]], state: LeaseState, ended: float) -> None:
    found = machine_of("a", instance, Operations(operations))
    assert found is not None
    assert found.state is state
    assert found.ended_s == pytest.approx(BEGAN_S + ended, nan_ok=True)
    assert "\n" not in found.why
    is_charged = state not in (LeaseState.STARTING, LeaseState.FAILED)
    assert found.started_s == pytest.approx(BEGAN_S + 5 if is_charged else math.nan, nan_ok=True)


@pytest.mark.parametrize(
    "operations",
    [
        [],
        [INSERT],
        # A deletion that was refused, and what leaves the machine as it is.
        [INSERT, operation("delete", 20, 21, error={"errors": [{"code": "X", "message": "no"}]})],
        [INSERT, operation("setLabels", 9, 9), operation("compute.instances.migrateOnHostMaintenance", 9, 9)],
    ],
)
def test_of_one_that_is_gone_for_no_known_reason_nothing_is_said(operations: list[dict[str, Any]]) -> None:
    assert machine_of("a", None, Operations(operations)) is None


def test_what_failed_says_why() -> None:
    found = machine_of("a", None, Operations([FAILED]))
    assert found is not None
    assert found.why == "QUOTA_EXCEEDED: no more"
