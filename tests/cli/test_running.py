"""`ebbtide run` and what goes with it, as a user has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from tests.execution.live.sweeps import flapping, sweep

from ebbtide.cli.main import main


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


def test_a_sweep_is_run_looked_at_and_cleared_away(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, prices = files
    runs = ("--runs", tmp_path / "runs")
    code, out, errors = command(capsys, "run", path, "--prices", prices, "--policy", "exosphere", *runs)
    assert (code, errors) == (0, "")
    run = re.search(r"run (small-sweep-\S+)", out)
    assert run is not None
    # What one would want next is told.
    for next_one in ("status", "logs -f", "stop", "down"):
        assert f"ebbtide {next_one} {run.group(1)}" in out
    assert "less than on demand" in out
    code, out, _ = command(capsys, "status", run.group(1), *runs)
    assert code == 0
    assert out.strip().endswith("finished")
    assert out.count("done 2015-06") == 2
    code, out, _ = command(capsys, "logs", "--trial", 1, *runs)
    assert re.fullmatch(r"\[1\] total \S+\n", out)
    code, out, _ = command(capsys, "down", *runs)
    assert (code, out) == (0, "0 machines ended\n")
    # What is finished stays so.
    code, out, _ = command(capsys, "resume", *runs)
    assert code == 0


def test_in_replay_nothing_is_started(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    path, prices = files
    code, out, _ = command(capsys, "run", path, "--provider", "replay", "--prices", prices, "--policy", "cheapest-spot")
    assert code == 0
    assert "cheapest-spot" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "{sweep}", "--provider", "moon", "--generate", 5), "unknown provider 'moon'"),
        (("run", "{sweep}"), "give either --prices FILE or --generate DAYS"),
        (("run", "missing.yaml", "--generate", 5), "missing.yaml"),
        (("run", "{sweep}", "--generate", 5, "--policy", "luck"), "unknown policy 'luck'"),
        (("status", "--runs", "{runs}"), "there is no run in"),
        (("logs", "nothing", "--runs", "{runs}"), "there is no run in"),
        (("stop", "--runs", "{runs}"), "`ebbtide run SWEEP.yaml` begins one"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], said: str
) -> None:
    given = [str(part).format(sweep=files[0], runs=tmp_path / "none") for part in arguments]
    code, _, errors = command(capsys, *given)
    assert code == 2
    assert said in errors
    assert errors.count("\n") == 1
