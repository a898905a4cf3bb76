"""The flow that trains what is due, and the order in which batches of prices are merged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from flows.collect import ACCEPTED, batches, sort_out
from flows.ingest import accepted_batches, from_batches
from flows.train import absolute_uri, rows_of
from tests.markets import C3, history
from tests.runs.sweeps import PROGRAM, START_S, flapping
from tests.waiting import LIMIT_S, eventually

import ebbtide as eb
from ebbtide.base.utc import iso
from ebbtide.clouds.settings import RunFolder, known_runs
from ebbtide.market.ingestion import BatchVerdict
from ebbtide.runs.start_local import end_local
from ebbtide.tracking.due_runs import DueResult

ROOT = Path(__file__).parents[2]

JOB = f"""
run: {{command: "{sys.executable} PROGRAM {{checkpoint_dir}} 60 0.1", steps: 60}}
schedule: 0 2 * * *
prices: prices.parquet
start: {iso(START_S)}
speed: 120
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "program.py").write_text(PROGRAM)
    flapping().write(tmp_path / "jobs" / "prices.parquet")
    content = yaml.safe_load((ROOT / "params.yaml").read_text())
    content["tracking"] = {"uri": "sqlite:///mlflow.db", "artifacts": "artifacts"}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(content))
    yield tmp_path
    for path in (tmp_path / ".ebbtide" / "runs").glob("*/run.json"):
        end_local(RunFolder(path.parent))


@pytest.mark.usefixtures("processes")
@pytest.mark.long
def test_the_flow_trains_what_is_due_and_says_what_failed(folder: Path, prefect_server: str) -> None:
    (folder / "jobs" / "good.yaml").write_text(JOB.replace("PROGRAM", "program.py"))
    (folder / "jobs" / "lost.yaml").write_text(JOB.replace("PROGRAM", "nowhere.py"))
    (folder / "jobs" / "wrong.yaml").write_text("run: x\n")
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "PREFECT_API_URL": prefect_server}
    command = [sys.executable, "-m", "pipelines", "train"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "job good" in done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ebbtide: ")]
    assert line.startswith(
        "ebbtide: 2 of 3 due jobs did not finish: lost: jobs/lost.yaml, field command: nowhere.py"
    )
    assert "wrong: jobs/wrong.yaml: one of schedule and once is needed" in line
    (run,) = known_runs(folder / ".ebbtide" / "runs")
    assert eb.types.Run(run).status().state == "finished"
    # What has ended is not due again.
    (folder / "jobs" / "lost.yaml").unlink()
    (folder / "jobs" / "wrong.yaml").unlink()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.usefixtures("processes")
@pytest.mark.long
def test_a_night_that_is_interrupted_begins_no_job_that_waits(folder: Path, prefect_server: str) -> None:
    """Two jobs train at once; when the flow is interrupted they are saved, and the others are left for later."""
    for name in "abcd":
        job = (
            JOB.replace("PROGRAM", "program.py")
            .replace(" 60 0.1", " 3000 0.1")
            .replace("steps: 60", "steps: 3000")
        )
        (folder / "jobs" / f"{name}.yaml").write_text(job)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "PREFECT_API_URL": prefect_server}
    runs = folder / ".ebbtide" / "runs"

    def states() -> dict[str, str]:
        found = [RunFolder(file.parent) for file in sorted(runs.glob("*/run.json"))]
        return {each.path.name[0]: str(eb.types.Run(each).status().state) for each in found}

    with subprocess.Popen([sys.executable, "-m", "pipelines", "train"], cwd=folder, env=environment) as night:
        try:
            eventually(lambda: list(states().values()).count("running") == 2)
            night.send_signal(signal.SIGINT)
            night.wait(LIMIT_S)
        finally:
            night.kill()
    assert list(states().values()) == ["stopped", "stopped"]


def test_a_row_compares_with_on_demand() -> None:
    (row,) = rows_of([DueResult("a", "", "a-1", "finished", "", 5, 0.25, 0.1, 1.0)])
    assert (row["saved"], row["revocations"]) == ("75%", 5)
    assert rows_of([DueResult("a", "")])[0]["saved"] == "-"


def test_a_file_of_runs_is_the_same_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_uri("sqlite:///x/mlflow.db") == f"sqlite:///{tmp_path}/x/mlflow.db"
    assert absolute_uri("http://host:5000") == "http://host:5000"


def batch(incoming: Path, usd: float, place: int) -> Path:
    """A batch that says what one market costs; later places are written later."""
    path = incoming / f"{chr(ord('z') - place)}.parquet"
    history({C3: [(0, usd)]}, hours=1).write(path)
    os.utime(path, ns=(place, place))
    return path


@pytest.mark.parametrize("prices", [(0.1, 0.2, 0.3), (0.3, 0.1, 0.2), (0.2, 0.3, 0.1)])
def test_a_later_batch_corrects_an_earlier_one_though_a_night_is_killed_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prices: tuple[float, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    for place, usd in enumerate(prices):
        batch(incoming, usd, place)
    (incoming / ".unfinished.parquet").write_bytes(b"")
    files = batches(incoming)
    assert [file.name for file in files] == ["z.parquet", "y.parquet", "x.parquet"]
    verdicts = [BatchVerdict(file, 1) for file in files]
    # Killed after the first was moved; then started again.
    sort_out.fn(verdicts[:1])
    sort_out.fn(verdicts)
    names = sorted(path.name for path in ACCEPTED.iterdir())
    assert [name.split("-")[0] for name in names] == ["000001", "000002", "000003"]
    # The first once more, by another name: it is known.
    sort_out.fn([BatchVerdict(batch(incoming, prices[0], 5), 1)])
    assert sorted(path.name for path in ACCEPTED.iterdir()) == names
    from_batches.fn(tmp_path / "prices.parquet", accepted_batches(ACCEPTED))
    merged = eb.PriceHistory.read(tmp_path / "prices.parquet")
    (series,) = [series for _, series in merged.items()]
    assert float(series.prices[0]) == pytest.approx(prices[-1])
