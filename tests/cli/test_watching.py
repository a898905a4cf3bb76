"""`ebbtide watch` on a real API, and `ebbtide plan` on what it kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.markets import START_S, history
from tests.recorded import recording

import ebbtide as eb
from ebbtide.cli.main import main
from ebbtide.market.price_store import PriceStore
from ebbtide.testing.recorded_answers import served

JOB = "name: test\nsteps: 1000\nsteps_per_hour: {c3.xlarge: 100, m3.medium: 50}\n"


def ebbtide(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.mark.usefixtures("aws_credentials")
def test_what_is_watched_can_be_asked_for(
    aws_server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, job = tmp_path / "prices.db", tmp_path / "job.yaml"
    job.write_text(JOB)
    assert (
        ebbtide(
            "watch",
            "--ec2",
            "us-east-1",
            "--instance-type",
            "c3.xlarge",
            "--into",
            store,
            "--looks",
            "2",
            "--every",
            "1",
            "--endpoint-url",
            aws_server,
        )
        == 0
    )
    assert capsys.readouterr().out.splitlines()[1].endswith(": 0 changes")
    assert ebbtide("plan", "--runs", "0", job, "--prices", store, "--top", "2") == 0
    assert "us-east-1a c3.xlarge" in capsys.readouterr().out


def test_several_sources_are_kept_and_one_that_fails_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MITHRIL_API_KEY", "not-to-be-shown")
    into = tmp_path / "prices.db"
    routes = {
        "GET /spot-advisor-data.json": [recording("ec2_bands.json")],
        "GET /api/v0/bundles/": [recording("vast_offers.json")],
        "GET /v2/instance-types": [(403, "key unknown")],
    }
    with served(routes) as answers:
        sources = ("--source", "ec2-bands", "--source", "vast", "--source", "mithril")
        url = ("--endpoint-url", answers.url)
        assert ebbtide("watch", *sources, "--into", into, "--looks", "1", *url) == 0
        told = capsys.readouterr()
        assert told.out.strip().endswith(": 2 changes, 5 signals")
        assert told.err.strip().endswith("Mithril refused (403): key unknown")
        assert "not-to-be-shown" not in told.out + told.err
        assert ebbtide("watch", "--source", "mithril", "--into", into, "--looks", "1", *url) == 69
        assert "no request was answered" in capsys.readouterr().err
        assert any("not-to-be-shown" in asked.headers.get("authorization", "") for asked in answers.asked)
    store = PriceStore(into)
    assert set(store.signals()) == {"ec2-bands", "vast"}
    assert len(store.quotes()) == 2
    assert b"not-to-be-shown" not in into.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "no source asked for; write for example --ec2 us-east-1, or --source vast"),
        (("--source", "ec2-score"), "unknown source 'ec2-score' (did you mean 'ec2-scores'?)"),
        (("--source", "ec2-scores", "--ec2", "us-east-1"), "source ec2-scores needs --instance-type"),
        (("--source", "ec2-prices"), "source ec2-prices needs --ec2"),
        (("--gcp", "us-central1-a"), "source gcp-capacity needs --gcp-project"),
        (("--azure", "East US"), "is no region of Azure; write for example eastus"),
    ],
)
def test_what_a_source_needs_is_told(
    arguments: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ebbtide("watch", *arguments, "--into", tmp_path / "prices.db", "--looks", "1") == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "prices.db").exists()


def test_the_best_place_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    markets = {name: eb.Market("aws", "us-east-1", "us-east-1a", name) for name in ("c3.xlarge", "m3.medium")}
    prices = history(
        {markets["c3.xlarge"]: [(0, 0.05), (3600, 0.15)], markets["m3.medium"]: [(0, 0.04)]}, hours=10
    )
    prices.write(tmp_path / "prices.parquet")
    (tmp_path / "job.yaml").write_text(JOB)
    ebbtide("plan", "--runs", "0", tmp_path / "job.yaml", "--prices", tmp_path / "prices.parquet")
    # Ten hours of 0.15, or twenty of 0.04.
    late = [line.split() for line in capsys.readouterr().out.splitlines() if "us-east-1a" in line]
    assert [line[:6] for line in late] == [
        ["us-east-1a", "m3.medium", "0.0400", "0.067", "20.0", "0.80"],
        ["us-east-1a", "c3.xlarge", "0.1500", "0.21", "10.0", "1.50"],
    ]
    # The chances to get a machine, and to keep it for an hour and to the end: the longer job is likelier to lose it.
    granted, hour, whole = ([int(line[column].removesuffix("%")) for line in late] for column in (6, 7, 8))
    assert 50 < granted[0] < 100
    assert whole[0] < whole[1] < hour[0] < 100
    ebbtide(
        "plan",
        "--runs",
        "0",
        tmp_path / "job.yaml",
        "--prices",
        tmp_path / "prices.parquet",
        "--at",
        eb_time(1800),
    )
    early = [line.split() for line in capsys.readouterr().out.splitlines() if "us-east-1a" in line]
    assert early[0][1] == "c3.xlarge"


def test_the_markets_as_json_are_all_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    markets = [eb.Market("aws", "us-east-1", "us-east-1a", name) for name in ("c3.xlarge", "m3.medium")]
    history({market: [(0, 0.05)] for market in markets}, hours=10).write(tmp_path / "prices.parquet")
    (tmp_path / "job.yaml").write_text(JOB)
    words = (tmp_path / "job.yaml", "--prices", tmp_path / "prices.parquet", "--runs", "0", "--top", "1")
    assert ebbtide("plan", *words, "--json", tmp_path / "out.json") == 0
    told = json.loads((tmp_path / "out.json").read_text())
    printed = [line for line in capsys.readouterr().out.splitlines() if "us-east-1a" in line]
    assert len(printed) == 1
    assert [one["market"] for one in told["markets"]] == ["us-east-1a c3.xlarge", "us-east-1a m3.medium"]
    best = told["markets"][0]
    assert (best["usd_per_hour"], best["work_h"], best["usd"]) == (0.05, 10.0, 0.5)
    assert 0.0 < best["kept"] < best["kept_1h"] < 1.0


def eb_time(after_s: float) -> str:
    from ebbtide.base.utc import iso

    return iso(START_S + after_s)


def test_bad_input_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    market = eb.Market("aws", "us-east-1", "us-east-1a", "r3.large")
    history({market: [(0, 0.04)]}).write(tmp_path / "prices.parquet")
    assert ebbtide("plan", "--runs", "0", tmp_path / "job.yaml", "--prices", tmp_path / "prices.parquet") == 2
    assert "can run in no market of these prices" in capsys.readouterr().err
    assert ebbtide("plan", "--runs", "0", tmp_path / "job.yaml", "--prices", tmp_path / "none.db") == 2
    assert "no such file" in capsys.readouterr().err
