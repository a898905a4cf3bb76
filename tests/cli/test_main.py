"""The command line: exit codes, what is printed where, what is written."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from tests.waiting import without_progress

import ebbtide as eb
from ebbtide.cli.main import main

ROOT = Path(__file__).parents[2]
JOB = str(ROOT / "examples" / "one-day.yaml")


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it wrote to each stream."""

    returncode: int
    stdout: str
    stderr: str


Ebbtide = Callable[..., Done]


@pytest.fixture(autouse=True)
def _without_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a fresh clone: there may be models of an earlier `make demo`."""
    monkeypatch.setattr("ebbtide.forecasts.champions.DEFAULT_BUNDLE", tmp_path / "models")


@pytest.fixture
def ebbtide(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ebbtide:
    """The command, as a shell's user sees it."""

    def ended(*arguments: str, cwd: Path = ROOT) -> Done:
        monkeypatch.chdir(cwd)
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("NO_COLOR", "1")
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        told = capsys.readouterr()
        return Done(int(ended.value.code or 0), told.out, told.err)

    return ended


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prices") / "prices.parquet"
    eb.generate_prices(days=20, seed=1, kind="auction").write(path)
    return path


def failing(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run in this process, expect exit code 2 and one line, and give the line."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("ebbtide: ")
    return captured.err


def test_a_backtest_prints_its_table_and_writes_the_same_json_twice(
    ebbtide: Ebbtide, prices: Path, tmp_path: Path
) -> None:
    texts = []
    for number in range(2):
        out = tmp_path / f"{number}.json"
        done = ebbtide(
            "compare",
            JOB,
            "--prices",
            str(prices),
            "--policies",
            "on-demand,reactive",
            "--starts",
            "8",
            "--seed",
            "3",
            "--billing",
            "ec2-hourly",
            "--json",
            str(out),
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "reactive" in done.stdout
        texts.append(out.read_bytes())
    assert texts[0] == texts[1]
    told = json.loads(texts[0])
    assert (told["starts"], told["seed"], list(told["policies"])) == (8, 3, ["on-demand", "reactive"])


def test_a_record_becomes_a_report(ebbtide: Ebbtide, prices: Path, tmp_path: Path) -> None:
    record, direct, later = tmp_path / "record", tmp_path / "1.html", tmp_path / "2.html"
    done = ebbtide(
        "compare",
        JOB,
        "--prices",
        str(prices),
        "--starts",
        "2",
        "--policies",
        "reactive",
        "--record",
        str(record),
        "--report",
        str(direct),
    )
    assert done.returncode == 0
    assert ebbtide("report", str(record), "--out", str(later)).stdout.endswith(f"wrote {later}\n")
    assert direct.read_text() == later.read_text()


def test_describe_tells_each_market(ebbtide: Ebbtide, prices: Path, tmp_path: Path) -> None:
    done = ebbtide("describe", str(prices))
    assert done.returncode == 0
    assert "us-east-1a c3.xlarge" in done.stdout
    assert "0.21" in done.stdout
    part = ebbtide("describe", str(prices), "--from", "2015-04-05", "--to", "2015-04-06T12:00:00Z").stdout
    assert "2015-04-05T00:00:00Z to 2015-04-06T12:00:00Z" in part
    table = ebbtide("describe", str(prices), "--csv").stdout
    assert len(table.splitlines()) == 13
    out = tmp_path / "markets.json"
    assert ebbtide("describe", str(prices), "--json", str(out)).stdout.endswith(f"wrote {out}\n")
    told = json.loads(out.read_text())
    assert len(told["markets"]) == 12
    (one,) = [each for each in told["markets"] if each["market"] == "us-east-1a c3.xlarge"]
    assert one["on_demand_usd_per_hour"] == 0.21
    assert "longest_gap_h" in table.splitlines()[0]


def test_ingest_makes_a_file_that_backtest_takes(ebbtide: Ebbtide, tmp_path: Path) -> None:
    rows = [f"2017-05-0{day} 01:00:00+00:00,c3.xlarge,Linux/UNIX,us-east-1a,0.0{day}\n" for day in range(1, 9)]
    (tmp_path / "export.csv").write_text("datetime,instance_type,os,region,price\n" + "".join(rows))
    done = ebbtide("ingest", "export.csv", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "8 rows added to 0" in done.stdout
    done = ebbtide("compare", JOB, "--prices", "data/prices.parquet", "--starts", "3", cwd=tmp_path)
    assert done.returncode == 0


@pytest.mark.parametrize("command", [[], ["ingest"], ["describe"], ["compare"], ["report"]])
def test_help_teaches(ebbtide: Ebbtide, command: list[str]) -> None:
    done = ebbtide(*command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout
    if command:
        assert len(done.stdout) > 500


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["fly"], "No such command 'fly'."),
        (["compare"], "Missing argument 'JOB.yaml'."),
        (["compare", JOB, "--fast"], "No such option: --fast"),
        (["compare", JOB, "--generate", "20", "--starts", "many"], "Invalid value for '--starts'"),
        (["plan", JOB, "--kind", "moon"], "Invalid value for '--kind': 'moon' is not one of 'today', 'gpu'"),
        (["compare", JOB], "give either --prices FILE or --generate DAYS"),
        (["compare", JOB, "--prices", "none.parquet"], "none.parquet: there is no such file"),
        (["compare", "none.yaml", "--generate", "20"], "none.yaml: there is no such file"),
        (
            ["compare", JOB, "--generate", "20", "--policies", "reactiv"],
            "unknown policy 'reactiv' (did you mean 'reactive'?)",
        ),
        (["compare", JOB, "--generate", "20", "--billing", "ec2-minutely"], "known: azure-spot, by-cloud"),
        (["compare", JOB, "--generate", "20", "--starts", "0"], "starts is 0; at least 1 is needed"),
        (["compare", JOB, "--generate", "0.01"], "can never finish"),
        (["compare", JOB, "--generate", "-3"], "days is -3.0; it must be positive"),
        (
            ["compare", JOB, "--generate", "20", "--from", "2012-01-01"],
            "2012-01-01T00:00:00Z is outside the history",
        ),
        (["compare", JOB, "--generate", "20", "--to", "soon"], "'soon' is not a time"),
        (["describe", "none.parquet"], "none.parquet: there is no such file"),
        (["ingest"], "give either files to ingest or --ec2 REGION"),
        (["ingest", "none.csv"], "none.csv: "),
        (["report", "nowhere"], "nowhere: is not the record of a backtest"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert problem in failing(capsys, *arguments)


def test_bad_prices_leave_no_output_behind(
    prices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.read_parquet(prices)
    frame.loc[41, "price_usd_per_hour"] = -0.1
    bad = tmp_path / "bad.parquet"
    frame.to_parquet(bad)
    outputs = [tmp_path / "out.json", tmp_path / "report.html", tmp_path / "record"]
    line = failing(
        capsys,
        "compare",
        JOB,
        "--prices",
        str(bad),
        "--json",
        str(outputs[0]),
        "--report",
        str(outputs[1]),
        "--record",
        str(outputs[2]),
    )
    assert f"{bad}, row 42, field price_usd_per_hour: -0.1 is negative" in line
    assert not any(path.exists() for path in outputs)


@pytest.mark.usefixtures("processes")
def test_a_reader_that_has_seen_enough_is_no_error(prices: Path) -> None:
    command = f"{sys.executable} -m ebbtide.cli.main describe {prices} --csv | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert without_progress(done.stderr) == []


@pytest.mark.usefixtures("in_project")
@pytest.mark.real_traces
def test_the_backtest_of_the_documentation_on_real_prices(ebbtide: Ebbtide, traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = ebbtide(
        "compare",
        "examples/one-day.yaml",
        "--prices",
        str(traces / "ec2-auction-2015.parquet"),
        "--policies",
        "on-demand,cheapest-spot,fastest-spot,reactive",
        "--starts",
        "200",
        "--seed",
        "1",
        "--billing",
        "ec2-hourly",
        "--json",
        str(out),
    )
    assert done.returncode == 0
    told = json.loads(out.read_text())["policies"]
    assert list(told) == ["on-demand", "cheapest-spot", "fastest-spot", "reactive"]
    assert all(row["unfinished"] == 0 for row in told.values())
