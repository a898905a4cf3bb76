"""Wrong inputs to every verb of the command, each with the exit code and the message that it must end with.

    python -m tests.cli.wrong_inputs reports/wrong-inputs.md

tries all of them and writes what each really ended with.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

import ebbtide as eb
from ebbtide.base.files import write_text
from ebbtide.cli.main import main

Content = str | bytes | Callable[[Path], None]

# Written into the folder of every case before its own files.
JOB = """\
name: day
steps: 1000
steps_per_hour: {c3.xlarge: 1000}
"""
SWEEP = """\
name: sweep
command: python train.py --lr {lr}
grid: {lr: [0.1, 0.01]}
metric: loss
max_trial_steps: 100
steps_per_hour: {c3.xlarge: 1000}
"""
CSV = "datetime,instance_type,os,region,price\n"
ROW = "2017-05-08 19:28:43+00:00,c3.xlarge,Linux/UNIX,us-east-1a,0.04\n"


@dataclass(frozen=True)
class WrongInput:
    """One thing that users get wrong.

    Attributes:
        tried: In words.
        arguments: Of the command, run in a folder with `job.yaml`, `sweep.yaml`, `prices.parquet` and `files`.
        message: Part of what it must say.
        files: Content by name, or what writes it.
        code: What it must end with.
    """

    tried: str
    arguments: str
    message: str
    files: Mapping[str, Content] = field(default_factory=dict)
    code: int = 2


@dataclass(frozen=True)
class Ended:
    """How the command ended.

    Attributes:
        code: Its exit code.
        out: What it printed.
        err: What it printed on standard error.
        seconds: Time of the processor that it took.
        new_files: Those that it left in its folder, by relative path.
    """

    code: int
    out: str
    err: str
    seconds: float
    new_files: tuple[str, ...]


def ended(wrong: WrongInput, prices: Path) -> Ended:
    """Try it in this process, in a fresh folder."""
    with folder_of(wrong, prices) as folder, chdir(folder):
        before = set(folder.rglob("*"))
        out, err = io.StringIO(), io.StringIO()
        began_s = time.process_time()
        code: int | str | None = None
        try:
            with redirect_stdout(out), redirect_stderr(err):
                main(arguments_of(wrong))
        except SystemExit as end:
            code = end.code
        seconds = time.process_time() - began_s
        new = sorted(str(path.relative_to(folder)) for path in set(folder.rglob("*")) - before)
        assert isinstance(code, int)
        return Ended(code, out.getvalue(), err.getvalue(), seconds, tuple(new))


def arguments_of(wrong: WrongInput) -> list[str]:
    """As the shell would split them, where no quotes are needed: `␣` stands for a blank inside of one."""
    return [part.replace("␣", " ") for part in wrong.arguments.split()]


@contextmanager
def folder_of(wrong: WrongInput, prices: Path) -> Iterator[Path]:
    """A folder with what the case needs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.link(prices, folder / "prices.parquet")
        for file, content in {"job.yaml": JOB, "sweep.yaml": SWEEP, **wrong.files}.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if callable(content):
                content(path)
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
        yield folder


def write_prices(path: Path) -> Path:
    """Twenty days of a generated market."""
    eb.generate_prices(days=20, seed=1, kind="auction").write(path)
    return path


def prices_with(**cells: object) -> Callable[[Path], None]:
    """A price file with some columns replaced."""
    return lambda path: _frame().assign(**cells).to_parquet(path, index=False)


def prices_without(column: str) -> Callable[[Path], None]:
    """A price file without a column."""
    return lambda path: _frame().drop(columns=column).to_parquet(path, index=False)


def _frame() -> pd.DataFrame:
    return eb.generate_prices(days=1, seed=1, kind="auction").to_frame()


def _naive(path: Path) -> None:
    frame = _frame()
    frame.assign(timestamp=frame["timestamp"].dt.tz_localize(None)).to_parquet(path, index=False)


def _unsorted(path: Path) -> None:
    _frame().iloc[::-1].to_parquet(path, index=False)


def _far_future(path: Path) -> None:
    times = pd.Series(np.full(len(_frame()), 9 * 10**18)).astype("datetime64[us]").dt.tz_localize("UTC")
    _frame().assign(timestamp=times).to_parquet(path, index=False)


def _with_job(text: str) -> dict[str, Content]:
    return {"job.yaml": text}


_JOB_HEAD = "name: day\nsteps_per_hour: {c3.xlarge: 1000}\n"
_EC2_ENTRY = {
    "Timestamp": "2015-04-01T00:00:00Z",
    "AvailabilityZone": "us-east-1a",
    "InstanceType": "c3.xlarge",
    "ProductDescription": "Linux/UNIX",
    "SpotPrice": "0.1",
}
_BACKTEST = "compare job.yaml --prices prices.parquet --policies reactive --starts 2"

_OWN = "compare job.yaml --prices prices.parquet --starts 1 --policies mine.py:Mine"


def _with_policy(body: str, *fields: str) -> dict[str, Content]:
    """A policy of one's own in `mine.py`."""
    lines = fields or ("name = 'mine'", "wakes_on = frozenset()")
    head = "from ebbtide.policies.api.actions import Release, Request, WakeAt\n\n\nclass Mine:\n"
    return {
        "mine.py": head
        + "".join(f"    {line}\n" for line in lines)
        + f"    def decide(self, view):\n        {body}\n"
    }


WRONG_INPUTS: tuple[WrongInput, ...] = (
    # The command line itself.
    WrongInput("a verb that is not there", "fly", "No such command 'fly'"),
    WrongInput("an option that is not there", "describe prices.parquet --fast", "No such option: --fast"),
    WrongInput("a missing argument", "compare", "Missing argument"),
    WrongInput("a missing option", "availability fit prices.parquet", "Missing option '--out'"),
    WrongInput(
        "a number that is none", "compare job.yaml --generate 20 --starts many", "Invalid value for '--starts'"
    ),
    WrongInput("a number out of range", "plan job.yaml --prices prices.parquet --top 0", "'--top'"),
    WrongInput("neither prices nor a generated market", "compare job.yaml", "--prices"),
    WrongInput(
        "both prices and a generated market", "compare job.yaml --prices prices.parquet --generate 5", "either"
    ),
    # ingest
    WrongInput("nothing to ingest", "ingest", "give either files to ingest or --ec2 REGION"),
    WrongInput("files and EC2 at once", "ingest a.csv --ec2 us-east-1", "give either files"),
    WrongInput("a file that is not there", "ingest none.csv", "none.csv: there is no such file"),
    WrongInput("an empty file", "ingest a.csv", "a.csv: holds nothing", {"a.csv": ""}),
    WrongInput("an empty folder", "ingest folder", "folder: the folder holds no files", {"folder": Path.mkdir}),
    WrongInput("a pipe", "ingest pipe.csv", "is a pipe", {"pipe.csv": os.mkfifo}),
    WrongInput("a device", "ingest /dev/zero", "/dev/zero: is a device"),
    WrongInput(
        "a format that is not known", "ingest a.csv --format xml", "unknown format 'xml'", {"a.csv": CSV + ROW}
    ),
    WrongInput("text that is no table", "ingest notes.txt", "no format known", {"notes.txt": "dear diary"}),
    WrongInput(
        "a header with other names",
        "ingest a.csv",
        "not recognised as a header: when, what",
        {"a.csv": "when,what\n1,2\n"},
    ),
    WrongInput(
        "a column missing",
        "ingest a.csv",
        "has no column 'os'; it has",
        {"a.csv": "datetime,instance_type,region,price\n"},
    ),
    WrongInput(
        "a column too many",
        "ingest a.csv",
        "unknown column 'colour'",
        {"a.csv": CSV.replace("price", "price,colour")},
    ),
    WrongInput("a header and no rows", "ingest a.csv", "holds no rows", {"a.csv": CSV}),
    WrongInput(
        "a negative price",
        "ingest a.csv",
        "row 1, field price: -1 is negative",
        {"a.csv": CSV + ROW.replace("0.04", "-1")},
    ),
    WrongInput(
        "a price that is a word",
        "ingest a.csv",
        "row 2, field price: free is not a price",
        {"a.csv": CSV + ROW + ROW.replace("0.04", "free")},
    ),
    WrongInput(
        "a price missing",
        "ingest a.csv",
        "row 1, field price: entry has no price",
        {"a.csv": CSV + ROW.replace("0.04", "")},
    ),
    WrongInput(
        "a date that is none",
        "ingest a.csv",
        "row 1, field datetime: 2017-13-45 is not a time",
        {"a.csv": CSV + ROW.replace("2017-05-08 19:28:43+00:00", "2017-13-45")},
    ),
    WrongInput(
        "times without a zone",
        "ingest a.csv",
        "has no time zone; write it with an offset",
        {"a.csv": CSV + ROW.replace("+00:00", "")},
    ),
    WrongInput(
        "a time zone that is not there",
        "ingest a.csv --timezone Mars/Olympus",
        "Mars/Olympus",
        {"a.csv": CSV + ROW.replace("+00:00", "")},
    ),
    WrongInput(
        "an instance type that is not known",
        "ingest a.csv",
        "row 1, field instance_type: unknown aws instance type 'c3.xlrage'",
        {"a.csv": CSV + ROW.replace("c3.xlarge", "c3.xlrage")},
    ),
    WrongInput("text in latin-1", "ingest a.csv", "is not UTF-8 text", {"a.csv": CSV.encode() + b"caf\xe9"}),
    WrongInput("NUL bytes", "ingest a.csv", "NUL byte", {"a.csv": CSV.encode() + b"\0\0"}),
    WrongInput("JSON cut short", "ingest a.json", "is not JSON", {"a.json": '{"SpotPriceHistory": ['}),
    WrongInput("JSON without the list", "ingest a.json", "no list named SpotPriceHistory", {"a.json": '{"a": 1}'}),
    WrongInput("JSON nested 100,000 deep", "ingest a.json", "nested too deeply", {"a.json": "[" * 100_000}),
    WrongInput(
        "JSON with a number of 5,000 digits", "ingest a.json", "too many digits", {"a.json": f"[{'9' * 5000}]"}
    ),
    WrongInput(
        "JSON of EC2 with an entry without a price",
        "ingest a.json",
        "row 1, field SpotPrice: entry has no SpotPrice",
        {"a.json": json.dumps([_EC2_ENTRY | {"SpotPrice": ""}])},
    ),
    WrongInput(
        "JSON of Azure whose items are a record",
        "ingest a.json",
        "no list named Items",
        {"a.json": '{"Items": {"a": 1}}'},
    ),
    WrongInput(
        "JSON of Azure whose items are nothing",
        "ingest a.json",
        "no list named Items",
        {"a.json": '{"Items": null}'},
    ),
    WrongInput(
        "a sheet of Azure without dates",
        "ingest us_east.csv --format azure-csv",
        "no first column 'Date'",
        {"us_east.csv": "A1,B2\n1,2\n"},
    ),
    WrongInput(
        "a Parquet file without time zones",
        "ingest naive.parquet",
        "`ebbtide ingest --timezone UTC`",
        {"naive.parquet": _naive},
    ),
    WrongInput("what is no Parquet file", "ingest a.parquet", "is in no format known", {"a.parquet": "hello"}),
    WrongInput(
        "prices into a folder",
        "ingest a.csv --into folder",
        "is a folder",
        {"a.csv": CSV + ROW, "folder": Path.mkdir},
    ),
    WrongInput(
        "prices into a folder that is a file",
        "ingest a.csv --into a.csv/prices.parquet",
        "a.csv",
        {"a.csv": CSV + ROW},
    ),
    WrongInput(
        "instance types without a column",
        "ingest a.csv --instance-types types.csv",
        "has no column 'vcpus'",
        {"a.csv": CSV + ROW, "types.csv": "cloud,instance_type\n"},
    ),
    WrongInput(
        "instance types with a word for a number",
        "ingest a.csv --instance-types types.csv",
        "row 1, field vcpus: 'two' is not a number",
        {
            "a.csv": CSV + ROW,
            "types.csv": "cloud,instance_type,vcpus,memory_gib,accelerator,accelerator_count\naws,x,two,4,,0\n",
        },
    ),
    # describe
    WrongInput("prices that are not there", "describe none.parquet", "none.parquet: there is no such file"),
    WrongInput(
        "a folder of prices",
        "describe folder",
        "is a folder; prices are read from one Parquet file",
        {"folder": Path.mkdir},
    ),
    WrongInput("an empty file of prices", "describe a.parquet", "holds nothing", {"a.parquet": ""}),
    WrongInput(
        "prices without a column",
        "describe a.parquet",
        "has no column 'zone'; it has 'timestamp'",
        {"a.parquet": prices_without("zone")},
    ),
    WrongInput(
        "prices with a column too many",
        "describe a.parquet",
        "unknown column 'colour'",
        {"a.parquet": prices_with(colour="red")},
    ),
    WrongInput(
        "prices of the year 290000",
        "describe a.parquet",
        "not in the years 1970 to 2199",
        {"a.parquet": _far_future},
    ),
    WrongInput(
        "times that are numbers",
        "describe a.parquet",
        "is a number, not a time",
        {"a.parquet": prices_with(timestamp=142784640)},
    ),
    WrongInput(
        "a price that is true",
        "describe a.parquet",
        "True is not a price",
        {"a.parquet": prices_with(price_usd_per_hour=True)},
    ),
    WrongInput(
        "an infinite price",
        "describe a.parquet",
        "inf is not finite",
        {"a.parquet": prices_with(price_usd_per_hour=np.inf)},
    ),
    WrongInput(
        "a list in every row",
        "describe a.parquet",
        "single values are needed",
        {"a.parquet": prices_with(zone=[["a"]] * len(_frame()))},
    ),
    WrongInput(
        "rows that are out of order", "describe a.parquet", "`ebbtide ingest` sorts", {"a.parquet": _unsorted}
    ),
    WrongInput(
        "a market named in markup",
        "describe a.parquet",
        "unknown aws instance type '[/red]'",
        {"a.parquet": prices_with(instance_type="[/red]")},
    ),
    WrongInput(
        "an escape sequence for a name",
        "describe a.parquet",
        "\\x1b",
        {"a.parquet": prices_with(instance_type="\x1b[31mred")},
    ),
    WrongInput("a time outside the record", "describe prices.parquet --from 2012-01-01", "outside the history"),
    WrongInput("a time that is none", "describe prices.parquet --to soon", "'soon' is not a time"),
    WrongInput(
        "a window that ends before it begins",
        "describe prices.parquet --from 2015-04-05 --to 2015-04-03",
        "2015-04-0",
    ),
    # compare
    WrongInput("a job that is not there", "compare none.yaml --generate 20", "none.yaml: there is no such file"),
    WrongInput(
        "a policy that is not known",
        "compare job.yaml --generate 20 --policies reactiv",
        "did you mean 'reactive'?",
    ),
    WrongInput("a policy twice", "compare job.yaml --generate 20 --policies reactive,reactive", "'reactive'"),
    WrongInput("no policy", "compare job.yaml --generate 20 --policies ,", "no policy is named"),
    WrongInput(
        "a billing rule that is not known", f"{_BACKTEST} --billing ec2-minutely", "known: azure-spot, by-cloud"
    ),
    WrongInput(
        "no start", "compare job.yaml --generate 20 --kind auction --policies reactive --starts 0", "starts"
    ),
    WrongInput(
        "a market of no days",
        "compare job.yaml --generate -3 --policies reactive",
        "days is -3.0; it must be positive",
    ),
    WrongInput("a market of endless days", "compare job.yaml --generate inf --policies reactive", "days is inf"),
    WrongInput(
        "a market too short for the job",
        "compare job.yaml --generate 0.01 --policies reactive",
        "can never finish",
    ),
    WrongInput(
        "availability that is none", f"{_BACKTEST} --availability prices.parquet", "is not an availability record"
    ),
    WrongInput("a job of negative work", _BACKTEST, "field steps", _with_job(_JOB_HEAD + "steps: -5\n")),
    WrongInput("a job of endless work", _BACKTEST, "field steps", _with_job(_JOB_HEAD + "steps: 1e400\n")),
    WrongInput("a job of 5,000 digits", _BACKTEST, "row 3: '999", _with_job(_JOB_HEAD + f"steps: {'9' * 5000}\n")),
    WrongInput(
        "a rate of 1e308",
        _BACKTEST,
        "field steps_per_hour.c3.xlarge: Input should be less than",
        _with_job(JOB.replace("c3.xlarge: 1000", "c3.xlarge: 1.0e+308")),
    ),
    WrongInput(
        "a rate that is not a number",
        _BACKTEST,
        "field steps_per_hour.c3.xlarge",
        _with_job(JOB.replace("c3.xlarge: 1000", "c3.xlarge: .nan")),
    ),
    WrongInput(
        "a date that is none, in a job",
        _BACKTEST,
        "'2024-13-45' is not a valid date",
        _with_job(JOB + "when: 2024-13-45\n"),
    ),
    WrongInput("a field twice", _BACKTEST, "the key 'steps' stands twice", _with_job(JOB + "steps: 2\n")),
    WrongInput("a field misspelt", _BACKTEST, "stepz", _with_job(JOB + "stepz: 2\n")),
    WrongInput("a field that is no text", _BACKTEST, "the key 1 is not text", _with_job(JOB + "1: 2\n")),
    WrongInput("YAML nested 10,000 deep", _BACKTEST, "nests more than 50 levels deep", _with_job("[" * 10_000)),
    WrongInput(
        "YAML of 200,000 values", _BACKTEST, "holds more than 100,000 values", _with_job(f"a: [{'0, ' * 200_000}]")
    ),
    WrongInput(
        "YAML of aliases of aliases",
        _BACKTEST,
        "holds more than 100,000 values",
        _with_job(
            "a: &a [0,0,0,0,0,0,0,0,0,0]\n"
            + "".join(
                f"{y}: &{y} [{', '.join([f'*{x}'] * 10)}]\n" for x, y in zip("abcdefg", "bcdefgh", strict=True)
            )
        ),
    ),
    WrongInput(
        "YAML that runs a program", _BACKTEST, "is not YAML", _with_job("a: !!python/object/apply:os.system [ls]")
    ),
    WrongInput("YAML that is not closed", _BACKTEST, "row 1: is not YAML", _with_job("a: [")),
    WrongInput("a list for a job", _BACKTEST, "holds no job", _with_job("- a\n")),
    WrongInput("an empty job", _BACKTEST, "holds no job", _with_job("")),
    WrongInput("a folder for a job", "compare folder --generate 20", "folder", {"folder": Path.mkdir}),
    WrongInput(
        "a report into a folder",
        f"{_BACKTEST} --report folder",
        "folder: is a folder; name a file",
        {"folder": Path.mkdir},
    ),
    WrongInput(
        "a sweep whose speed is not known, replayed",
        "compare sweep.yaml --prices prices.parquet --policies reactive --starts 2",
        "steps_per_hour",
        {"sweep.yaml": SWEEP.replace("steps_per_hour: {c3.xlarge: 1000}\n", "")},
    ),
    WrongInput(
        "a job whose speed is not known",
        f"{_BACKTEST}",
        "the speed of job train is not measured: write `steps_per_hour",
        _with_job("command: python train.py\nsteps: 5\n"),
    ),
    WrongInput(
        "a job whose length is not known",
        f"{_BACKTEST}",
        "write `steps: 24_000`",
        _with_job("command: python train.py\n"),
    ),
    WrongInput(
        "a misspelt field",
        f"{_BACKTEST}",
        "field stepz: unknown field; did you mean steps?",
        _with_job("command: python train.py\nstepz: 5\n"),
    ),
    WrongInput("a job without a program", "run job.yaml", "write `command: python train.py`"),
    WrongInput(
        "accelerators that nobody has", "run --accelerators V1000:1 -- python train.py", "did you mean 'V100'?"
    ),
    WrongInput(
        "checkpoints outside of the folder", "run --checkpoints ../up -- python train.py", "no folder below"
    ),
    WrongInput("a deadline before the start", "compare job.yaml --generate 20 --deadline -1", "--deadline"),
    # A policy of one's own
    WrongInput("an own policy whose file is not there", _OWN, "mine.py"),
    WrongInput("an own policy that the file has not", _OWN, "Mine", {"mine.py": "other = 1\n"}),
    WrongInput("an own policy that is not Python", _OWN, "mine.py", _with_policy("return [")),
    WrongInput(
        "an own policy that raises",
        _OWN,
        "it raised KeyError: 'c9.huge' (mine.py, line 8)",
        _with_policy("raise KeyError('c9.huge')"),
    ),
    WrongInput(
        "an own policy that names a job that is not there",
        _OWN,
        "7 is no job; there is only job 0",
        _with_policy("return [Request(view.markets[0], job=7)]"),
    ),
    WrongInput(
        "an own policy that rents a million machines",
        _OWN,
        "at most 10,000 may be open at once",
        _with_policy("return [Request(view.markets[0], count=10**6)]"),
    ),
    WrongInput(
        "an own policy that releases a lease that is not there",
        _OWN,
        "lease 99: Release: 99 is no lease",
        _with_policy("return [Release(99)]"),
    ),
    WrongInput(
        "an own policy whose max price is no number",
        _OWN,
        "max_price_usd_per_hour is nan",
        _with_policy("return [Request(view.markets[0], float('nan'))]"),
    ),
    WrongInput("an own policy that answers a word", _OWN, "decide answered 'rent'", _with_policy("return 'rent'")),
    WrongInput(
        "an own policy that wakes an hour after 1970",
        _OWN,
        "before the run began",
        _with_policy("return [WakeAt(3600.0)]"),
    ),
    WrongInput(
        "an own policy without what wakes it", _OWN, "wakes_on", _with_policy("return []", "name = 'mine'")
    ),
    WrongInput("an own policy without a name", _OWN, "name", _with_policy("return []", "wakes_on = frozenset()")),
    # plan, run and live runs
    WrongInput("a plan for a job that is not there", "plan none.yaml --prices prices.parquet", "none.yaml"),
    WrongInput("fewer backtests than none", "plan sweep.yaml --prices prices.parquet --runs -1", "--runs"),
    WrongInput(
        "spells that are no JSON",
        "plan sweep.yaml --prices prices.parquet --spells spells.json",
        "spells.json",
        {"spells.json": "{"},
    ),
    WrongInput(
        "spells of something else",
        "plan sweep.yaml --prices prices.parquet --spells spells.json",
        "spells.json",
        {"spells.json": "{}"},
    ),
    WrongInput(
        "spells nested 100,000 deep",
        "plan sweep.yaml --prices prices.parquet --spells spells.json",
        "spells.json",
        {"spells.json": "[" * 100_000},
    ),
    WrongInput("a provider that is not known", "run sweep.yaml --provider gpc", "unknown provider 'gpc'"),
    WrongInput("a rehearsal elsewhere", "rehearse sweep.yaml --provider gcp", "rehearsals run locally and on EC2"),
    WrongInput("a rehearsal on EC2 without a role", "rehearse sweep.yaml --provider ec2", "needs --fis-role ARN"),
    WrongInput(
        "a rehearsal on EC2 by what is no role",
        "rehearse sweep.yaml --provider ec2 --fis-role admin --budget-usd 1",
        "'admin' is no role",
    ),
    WrongInput(
        "a rehearsal on EC2 without a budget",
        "rehearse sweep.yaml --provider ec2 --fis-role arn:aws:iam::1:role/x",
        "--budget-usd 1",
    ),
    WrongInput(
        "a rehearsal on EC2 with another notice",
        "rehearse sweep.yaml --provider ec2 --fis-role arn:aws:iam::1:role/x --notice-s 30",
        "leave out --notice-s",
    ),
    WrongInput(
        "a role for a rehearsal here", "rehearse sweep.yaml --fis-role a", "--fis-role is for --provider ec2"
    ),
    WrongInput("a rehearsal without a program", "rehearse job.yaml", "write `command: python train.py`"),
    WrongInput("a rehearsal of a program that is not there", "rehearse sweep.yaml", "train.py"),
    WrongInput("a notice of no length", "rehearse sweep.yaml --notice-s 0", "'--notice-s'"),
    WrongInput("a rehearsal that never begins", "rehearse sweep.yaml --after-s inf", "--after-s is inf"),
    WrongInput(
        "a rehearsal without a notice",
        "rehearse one.yaml",
        "one.yaml, field billing: billing per-second gives no notice",
        {"one.yaml": "command: python train.py\nbilling: per-second\n"},
    ),
    WrongInput(
        "a rehearsal of several machines",
        "rehearse gang.yaml",
        "gang.yaml, field machines: is rehearsed on one machine so far",
        {"gang.yaml": "command: python train.py\nmachines: 4\n"},
    ),
    WrongInput("figures into a folder", "rehearse sweep.yaml --json .", "is a folder; name a file"),
    WrongInput("EC2 without machines", "run sweep.yaml --provider ec2", "--machines"),
    WrongInput("machines that are not there", "run sweep.yaml --provider ec2 --machines none.yaml", "none.yaml"),
    WrongInput("a speed below the market's", "run sweep.yaml --generate 5 --speed 0", "--speed"),
    WrongInput(
        "a budget that is not a number",
        "run sweep.yaml --generate 5",
        "budget_usd",
        {"sweep.yaml": SWEEP + "budget_usd: .nan\n"},
    ),
    WrongInput(
        "a budget without end",
        "run sweep.yaml --generate 5",
        "budget_usd",
        {"sweep.yaml": SWEEP + "budget_usd: .inf\n"},
    ),
    WrongInput("a page at an address of another machine", "ui --host 203.0.113.7", "cannot listen at 203.0.113.7"),
    WrongInput("a page at an address that is none", "ui --host nowhere.invalid", "--host"),
    WrongInput("a page at a port that is none", "ui --port 70000", "--port"),
    WrongInput("a report of no month", "report --month November", "'November' is no month"),
    WrongInput("a report by nothing", "report --month 2026-11 --by colour", "unknown group 'colour'"),
    WrongInput("an audit of no month", "report --audit a.csv", "an audit is of a month"),
    WrongInput("an audit into a folder", "report --month 2026-11 --audit .", "is a folder; name a file"),
    WrongInput(
        "a team that is none", "run sweep.yaml --team team.yaml", "accounts", {"team.yaml": "machines: 3\n"}
    ),
    WrongInput("a team that is not there", "run sweep.yaml --team none.yaml", "none.yaml"),
    WrongInput("an owner that no cloud takes", "run sweep.yaml --owner Ann", "is no tag that every cloud takes"),
    WrongInput("a tag without a value", "run sweep.yaml --tag project", "'project' is no tag"),
    WrongInput(
        "an owner of another team",
        "run sweep.yaml --team team.yaml --owner bob",
        "'bob' is not of the team",
        {"team.yaml": "accounts: accounts\nowners: {ann: {}}\n"},
    ),
    WrongInput("why of a run that is not there", "why nothing", "run", {".ebbtide/runs/one/run.json": "{}"}),
    WrongInput("a run that is not there", "status nothing", "run", {".ebbtide/runs/one/run.json": "{}"}),
    WrongInput("logs of a run that is not there", "logs nothing", "run"),
    WrongInput("logs of a trial below zero", "logs --trial -1", "--trial"),
    WrongInput("a run named ../..", "stop ../..", "run", {".ebbtide/runs/one/run.json": "{}"}),
    WrongInput("resuming where nothing ran", "resume", "run"),
    WrongInput("ending where nothing ran", "down", "run"),
    WrongInput("fetching where nothing ran", "fetch nothing", "run"),
    WrongInput("making prices into a folder", "generate --into folder --days 1", "folder", {"folder": Path.mkdir}),
    WrongInput("making prices of no days", "generate --into a.parquet --days -1", "days"),
    WrongInput(
        "running by a policy that is not known",
        "run sweep.yaml --generate 5 --policy nothing",
        "unknown policy 'nothing'",
    ),
    # What predicts and recommends
    WrongInput(
        "recommending at a time outside the record",
        "plan job.yaml --prices prices.parquet --at 2030-01-01T00:00:00Z --runs 0",
        "outside the history",
    ),
    WrongInput(
        "a job that runs nowhere",
        "plan job.yaml --prices prices.parquet --runs 0",
        "can run in no market",
        _with_job("name: a\nsteps: 1\nsteps_per_hour: {p4d.24xlarge: 1}\n"),
    ),
    WrongInput(
        "a file for a launcher that is not known",
        "plan job.yaml --prices prices.parquet --for nomad",
        "'--for'",
    ),
    WrongInput(
        "a file for a launcher of a job without a program",
        "plan job.yaml --prices prices.parquet --for slurm",
        "job.yaml, field command: missing; there is nothing to run",
    ),
    WrongInput("watching nothing", "watch", "no source asked for; write for example --ec2 us-east-1"),
    WrongInput("watching what there is not", "watch --source ec2-score", "did you mean 'ec2-scores'?"),
    WrongInput("a catalogue of no cloud", "catalogue update --into own", "no cloud asked for; name regions"),
    WrongInput(
        "a catalogue into a file",
        "catalogue update --into a.txt --aws us-east-1",
        "a.txt: is a file; a catalogue is a folder with two tables",
        {"a.txt": "x"},
    ),
    WrongInput(
        "a table of machines with a price that is none",
        "catalogue import vms.csv --cloud lambda --into own",
        "vms.csv, row 1, field Price: 'cheap' is not a price in USD per hour",
        {"vms.csv": "InstanceType,vCPUs,MemoryGiB,Price,Region\na,2,4,cheap,r\n"},
    ),
    WrongInput(
        "a table of machines without a column",
        "catalogue import vms.csv --cloud lambda --into own",
        "vms.csv: has no column 'InstanceType'",
        {"vms.csv": "name,price\na,2\n"},
    ),
    WrongInput(
        "a region that a table of machines does not have",
        "catalogue import vms.csv --cloud lambda --into own --region us-eats-1",
        "unknown region 'us-eats-1' (did you mean 'us-east-1'?)",
        {"vms.csv": "InstanceType,vCPUs,MemoryGiB,Price,Region\na,2,4,1,us-east-1\n"},
    ),
    WrongInput(
        "a table of machines of a cloud without a name",
        "catalogue import vms.csv --cloud My␣Cloud --into own",
        "'My Cloud' is no name of a cloud",
        {"vms.csv": "InstanceType,vCPUs,MemoryGiB,Price,Region\na,2,4,1,us-east-1\n"},
    ),
    WrongInput(
        "watching into what is no store",
        "watch --ec2 us-east-1 --looks 1 --into a.db",
        "a.db: cannot be used as a price store",
        {"a.db": "x" * 5000},
    ),
    WrongInput("a portfolio of nothing", "portfolio --prices prices.parquet", "the cluster is empty"),
    WrongInput(
        "a covariance that is not known",
        "portfolio --prices prices.parquet --covariance both",
        "unknown covariance 'both'",
    ),
    WrongInput(
        "a portfolio of a type that is not there",
        "portfolio --prices prices.parquet --vcpus 8 --instance-type z9.huge",
        "market",
    ),
    WrongInput(
        "a market that is not there",
        "cookbook solve workflow.yaml --prices prices.parquet --market nowhere --deadline 5",
        "workflow.yaml",
        {"workflow.yaml": "name: w\njobs: []\n"},
    ),
    WrongInput(
        "a deadline of no hours",
        "cookbook solve workflow.yaml --prices prices.parquet --market a --deadline 0",
        "--deadline",
    ),
    WrongInput(
        "what is no cookbook",
        "cookbook show a.safetensors",
        "cannot be read as a cookbook",
        {"a.safetensors": "x"},
    ),
    WrongInput(
        "a program that is not there",
        "run none.yaml",
        "none.yaml",
    ),
    WrongInput(
        "a CSV of a curve without the last step",
        "curves predict a.csv",
        "--max-steps",
        {"a.csv": "step,metric\n1,1\n"},
    ),
    WrongInput(
        "a curve without its metric",
        "curves predict a.csv --max-steps 10",
        "has no column metric",
        {"a.csv": "step,value\n1,1\n"},
    ),
    WrongInput(
        "a share of a run above one",
        "curves predict a.csv --max-steps 10 --theta 7",
        "theta",
        {"a.csv": "step,metric\n1,1\n2,0.5\n"},
    ),
    WrongInput("a workload that is not known", "curves profile nothing", "nothing"),
    WrongInput("curves of no known layout", "curves calibrate --curves prices.parquet", "is of no known layout"),
    WrongInput(
        "a model that is not there",
        "revocation predict --prices prices.parquet --model nowhere",
        "is not a revocation model",
    ),
    WrongInput(
        "a model that is a list",
        "revocation predict --prices prices.parquet --model model",
        "model",
        {"model/model.json": "[]", "model/about.json": "[]"},
    ),
    WrongInput(
        "a record too short to train on", "revocation train --prices prices.parquet --train-days 500", "day"
    ),
    WrongInput(
        "a model that is not known", "revocation evaluate --prices prices.parquet --models oracle", "oracle"
    ),
    WrongInput(
        "records that tell of no availability",
        "availability fit prices.parquet --out spells.json",
        "prices.parquet",
    ),
    WrongInput("a paper that is not known", "reproduce everything", "No such command"),
    WrongInput("a paper without its prices", "reproduce spottune", "Missing option '--prices'"),
    WrongInput(
        "throughputs that are no JSON",
        "reproduce dynamic-pricing --prices prices.parquet --throughputs a.json",
        "a.json",
        {"a.json": "["},
    ),
    WrongInput(
        "a record of a backtest that is not there", "report nowhere", "nowhere: is not the record of a backtest"
    ),
    WrongInput(
        "a record of a backtest without its tables",
        "report record",
        "outcomes.parquet: there is no such file",
        {"record/about.json": '{"jobs": [], "starts": 1, "seed": 1, "billing": "x"}'},
    ),
    WrongInput(
        "a record of a backtest that says nothing",
        "report record",
        "about.json: has no jobs",
        {"record/about.json": "{}"},
    ),
    WrongInput("a record of a backtest that is a list", "report record", "record", {"record/about.json": "[]"}),
)


def table(rows: list[tuple[WrongInput, Ended]]) -> str:
    """What each ended with, as Markdown."""
    lines = [
        "# Wrong inputs, and how the command ends",
        "",
        f"{len(rows)} wrong inputs, each really tried; {sum('Traceback' in end.err for _, end in rows)} ended in a "
        f"traceback; the slowest took {max(end.seconds for _, end in rows):.1f} s of the processor.",
        "",
        "| tried | command | exit code | message |",
        "|---|---|---|---|",
    ]
    for wrong, end in rows:
        cells = (wrong.tried, f"`ebbtide {' '.join(arguments_of(wrong))}`", str(end.code), _short(end.err))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _short(text: str, most: int = 240) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}..."


def write_table(path: Path) -> None:
    """Try all of them, and write the table."""
    with tempfile.TemporaryDirectory() as name:
        prices = write_prices(Path(name) / "prices.parquet")
        rows = [(wrong, ended(wrong, prices)) for wrong in WRONG_INPUTS]
    write_text(path, table(rows))
    sys.stdout.write(f"wrote {path}: {len(rows)} wrong inputs\n")


if __name__ == "__main__":
    write_table(Path(sys.argv[1]))
