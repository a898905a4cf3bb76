"""`ebbtide run` and what goes with it, as a user has it."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
import yaml
from mlflow.tracking import MlflowClient
from tests.runs.sweeps import flapping, sweep

from ebbtide.cli.main import main
from ebbtide.clouds.settings import SCHEMA_VERSION
from ebbtide.controller.run_state import controlling
from ebbtide.jobs.job_files import read_sweep
from ebbtide.runs.run import begin
from ebbtide.tracking.tracking import tracking


def said(errors: str) -> list[str]:
    """Lines of standard error, without the one on what is sent to machines."""
    return [line for line in errors.splitlines() if not line.startswith("code: ")]


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out, told.err


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A sweep and prices."""
    wanted = sweep(tmp_path, trials=2, steps=60)
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(wanted.model_dump(mode="json", exclude_none=True)))
    flapping().write(tmp_path / "prices.parquet")
    return path, tmp_path / "prices.parquet"


# Its loss is lowest at its first save, and higher at its last.
BEST_IN_THE_MIDDLE = """
import os, pathlib, time
file = pathlib.Path("ckpt") / "state"
file.parent.mkdir(exist_ok=True)
for step in range(1, 9):
    if step in (4, 8):
        file.write_text(str(step))
    print(f"step {step}/8 loss {0.1 + abs(step - 4) / 10}", flush=True)
    time.sleep(0.3)
    # It goes on once its first save is stored.
    while step == 4 and not list(pathlib.Path(os.environ["STORE"]).glob("*/trials/*/manifests/*")):
        time.sleep(0.05)
"""


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_the_best_is_fetched_and_the_newest_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(BEST_IN_THE_MIDDLE)
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    options = ("--checkpoints", "ckpt", "--metric", "loss", "--speed", 60, "--store", tmp_path / "store")
    code, _, errors = command(capsys, "run", *options, "--", "python", "train.py")
    assert code == 0, errors
    for word, step in (((), "4"), (("--newest",), "8")):
        into = tmp_path / f"got-{step}"
        code, out, errors = command(capsys, "fetch", "latest", "--into", into, *word)
        assert code == 0, errors
        assert f"checkpoint of step {step}" in out
        (state,) = into.rglob("state")
        assert state.read_text() == step


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_program_runs_on_a_market_whose_prices_never_change_and_its_machine_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], in_project: None
) -> None:
    runs = ("--runs", tmp_path / "runs")
    words = ("--accelerators", "A100:1", "--checkpoints", "ckpt", "--speed", 100)
    program = ("--", "python", "examples/live/plain.py", "--epochs", "2")
    code, out, errors = command(capsys, "run", *words, *runs, *program)
    assert code == 0, errors
    assert "finished" in out
    code, out, _ = command(capsys, "why", "latest", "0", *runs)
    assert code == 0
    # Costs are of what is known, never of a billion steps.
    assert re.search(r"requested .*(a2-highgpu-1g|p4d|A100)", out)
    weighed = out[out.index("what the policy weighed") : out.index("lease 0 came to")]
    assert not re.search(r"\d{4,}\.\d+", weighed)


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_sweep_is_run_looked_at_and_cleared_away(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    path, prices = files
    runs = ("--runs", tmp_path / "runs")
    decides = ("--policy", "exosphere", "--set", "soft_share=0.4")
    code, out, errors = command(capsys, "run", path, "--prices", prices, *decides, *runs)
    assert (code, said(errors)) == (0, [])
    assert "2 trials; policy exosphere (soft_share: 0.4) decides" in out
    run = re.search(r"run (small-sweep-\S+)", out)
    assert run is not None
    # What one would want next is told.
    for next_one in ("status", "logs -f", "stop", "down"):
        assert f"ebbtide {next_one} {run.group(1)}" in out
    assert "less than on demand" in out
    code, out, _ = command(capsys, "status", run.group(1), *runs)
    assert code == 0
    assert out.strip().endswith("finished")
    assert "\npolicy exosphere (soft_share: 0.4)\n" in out
    assert len(re.findall(r"lr=0\.\d +60 +60 .* done ", out)) == 2
    assert "best: trial 0 (lr=0.1), loss" in out
    # Without a name all are listed.
    code, out, _ = command(capsys, "status", *runs)
    assert (code, bool(re.search(rf"{run.group(1)} +finished +local \(simulated\) +2/2 ", out))) == (0, True)
    code, out, _ = command(capsys, "status", "--json", *runs)
    assert [one["state"] for one in json.loads(out)] == ["finished"]
    assert [one["parameters"] for one in json.loads(out)] == [{"soft_share": 0.4}]
    code, _, errors = command(capsys, "stop", *runs)
    assert (code, "has finished" in errors) == (2, True)
    code, out, _ = command(capsys, "logs", "--trial", 1, *runs)
    # Beside what it printed stands how fast it was, if it was seen for long enough.
    assert re.fullmatch(r"(\[1\] ebbtide: measured \S+ steps/\w+ on c3\.xlarge\n)?\[1\] total \S+\n", out)
    code, out, _ = command(capsys, "down", *runs)
    assert (code, out.partition(": ")[2]) == (0, "0 machines given back, none left\n")
    code, out, errors = command(capsys, "logs", "--trial", 9, *runs)
    assert (code, out) == (2, "")
    assert "has trials 0 to 1, not 9" in errors
    code, out, errors = command(capsys, "fetch", run.group(1), "--into", path, *runs)
    assert (code, out) == (2, "")
    assert "is a file; name a folder" in errors
    with controlling(tmp_path / "runs" / run.group(1)):
        code, out, errors = command(capsys, "resume", *runs)
    assert (code, out) == (2, "")
    assert f"run {run.group(1)} has a controller already" in errors
    # What is finished stays so.
    code, out, _ = command(capsys, "resume", *runs)
    assert code == 0
    # Square brackets are markup to the library that draws tables, and here a part of names.
    settings = tmp_path / "runs" / run.group(1) / "run.json"
    kept = json.loads(settings.read_text())
    kept["sweep"]["grid"]["lr"] = ["[/b]", "[red]x"]
    settings.write_text(json.dumps(kept))
    code, out, errors = command(capsys, "status", run.group(1), *runs)
    assert (code, errors) == (0, "")
    assert "lr=[/b]" in out
    assert "lr=[red]x" in out


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_trial_s_run_in_mlflow_goes_on_wherever_it_trains(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, prices = files
    # The program tells the run that it found in its environment.
    program = tmp_path / "program.py"
    told = "import os; print('run', os.environ['MLFLOW_RUN_ID'], os.environ['EBBTIDE_TRIAL_ID'], flush=True)\n"
    program.write_text(told + program.read_text())
    words = ("run", path, "--prices", prices, "--policy", "exosphere", "--runs", tmp_path / "runs")
    words = (*words, "--set", "free_list_s=300")
    code, _, _ = command(capsys, *words, "--track", f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert code == 0
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'live runs'")
    runs = {run.info.run_id: run for run in client.search_runs([experiment.experiment_id])}
    trials = [run for run in runs.values() if run.data.tags["ebbtide.kind"] == "trial"]
    (parent,) = (run for run in runs.values() if run.data.tags["ebbtide.kind"] == "live")
    assert sorted(run.data.params["lr"] for run in trials) == ["0.1", "0.2"]
    assert all(run.info.status == "FINISHED" for run in runs.values())
    whole = parent.data.metrics
    assert whole["on_demand_usd"] > whole["cost_usd"] > 0
    wanted = {
        "theta": "1.0",
        "mcnt": "3",
        "billing": "by-cloud",
        "policy": "exosphere",
        "policy.free_list_s": "300",
        "provider": "local",
        "metric": "loss",
        "direction": "minimize",
        "max_trial_steps": "60",
        "seed": "0",
        "trials": "2",
    }
    assert wanted.items() <= parent.data.params.items()
    assert "program.py" in parent.data.params["command"]
    # The smaller learning rate has the smaller loss.
    (best,) = (run for run in trials if run.data.params["lr"] == "0.1")
    assert parent.data.tags["ebbtide.winner"] == best.data.tags["ebbtide.trial"]
    assert parent.data.tags["ebbtide.winner_run"] == best.info.run_id
    assert [run.data.tags["ebbtide.winner"] for run in trials].count("true") == 1
    assert whole["best_loss"] == pytest.approx(0.1 + 1 / 60)
    assert sum(run.data.metrics["ebbtide.cost_usd"] for run in trials) == pytest.approx(whole["cost_usd"])
    assert [file.path for file in client.list_artifacts(parent.info.run_id, "winner")] == ["winner/state.json"]
    for run in trials:
        history = client.get_metric_history(run.info.run_id, "loss")
        assert [point.step for point in history] == list(range(5, 61, 5))
        number = run.data.tags["ebbtide.trial"][-3:]
        kept = Path(run.data.tags["ebbtide.checkpoints_at"])
        assert kept.name == run.data.tags["ebbtide.trial"]
        assert list(kept.glob("manifests/*"))
        (log,) = (tmp_path / "runs").glob(f"*/logs/*-{number}.log")
        said = {line for line in log.read_text().splitlines() if line.startswith("run ")}
        assert said == {f"run {run.info.run_id} {run.data.tags['ebbtide.trial']}"}


def test_in_replay_nothing_is_started(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    path, prices = files
    code, out, _ = command(
        capsys, "run", path, "--provider", "replay", "--prices", prices, "--policy", "cheapest-spot"
    )
    assert code == 0
    assert "cheapest-spot" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "{sweep}", "--provider", "moon", "--generate", 5), "unknown provider 'moon'"),
        (("run", "{sweep}", "--provider", "replay"), "give either --prices FILE or --generate DAYS"),
        (("run", "missing.yaml", "--generate", 5), "missing.yaml"),
        (("run", "{sweep}", "--generate", 5, "--policy", "luck"), "unknown policy 'luck'"),
        (
            ("run", "{sweep}", "--generate", 5, "--policy", "reactive", "--set", "max_price=2"),
            "field max_price: unknown parameter 'max_price' (did you mean 'max_price_ratio'?)",
        ),
        (("run", "{sweep}", "--generate", 5, "--set", "theta"), "--set 'theta' is no assignment"),
        (
            ("run", "{sweep}", "--generate", 5, "--policy", "dynamic-pricing-cost", "--set", "slo_h={{a: 1}}"),
            "field slo_h.a: unknown job 'a'",
        ),
        (("status", "--runs", "{runs}"), "there is no run in"),
        (("logs", "nothing", "--runs", "{runs}"), "there is no run in"),
        (("stop", "--runs", "{runs}"), "`ebbtide run -- python train.py` begins one"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    files: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[object, ...],
    said: str,
) -> None:
    given = [str(part).format(sweep=files[0], runs=tmp_path / "none") for part in arguments]
    code, _, errors = command(capsys, *given)
    assert code == 2
    assert said in errors
    assert errors.count("\n") == 1


def test_logs_of_every_machine_of_a_job_are_printed(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Machines of a gang and workers of a cluster have logs of their own, beside that of the trial."""
    runs = tmp_path / "runs"
    kept = begin(read_sweep(files[0]), tmp_path, "reactive", "local", {"prices": flapping(), "runs": runs}).kept
    for machine in ("001", "000-r10", "000-r2", "000", "000-w1"):
        kept.log_of(f"{kept.path.name}-{machine}").write_text(f"of {machine}\nmore\n")
    (kept.path / "logs" / "notes.log").write_text("of somebody else\n")
    code, out, errors = command(capsys, "logs", "--runs", runs)
    assert (code, said(errors)) == (0, [])
    told = [f"{label} {line}" for label, line in re.findall(r"(\[\S+\]) (of \S+)", out)]
    assert told == ["[0] of 000", "[0-r2] of 000-r2", "[0-r10] of 000-r10", "[0-w1] of 000-w1", "[1] of 001"]
    assert "somebody" not in out
    code, out, _ = command(capsys, "logs", "--trial", 0, "-f", "--runs", runs)
    assert (code, out.count("of 000"), out.count("of 001")) == (0, 4, 0)


def test_a_program_that_is_not_there_is_told_with_the_job_s_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("spark: nothere.py\n")
    code, out, errors = command(capsys, "run", path, "--generate", 5, "--runs", tmp_path / "runs")
    assert (code, out) == (2, "")
    assert errors.startswith(f"ebbtide: {path}, field spark: nothere.py is not in {tmp_path}")
    path.write_text("jobs:\n- {name: a, command: 'true'}\n- {name: b, command: python nothere.py}\n")
    code, _, errors = command(capsys, "run", path, "--generate", 5, "--runs", tmp_path / "runs")
    assert code == 2
    assert errors.startswith(f"ebbtide: {path}, field jobs.1.command: nothere.py is not in {tmp_path}")
    assert not (tmp_path / "runs").exists()


def test_tracking_leaves_our_warnings_heard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Alembic, which makes MLflow's database, turns loggers off."""
    logger = logging.getLogger("ebbtide.controller.agent_provider")
    with tracking(f"sqlite:///{tmp_path}/new.db", "e", tmp_path), caplog.at_level(logging.WARNING):
        logger.warning("heard")
    assert "heard" in caplog.text


def test_runs_that_cannot_be_read_do_not_hide_the_others(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    kept = [
        begin(read_sweep(files[0]), tmp_path, "reactive", "local", {"prices": flapping(), "runs": runs}).kept
        for _ in range(4)
    ]
    healthy, newer, damaged, foreign = kept
    for folder, content in (
        (newer, b'{"schema_version": 99}'),
        (damaged, b'{"run": '),
        (foreign, b"\xff\xfe\x00"),
    ):
        (folder.path / "run.json").write_bytes(content)
    code, out, errors = command(capsys, "status", "--runs", runs)
    assert (code, said(errors)) == (0, [])
    assert re.search(rf"{healthy.path.name} +not begun ", out)
    for folder in (newer, damaged, foreign):
        assert re.search(rf"{folder.path.name} +cannot be read +- ", out)
    words = " ".join(out.split())
    assert (
        f"has schema version 99, and this Ebbtide reads versions up to {SCHEMA_VERSION}; upgrade ebbtide" in words
    )
    assert words.count("holds no settings of a run") == 2
    assert f"`ebbtide status {healthy.path.name}` shows one in detail" in words
    code, out, _ = command(capsys, "status", "--json", "--runs", runs)
    listed = {one["run"]: one for one in json.loads(out)}
    assert listed[healthy.path.name]["state"] == "not begun"
    assert listed[newer.path.name]["state"] == "cannot be read"
    assert "schema version 99" in listed[newer.path.name]["why"]
    # Where it is named, that is the error of the command.
    code, _, errors = command(capsys, "status", newer.path.name, "--runs", runs)
    assert (code, "schema version 99" in errors) == (2, True)
