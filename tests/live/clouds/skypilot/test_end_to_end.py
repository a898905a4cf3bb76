"""A sweep on a stand-in for SkyPilot's API server: real start scripts, agents, refusals and revocations."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.live.agent.bare_python import bare_python
from tests.live.sweeps import G, steady, sweep, total
from tests.waiting import eventually

from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.live.clouds.cloud import Wanted
from ebbtide.live.clouds.skypilot import cloud as sky_cloud
from ebbtide.live.clouds.skypilot.cloud import SkyPilotCloud
from ebbtide.live.clouds.skypilot.settings import SkyPilotPlace, SkyPilotSettings
from ebbtide.live.journal import Journal
from ebbtide.live.settings import find_run
from ebbtide.market.billing import billing_preset
from ebbtide.market.leases import LeaseState
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.events import Wake
from ebbtide.testing.skypilot_stand_in.api import SkyPilotApi
from ebbtide.testing.skypilot_stand_in.running import skypilot_stand_in
from ebbtide.testing.stand_in.machines import StandInMachines
from ebbtide.testing.stand_in.money import billed, until_now

Sky = tuple[SkyPilotApi, StandInMachines, SkyPilotSettings]
BEGAN_S = time.time()
# A quarter of a minute of training, so that the notice finds it at work.
STEPS = 750
PLACES = {f"{place.cloud}/{place.region}": SkyPilotPlace() for place in {one.place for one in steady().markets}}
WANTED = Wanted("run-1-1", G, math.inf, False, {"machine": "run-1-1", "bundle": "runs/r/agent-0.tar.gz"})


def prices() -> PriceHistory:
    return until_now(steady(), BEGAN_S)


@pytest.fixture(scope="module")
def machine_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(bare_python(tmp_path_factory.mktemp("machine") / "python"))


@pytest.fixture
def sky(tmp_path: Path, machine_python: str) -> Iterator[Sky]:
    with skypilot_stand_in(tmp_path / "stand-in", prices(), machine_python, PLACES) as found:
        yield found


def files(tmp_path: Path, settings: SkyPilotSettings, **options: object) -> tuple[Path, Path]:
    """A sweep with its program, and what machines are."""
    code = tmp_path / "code"
    code.mkdir()
    content = sweep(code, budget_usd=1.0, **options).model_dump(mode="json", exclude_none=True)  # type: ignore[arg-type]
    content["command"] = "python program.py {checkpoint_dir} {max_steps} {lr}"
    content.pop("billing")
    (code / "sweep.yaml").write_text(yaml.safe_dump(content))
    machines = tmp_path / "skypilot.yaml"
    machines.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    return code / "sweep.yaml", machines


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def started(path: Path, what: Path, runs: Path) -> subprocess.Popen[bytes]:
    words = ("run", path, "--policy", "reactive", "--provider", "skypilot", "--machines", what, "--runs", runs)
    return subprocess.Popen([sys.executable, "-m", "ebbtide.cli.main", *map(str, words)])


@pytest.mark.usefixtures("processes")
def test_a_sweep_ends_through_a_refusal_and_a_machine_that_is_taken(sky: Sky, tmp_path: Path) -> None:
    api, machines, settings = sky
    api.refusals.launches.extend(["ResourcesUnavailableError", ""])
    path, what = files(tmp_path, settings, trials=2, steps=STEPS)
    runs = tmp_path / "runs"
    controller = started(path, what, runs)
    try:
        eventually(lambda: any((one.folder / "root" / "work").glob("*/checkpoints") for one in machines.running))
        machines.take(machines.running[0], notice_s=30.0)
        assert controller.wait(600) == 0
    finally:
        controller.kill()
        controller.wait()
    eventually(lambda: not api.names())
    folder = find_run(runs, None)
    journal = Journal(folder.journal)
    outcome, moments = journal.state("outcome"), journal.moments()
    assert outcome["finished"]
    assert str(Wake.NOTICE) in {kind for _, kind, *_ in moments}
    assert outcome["steps_lost"] < 100
    told = [log.read_text() for log in sorted((folder.path / "logs").iterdir())]
    assert [float(log.split()[-1]) for log in told] == [pytest.approx(total(0.1 * n, STEPS)) for n in (1, 2)]
    assert any(
        "ResourcesUnavailableError: Failed to provision all possible launchable" in one[-1] for one in moments
    )
    assert folder.settings.sweep["billing"] == "by-cloud"
    # Which server it was is kept with the run.
    assert json.loads((folder.path / "run.json").read_text())["options"]["skypilot"]["server"] == api.url
    # SkyPilot tells whole seconds of the start, and the end is when it was asked for.
    spent = billed(machines.all.values(), prices(), billing_preset("gcp-spot"))
    second_usd = max(series.prices.max() for series in prices().values()) / 3600.0
    assert outcome["cost_usd"] == pytest.approx(spent, abs=2.0 * second_usd * len(machines.all))


@pytest.mark.usefixtures("processes")
def test_down_finds_by_its_names_what_a_killed_controller_left(
    sky: Sky, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api, machines, settings = sky
    path, what = files(tmp_path, settings, trials=2, steps=100_000)
    runs = tmp_path / "runs"
    controller = started(path, what, runs)
    try:
        eventually(lambda: len(machines.running) == 2)
    finally:
        controller.kill()
        controller.wait()
    assert command("down", "--runs", runs) == 0
    assert capsys.readouterr().out.endswith(": 2 machines given back, none left\n")
    assert not api.names()


def test_where_no_server_answers_nothing_begins(
    sky: Sky, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, settings = sky
    path, what = files(tmp_path, settings)
    runs = tmp_path / "runs"
    words = ("run", path, "--provider", "skypilot", "--runs", runs)
    assert command(*words) == 2
    assert "--machines SKYPILOT.yaml, as examples/live/skypilot.yaml has it" in capsys.readouterr().err
    monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", "http://127.0.0.1:9")
    assert command(*words, "--machines", what) == 2
    assert "does not answer" in (told := capsys.readouterr().err)
    assert "`sky api start` starts one" in told
    assert not list(runs.glob("*/run.json"))


def test_machines_that_work_as_one_are_refused(
    sky: Sky, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, what = files(tmp_path, sky[2], trials=1)
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(content | {"machines": 2}))
    words = ("run", path, "--provider", "skypilot", "--machines", what, "--runs", tmp_path / "runs")
    assert command(*words) == 2
    assert "does not tell their addresses; use ec2 or gcp" in capsys.readouterr().err


def test_the_example_and_wrong_settings(tmp_path: Path) -> None:
    found = SkyPilotSettings.read("examples/live/skypilot.yaml")
    assert [str(place) for place in found.zones] == ["aws us-east-1", "lambda us-west-1"]
    assert found.prices == str(Path("examples/live/sky-prices.parquet").resolve())
    file = tmp_path / "skypilot.yaml"
    for wrong, field in (("us-east-1: {}", "places"), ("aws/us-east-1: {zone: a}", "zone")):
        file.write_text(f"places: {{{wrong}}}\nprices: p\nstore: s3://b/x\n")
        with pytest.raises(InputError, match=field):
            SkyPilotSettings.read(file)


# What becomes of single machines.


@pytest.fixture
def rented(sky: Sky) -> tuple[SkyPilotApi, SkyPilotCloud, SkyPilotSettings]:
    api, machines, settings = sky
    machines.ignores_shutdown = True
    return api, SkyPilotCloud("run-1", settings, prices), settings


def only(cloud: SkyPilotCloud, *states: LeaseState) -> None:
    def reached() -> bool:
        return [one.state for one in cloud.instances()] == list(states)

    eventually(reached, message=lambda: f"not {states}: {cloud.instances()}")


@pytest.mark.usefixtures("processes")
def test_another_controller_of_the_run_rents_no_second_machine(
    rented: tuple[SkyPilotApi, SkyPilotCloud, SkyPilotSettings],
) -> None:
    api, cloud, settings = rented
    cloud.launch(WANTED)
    again = SkyPilotCloud("run-1", settings, prices)
    again.launch(WANTED)
    only(again, LeaseState.RUNNING)
    assert again.terminate(WANTED.token) is not None
    eventually(lambda: not api.names())
    third = SkyPilotCloud("run-1", settings, prices)
    third.launch(WANTED)
    assert [path for path, _ in api.asked].count("/launch") == 1


@pytest.mark.usefixtures("processes")
def test_a_node_that_has_stopped_is_revoked_and_what_is_left_taken_down(
    rented: tuple[SkyPilotApi, SkyPilotCloud, SkyPilotSettings],
) -> None:
    api, cloud, settings = rented
    cloud.launch(WANTED)
    only(cloud, LeaseState.RUNNING)
    (name,) = api.names()
    api.show(name, "STOPPED")
    # One that has begun since has never seen it up.
    fresh = SkyPilotCloud("run-1", settings, prices)
    only(fresh, LeaseState.REVOKED)
    only(cloud, LeaseState.REVOKED)
    (before,) = cloud.instances()
    eventually(lambda: not api.names())
    (after,) = cloud.instances()
    assert (after.state, after.ended_s) == (before.state, before.ended_s)


def test_one_in_trouble_is_not_given_up_at_once(
    rented: tuple[SkyPilotApi, SkyPilotCloud, SkyPilotSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_one_that_is_taken_before_it_was_seen_was_taken(
    rented: tuple[SkyPilotApi, SkyPilotCloud, SkyPilotSettings],
) -> None:
    api, cloud, _ = rented
    cloud.launch(WANTED)
    eventually(lambda: [one.id for one in api.running()])
    api.take_away(api.names()[0])
    only(cloud, LeaseState.REVOKED)
    (found,) = cloud.instances()
    assert found.started_s <= found.running_s <= found.ended_s


def test_a_launch_under_way_is_given_up(rented: tuple[SkyPilotApi, SkyPilotCloud, SkyPilotSettings]) -> None:
    api, cloud, _ = rented
    api.boots_s = 600.0
    cloud.launch(WANTED)
    only(cloud, LeaseState.REQUESTED)
    assert cloud.terminate(WANTED.token) is not None
    only(cloud, LeaseState.RELEASED)
    eventually(lambda: not api.names())
    assert cloud.instances()[0].state is LeaseState.RELEASED


@pytest.mark.usefixtures("processes")
def test_a_machine_that_does_not_go_counts_until_it_does(
    rented: tuple[SkyPilotApi, SkyPilotCloud, SkyPilotSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_what_only_its_user_can_mend_ends_the_run(
    rented: tuple[SkyPilotApi, SkyPilotCloud, SkyPilotSettings],
) -> None:
    api, cloud, _ = rented
    api.refusals.launches.append("NoCloudAccessError")
    cloud.launch(WANTED)
    with pytest.raises(
        InputError, match="SkyPilot will not rent as it is asked to: NoCloudAccessError: Failed to"
    ):
        cloud.instances()


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("launched_at", [4e9, 1e300, "yesterday", None, -1])
def test_whatever_its_server_says_of_the_time_no_machine_ends_before_it_starts(
    rented: tuple[SkyPilotApi, SkyPilotCloud, SkyPilotSettings], launched_at: object
) -> None:
    api, cloud, _ = rented
    api.launched_at = launched_at
    cloud.launch(WANTED)
    only(cloud, LeaseState.RUNNING)
    (found,) = cloud.instances()
    assert found.started_s <= found.running_s <= time.time()
    # Also when it is looked at later.
    eventually(lambda: cloud.now_s > found.running_s)
    assert cloud.instances()[0].started_s == found.started_s
    assert (cloud.terminate(WANTED.token) or 0.0) >= found.started_s
    (ended,) = cloud.instances()
    assert ended.ended_s >= ended.started_s
