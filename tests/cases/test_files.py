"""Files as other people write them, by one command each: read as they are meant, or refused with what to write."""

from __future__ import annotations

import gzip
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from tests.cases.harness import ebbtide

from ebbtide.cli.main import main
from ebbtide.market.prices import PriceHistory

pytestmark = pytest.mark.usefixtures("processes")

ZONE, TYPE, PRODUCT = "eu-west-1b", "m5.large", "Linux/UNIX"
ROWS = [("0.041300", "2026-09-01T00:00:00+00:00"), ("0.043900", "2026-09-02T12:30:00+00:00")]
NAMES = ("AvailabilityZone", "InstanceType", "ProductDescription", "SpotPrice", "Timestamp")
RECORDS = [dict(zip(NAMES, (ZONE, TYPE, PRODUCT, usd, at), strict=True)) for usd, at in ROWS]

TEXT = "".join(f"SPOTPRICEHISTORY\t{ZONE}\t{TYPE}\t{PRODUCT}\t{usd}\t{at}\n" for usd, at in ROWS)
CSV = "\n".join(",".join(row) for row in (NAMES, *(record.values() for record in RECORDS)))
PAGES = json.dumps([{"SpotPriceHistory": [record], "NextToken": "t"} for record in RECORDS])
FORMS = {
    "text.txt": TEXT.encode(),
    "names.csv": CSV.encode(),
    "lines.jsonl": "\n".join(map(json.dumps, RECORDS)).encode(),
    "pages.json": PAGES.encode(),
    "pages.json.gz": gzip.compress(PAGES.encode()),
    "month.tsv": "".join(f"euw1-az2\t{TYPE}\t{PRODUCT}\t{usd}\t{at}\n" for usd, at in ROWS).encode(),
}


def ingested(folder: Path, name: str) -> tuple[int, str]:
    """Exit code of the command on a file, and what it says."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said), pytest.raises(SystemExit) as ended:
        main(["ingest", str(folder / name), "--into", str(folder / "out.parquet")])
    return int(ended.value.code or 0), said.getvalue()


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_one_history_is_the_same_prices(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FORMS[name])
    assert ingested(tmp_path, name)[0] == 0
    (series,) = PriceHistory.read(tmp_path / "out.parquet").values()
    assert list(series.prices) == [0.0413, 0.0439]


def test_decimal_commas_are_refused_with_what_to_write(tmp_path: Path) -> None:
    rows = f'datetime,instance_type,os,region,price\n2026-09-01 00:00:00+00:00,{TYPE},{PRODUCT},{ZONE},"0,0413"\n'
    (tmp_path / "comma.csv").write_text(rows)
    code, said = ingested(tmp_path, "comma.csv")
    assert code == 2
    assert "comma.csv" in said
    assert "row 1" in said
    assert "0.0413" in said
    assert not (tmp_path / "out.parquet").exists()


def test_a_row_of_an_unknown_type_costs_that_row_alone(tmp_path: Path) -> None:
    unknown = {**RECORDS[0], "InstanceType": "zz9.47xlarge"}
    (tmp_path / "history.json").write_text(json.dumps({"SpotPriceHistory": [*RECORDS, unknown]}))
    code, said = ingested(tmp_path, "history.json")
    assert code == 0
    assert "zz9.47xlarge" in said
    assert [market.instance_type for market in PriceHistory.read(tmp_path / "out.parquet")] == [TYPE]


SAYS_WORDS = """
import sys
lr = float(sys.argv[1])
for step in range(1, 13):
    print(f"Step {step} of 12 - loss: {float('nan') if lr > 1 else 1 / (step * lr + 1):.4f}", flush=True)
"""
SAYS_JSON = """
import json, sys
for step in range(1, 6):
    print(json.dumps({"step": step, "metrics/recall(B)": step * float(sys.argv[1]) / 10}), flush=True)
"""


def test_a_sweep_of_words_with_windows_line_ends_has_a_best_that_is_a_number(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAYS_WORDS)
    lines = ("name: naïve 训练", "command: python train.py {lr}", "metric: loss", "grid:", "  lr: [0.2, 0.6, 4.0]")
    text = "\r\n".join((*lines, "max_trial_steps: 12", ""))
    (tmp_path / "sweep.yaml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    done = ebbtide(tmp_path, "run", "sweep.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    best = next(line for line in done.stdout.splitlines() if line.startswith("best: "))
    assert "lr=0.6" in best, done.stdout


@pytest.mark.long
def test_a_metric_whose_name_mlflow_refuses_is_tracked_by_another(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAYS_JSON)
    lines = ("name: recall", "command: python train.py {lr}", "metric: metrics/recall(B)", "direction: maximize")
    (tmp_path / "job.yaml").write_text("\n".join((*lines, "grid:", "  lr: [0.5, 1.0]", "max_trial_steps: 5", "")))
    done = ebbtide(tmp_path, "run", "--track", "sqlite:///m.db", "job.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "metrics/recall_B_" in done.stdout + done.stderr


def test_spotlake_s_file_is_read_whatever_its_scores_are(tmp_path: Path) -> None:
    header = "Time,InstanceType,Region,AZ,SPS,T3,T2,IF,OndemandPrice,SpotPrice,Savings"
    rows = [
        f"2026-09-0{day} 00:00:00,p5.48xlarge,us-east-1,use1-az1,{score},0,0,3.0,55.0,2{day}.0,60"
        for day, score in enumerate((4, 9, "", -1), 1)
    ]
    (tmp_path / "archive.csv").write_text("\n".join((header, *rows, "")))
    code, said = ingested(tmp_path, "archive.csv")
    assert code == 0, said
    (series,) = PriceHistory.read(tmp_path / "out.parquet").values()
    assert list(series.prices) == [21.0, 22.0, 23.0, 24.0]
