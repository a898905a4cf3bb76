"""A sweep on a stand-in for each cloud: its API over HTTP, real start scripts, agents, notices and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clouds.renters import EC2, GCP, SKYPILOT, Renter, renter
from tests.runs.sweeps import total
from tests.waiting import eventually

from ebbtide.controller.journal.journal import Journal
from ebbtide.policies.api.events import Wake
from ebbtide.storage.objects import object_store

pytestmark = pytest.mark.usefixtures("processes")

# Sixteen seconds of training in each trial, longer than the notice: no machine is given back before it is taken.
STEPS, NOTICE_S = 800, 12.0


@pytest.fixture(
    params=[
        EC2,
        pytest.param(GCP, marks=pytest.mark.long),
        pytest.param(SKYPILOT, marks=pytest.mark.long),
    ],
    ids=str,
)
def rented(request: pytest.FixtureRequest, tmp_path: Path, machine_python: str) -> Iterator[Renter]:
    with renter(request.param, tmp_path, machine_python) as one:
        yield one


@pytest.mark.long
def test_a_sweep_ends_through_refusals_and_a_revocation(rented: Renter) -> None:
    cloud, api, machines = rented.cloud, rented.api, rented.machines
    refusals = cloud.refusals(api)
    refusals.launches.extend(cloud.refused)
    rented.write(trials=2, steps=STEPS)
    # A policy that keeps a machine until it is taken.
    rented.start(*rented.words, "--policy", "reactive")
    rented.wait(rented.has_saved)
    machines.take(machines.running[0], NOTICE_S)
    cloud.expire(api, rented.stand_in)
    rented.end()
    assert machines.running == []
    assert set(refusals.sent) == {*cloud.refused, *cloud.expired} - {""}
    folder = rented.run
    journal = Journal(folder.journal)
    outcome, moments = journal.state("outcome"), journal.moments()
    assert outcome["finished"]
    assert outcome["revocations"] == 1
    assert [machine.taken for machine in machines.all.values()].count(True) == 1
    assert len(machines.all) == 3
    # Its metadata said so in time, and the policy heard of it.
    assert str(Wake.NOTICE) in {kind for _, kind, *_ in moments}
    # Of the one that was taken: what it trained after its last save.
    assert outcome["steps_lost"] < 100
    told = [log.read_text() for log in sorted((folder.path / "logs").iterdir())]
    assert [float(log.split()[-1]) for log in told] == [pytest.approx(total(0.1 * n, STEPS)) for n in (1, 2)]
    # What failed is backed off from, the other is asked at once.
    failed = [detail for _, kind, *_, detail in moments if kind == str(Wake.LAUNCH_FAILED)]
    assert {tuple(text for text in cloud.failures if text in detail) for detail in failed} == {
        (text,) for text in cloud.failures
    }
    settings = json.loads((folder.path / "run.json").read_text())
    assert settings["sweep"]["billing"] == cloud.billing
    kept = rented.settings.model_copy(update=cloud.kept(api)).model_dump(mode="json")
    assert settings["options"][cloud.provider] == kept
    # A machine ends a moment after that is requested, and the cloud may tell whole seconds.
    second_usd = max(series.prices.max() for series in rented.prices.values()) / 3600.0
    assert outcome["cost_usd"] == pytest.approx(rented.billed_usd(), abs=2.0 * second_usd * len(machines.all))
    # Nothing of the credentials is written anywhere.
    written = [*folder.path.rglob("*"), *machines.folder.rglob("agent.*"), *machines.folder.rglob("start.sh")]
    for content in [file.read_bytes() for file in written if file.is_file()]:
        assert not [secret for secret in cloud.secrets(api) if secret.encode() in content]
    # One bundle for all machines.
    assert len(list(object_store(folder.settings.store).keys(f"runs/{folder.path.name}/agent-"))) == 1


# How machines of a run are found is tested for each cloud in its folder; it is one `down` that ends them.
@pytest.mark.long
@pytest.mark.parametrize(
    "rented",
    [pytest.param(EC2, marks=pytest.mark.exhaustive), pytest.param(GCP, marks=pytest.mark.exhaustive), SKYPILOT],
    indirect=True,
    ids=str,
)
def test_down_finds_what_a_killed_controller_left(rented: Renter) -> None:
    rented.write(trials=2, steps=100_000)
    rented.start(*rented.words, "--policy", "reactive")
    rented.wait(lambda: len(rented.machines.running) == 2)
    rented.kill()
    for count in (2, 0):
        code, out, _ = rented.do("down")
        assert (code, out.partition(": ")[2]) == (0, f"{count} machines given back, none left\n")
    eventually(lambda: not rented.machines.running)


def test_without_machines_credentials_or_a_budget_nothing_is_rented(
    rented: Renter, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = rented.cloud
    rented.write()

    def refused(*words: object) -> str:
        code, _, errors = rented.do(*(words or rented.words))
        assert code == 2
        return " ".join(errors.split())

    needed = f"--machines {cloud.provider.upper()}.yaml, as examples/live/{cloud.provider}.yaml has it"
    assert needed in refused("run", rented.file, "--provider", cloud.provider)
    name, nowhere, words = cloud.credentials
    with monkeypatch.context() as patched:
        patched.setenv(name, nowhere)
        said = refused()
    assert [word for word in words if word not in said] == []
    rented.change(billing="azure-spot")
    named = f"azure-spot is not how {cloud.provider} charges; leave it out, or write {cloud.billing}"
    assert named in refused()
    rented.change(billing=None, budget_usd=None)
    assert "budget_usd" in refused()
    assert not list(rented.runs.glob("*/run.json"))
    assert not rented.machines.all
