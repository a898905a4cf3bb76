"""A sweep on a stand-in for Google Cloud: its APIs over HTTP, real start scripts, agents, notices and refusals.

Its machines have a Python without any package: what they run comes with the run.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.live.agent.bare_python import bare_python
from tests.live.sweeps import steady, sweep, total
from tests.waiting import eventually

from ebbtide.cli.main import main
from ebbtide.live.clouds.gcp.settings import GcpSettings
from ebbtide.live.journal import Journal
from ebbtide.live.settings import find_run
from ebbtide.market.billing import billing_preset
from ebbtide.policies.api.events import Wake
from ebbtide.testing.gcp_stand_in.api import GcpApi
from ebbtide.testing.gcp_stand_in.running import gcp_stand_in
from ebbtide.testing.stand_in.machines import StandInMachines
from ebbtide.testing.stand_in.money import billed, until_now

pytestmark = pytest.mark.usefixtures("processes")

GCP = tuple[GcpApi, StandInMachines, GcpSettings]
BEGAN_S = time.time()
# A quarter of a minute of training, so that the notice finds it at work.
STEPS = 750


@pytest.fixture(scope="module")
def machine_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(bare_python(tmp_path_factory.mktemp("machine") / "python"))


@pytest.fixture
def gcp(tmp_path: Path, machine_python: str) -> Iterator[GCP]:
    with gcp_stand_in(tmp_path / "stand-in", until_now(steady(), BEGAN_S), machine_python) as found:
        yield found


def files(tmp_path: Path, settings: GcpSettings, **options: object) -> tuple[Path, Path]:
    """A sweep with its program, and what machines are."""
    code = tmp_path / "code"
    code.mkdir()
    content = sweep(code, budget_usd=1.0, **options).model_dump(mode="json", exclude_none=True)  # type: ignore[arg-type]
    content["command"] = "python program.py {checkpoint_dir} {max_steps} {lr}"
    # Which GCP's own takes the place of.
    assert content.pop("billing") == "ec2-second"
    (code / "sweep.yaml").write_text(yaml.safe_dump(content))
    machines = tmp_path / "gcp.yaml"
    machines.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    return code / "sweep.yaml", machines


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def started(path: Path, what: Path, runs: Path) -> subprocess.Popen[bytes]:
    words = ("run", path, "--policy", "reactive", "--provider", "gcp", "--machines", what, "--runs", runs)
    return subprocess.Popen([sys.executable, "-m", "ebbtide.cli.main", *map(str, words)])


def test_a_sweep_ends_through_refusals_and_a_preemption(gcp: GCP, tmp_path: Path) -> None:
    api, machines, settings = gcp
    api.compute.refusals.launches.extend(["ZONE_RESOURCE_POOL_EXHAUSTED", "", "rateLimitExceeded"])
    path, what = files(tmp_path, settings, trials=2, steps=STEPS)
    runs = tmp_path / "runs"
    controller = started(path, what, runs)
    try:
        eventually(lambda: any((one.folder / "root" / "work").glob("*/checkpoints") for one in machines.running))
        first = machines.running[0]
        machines.take(first, notice_s=30.0)
        # What the user was given is refused, and renewed.
        api.expired.update(api.given)
        assert controller.wait(600) == 0
    finally:
        controller.kill()
        controller.wait()
    assert machines.running == []
    assert set(api.compute.refusals.sent) == {"ZONE_RESOURCE_POOL_EXHAUSTED", "rateLimitExceeded"}
    folder = find_run(runs, None)
    journal = Journal(folder.journal)
    outcome, moments = journal.state("outcome"), journal.moments()
    assert outcome["finished"]
    assert str(Wake.NOTICE) in {kind for _, kind, *_ in moments}
    # Left in time or taken: both are preemptions, and nothing was lost.
    assert outcome["revocations"] <= 1
    assert outcome["steps_lost"] < 100
    told = [log.read_text() for log in sorted((folder.path / "logs").iterdir())]
    assert [float(log.split()[-1]) for log in told] == [pytest.approx(total(0.1 * n, STEPS)) for n in (1, 2)]
    failed = [moment for moment in moments if moment[1] == str(Wake.LAUNCH_FAILED)]
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in failed[0][-1]
    assert folder.settings.sweep["billing"] == "gcp-spot"
    # A deletion takes effect a moment after it is requested, and is charged until then.
    spent = billed(machines.all.values(), until_now(steady(), BEGAN_S), billing_preset("gcp-spot"))
    assert outcome["cost_usd"] == pytest.approx(spent, abs=1e-4)
    for asked in api.compute.requested:
        assert asked["scheduling"]["instanceTerminationAction"] == "DELETE"
        assert asked["labels"]["ebbtide-run"] == folder.path.name
    # Nothing of the credentials is written anywhere.
    secrets = [token.encode() for token in [*api.given, "OF-THE-ROLE", "BEGIN PRIVATE KEY"]]
    written = [*folder.path.rglob("*"), *machines.folder.rglob("agent.*"), *machines.folder.rglob("start.sh")]
    for file in written:
        assert not file.is_file() or not any(secret in file.read_bytes() for secret in secrets)


def test_down_ends_by_label_what_a_killed_controller_left(
    gcp: GCP, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, machines, settings = gcp
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
    eventually(lambda: not machines.running)


def test_without_credentials_prices_or_a_budget_nothing_is_rented(
    gcp: GCP, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, _, settings = gcp
    path, what = files(tmp_path, settings)
    words = ("run", path, "--provider", "gcp", "--runs", tmp_path / "runs")
    assert command(*words) == 2
    assert "--machines GCP.yaml" in capsys.readouterr().err
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    assert command(*words, "--machines", what) == 2
    assert "gcloud auth application-default login" in capsys.readouterr().err
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(content | {"billing": "azure-spot"}))
    assert command(*words, "--machines", what) == 2
    assert "azure-spot is not how gcp charges; leave it out, or write gcp-spot" in capsys.readouterr().err
    del content["budget_usd"]
    path.write_text(yaml.safe_dump(content))
    assert command(*words, "--machines", what) == 2
    assert "budget_usd" in capsys.readouterr().err
    assert not api.compute.requested
