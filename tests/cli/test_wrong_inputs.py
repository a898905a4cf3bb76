"""Wrong inputs end in one line and an exit code; nothing is left half written."""

from __future__ import annotations

import errno
import io
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer
from rich.table import Table
from rich.text import Text
from tests.cli.wrong_inputs import WRONG_INPUTS, WrongInput, arguments_of, ended, folder_of, table, write_prices
from tests.waiting import without_progress

import ebbtide as eb
from ebbtide.base.terminal import PlainConsole, visible
from ebbtide.cli import exit_codes
from ebbtide.cli import main as command
from ebbtide.errors import CloudError, InputError, PolicyError

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prices(tmp_path_factory.mktemp("prices") / "prices.parquet")


def test_there_are_more_than_the_audits_46_and_30_of_our_own() -> None:
    assert len(WRONG_INPUTS) >= 76
    assert len({wrong.tried for wrong in WRONG_INPUTS}) == len(WRONG_INPUTS)
    assert len({wrong.arguments.split()[0] for wrong in WRONG_INPUTS}) >= 19


@pytest.mark.parametrize("wrong", WRONG_INPUTS, ids=lambda wrong: wrong.tried)
def test_a_wrong_input_is_told_and_leaves_nothing_behind(wrong: WrongInput, prices: Path) -> None:
    end = ended(wrong, prices)
    assert end.code == wrong.code
    assert wrong.message in end.err
    assert "Traceback" not in end.err
    assert any(line.startswith("ebbtide: ") for line in end.err.splitlines())
    # A few lines where several things are wrong at once; each of a length that one reads.
    assert 1 <= end.err.count("\n") <= 12
    assert max(map(len, end.err.splitlines())) < 1500
    assert end.new_files == ()
    # Seconds of the processor, whatever else the machine does; none takes two.
    assert end.seconds < 20


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "tried", ["a verb that is not there", "YAML nested 10,000 deep", "an escape sequence for a name"]
)
def test_it_is_the_same_in_a_process_of_its_own(tried: str, prices: Path) -> None:
    wrong = next(wrong for wrong in WRONG_INPUTS if wrong.tried == tried)
    with folder_of(wrong, prices) as folder:
        done = run(arguments_of(wrong), folder)
    assert (done.returncode, done.stdout) == (wrong.code, "")
    assert wrong.message in done.stderr
    assert len(without_progress(done.stderr)) == 1


def run(arguments: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **more}
    return subprocess.run(
        [sys.executable, "-m", "ebbtide.cli.main", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
        timeout=120,
    )


def test_the_table_has_a_row_for_each_and_counts_tracebacks(prices: Path) -> None:
    wrong = WRONG_INPUTS[0]
    text = table([(wrong, ended(wrong, prices))])
    assert "0 ended in a traceback" in text
    assert "| a verb that is not there | `ebbtide fly` | 2 | ebbtide: No such command 'fly'" in text


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("is bad", file="a.csv", row=3), 2, "ebbtide: a.csv, row 3: is bad"),
        (PolicyError("is no policy", policy="mine"), 2, "ebbtide: policy mine: is no policy"),
        (CloudError("EC2 refused"), 69, "ebbtide: EC2 refused"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), 69, "Connection refused"),
        (PermissionError(errno.EACCES, "Permission denied", "/root/x"), 2, "ebbtide: /root/x: permission denied"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/full/x"),
            74,
            "ebbtide: /full/x: no space left on device",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), 74, "ebbtide: no space left on device"),
        (sqlite3.OperationalError("disk I/O error"), 74, "ebbtide: a database cannot be used: disk I/O error"),
        (MemoryError(), 71, "ebbtide: out of memory"),
        (
            KeyError("steps"),
            70,
            "ebbtide: internal error: KeyError: 'steps'; EBBTIDE_DEBUG=1 shows where; please report it",
        ),
        (RuntimeError("a\nb\x1b[31m"), 70, "internal error: RuntimeError: a b\\x1b[31m;"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (typer.Abort(), 130, "interrupted"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_failure_has_an_exit_code_and_a_line(error: BaseException, code: int, line: str) -> None:
    found, told = exit_codes.ending_of(error)
    assert found == code
    assert line in told
    assert "\n" not in told


@pytest.mark.parametrize(
    "raised", [ZeroDivisionError("division by zero"), PolicyError("is late"), InputError("is bad")]
)
def test_the_traceback_is_shown_only_when_asked_for(
    raised: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr(command, "app", fail)
    monkeypatch.delenv(exit_codes.DEBUG, raising=False)
    with pytest.raises(SystemExit):
        command.main([])
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv(exit_codes.DEBUG, "1")
    with pytest.raises(SystemExit):
        command.main([])
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "in fail" in told


@pytest.mark.usefixtures("processes")
def test_a_full_disk_below_the_output_is_told(prices: Path, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ebbtide.cli.main", "describe", str(prices)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            check=False,
            timeout=120,
        )
    assert done.returncode == 74
    assert without_progress(done.stderr)[0] == "ebbtide: no space left on device"
    assert "Traceback" not in done.stderr


NAMES = ("[/red]", "[bold]x[/bold]", ":boom:", "\x1b[31mred", "a\x07b", "\u202eevil")


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_that_a_terminal_would_obey_are_shown_as_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = eb.generate_prices(days=4, seed=1, kind="auction").to_frame()
    frame["zone"] = frame["zone"].astype(str).where(frame["zone"] != "us-east-1a", name)
    eb.PriceHistory.from_frame(frame).write(tmp_path / "prices.parquet")
    (tmp_path / "job.yaml").write_text("name: '[/red]'\nsteps: 100\nsteps_per_hour: {c3.xlarge: 100}\n")
    path = str(tmp_path / "prices.parquet")
    for arguments in (
        ["describe", path],
        ["plan", str(tmp_path / "job.yaml"), "--prices", path, "--runs", "0"],
        [
            "compare",
            str(tmp_path / "job.yaml"),
            "--prices",
            path,
            "--policies",
            "reactive",
            "--starts",
            "1",
            "--record",
            str(tmp_path / "record"),
        ],
        ["report", str(tmp_path / "record"), "--out", str(tmp_path / "report.html")],
    ):
        with pytest.raises(SystemExit) as end:
            command.main(arguments)
        told = capsys.readouterr()
        assert (end.value.code, told.err) == (0, "")
        assert not set("\x1b\x07\u202e") & set(told.out)
        assert visible(name) in told.out or arguments[0] in ("compare", "report")
        assert "[/red]" in told.out or arguments[0] == "describe"


def test_tables_show_names_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    made = Table(title="[/red]")
    made.add_column("[bold]x")
    made.add_row("\x1b[31m:boom:")
    PlainConsole(width=80).print(made)
    text = capsys.readouterr().out
    assert "[/red]" in text
    assert "[bold]x" in text
    assert "\\x1b[31m:boom:" in text


def test_a_line_with_a_spinner_shows_names_as_written() -> None:
    out = io.StringIO()
    console = PlainConsole(file=out, width=80, force_terminal=True, color_system=None)
    with console.status("[/red] first") as status:
        status.update("[bold] second \x1b]0;title\x07")
    assert "[bold] second \\x1b]0;title" in out.getvalue()


def test_a_text_of_its_own_is_shown_as_written_too(capsys: pytest.CaptureFixture[str]) -> None:
    PlainConsole(width=80).print(Text("a\x1b]0;title\x9cb"))
    assert capsys.readouterr().out == "a\\x1b]0;title\\x9cb\n"


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_text("{")])
def test_a_record_of_a_backtest_with_a_table_missing_or_torn_is_told(
    spoil: Callable[[Path], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record"
    record.mkdir()
    (record / "about.json").write_text('{"jobs": ["a"], "starts": 1, "seed": 1, "billing": "ec2-second"}')
    for name in ("outcomes", "leases", "timeline", "ledger", "prices"):
        pd.DataFrame({"a": [1]}).to_parquet(record / f"{name}.parquet")
    spoil(record / "ledger.parquet")
    with pytest.raises(SystemExit) as end:
        command.main(["report", str(record), "--out", str(tmp_path / "report.html")])
    assert end.value.code == 2
    assert "ledger.parquet" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
