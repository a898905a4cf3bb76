"""A price store is read by every command that reads prices."""

from __future__ import annotations

from pathlib import Path

import pytest

import ebbtide as eb
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.market.ingestion import ingest_files
from ebbtide.market.price_store import PriceStore

JOB = "name: a\nsteps: 200\nother_steps_per_hour_per_vcpu: 20\n"
COMMANDS = (
    "describe {0}",
    "backtest job.yaml --prices {0} --policies reactive --starts 1",
    "compare job.yaml --prices {0}",
    "plan job.yaml --prices {0}",
    "plan job.yaml --prices {0} --runs 0",
)


def ebbtide(line: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    return int(ended.value.code or 0)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> eb.PriceHistory:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    history = eb.generate_prices(days=6, seed=1, kind="auction")
    PriceStore("s.db").add(history.to_frame(), looked_at=history.end_s)
    history.write("p.parquet")
    return history


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reads_a_store(
    stored: eb.PriceHistory, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stored
    printed = []
    for file in ("s.db", "p.parquet"):
        assert ebbtide(command.format(file)) == 0, capsys.readouterr().err
        printed.append(capsys.readouterr().out.replace(file, "FILE"))
    assert printed[0]


def test_a_store_has_the_same_prices(stored: eb.PriceHistory) -> None:
    found = eb.PriceHistory.read("s.db")
    assert found.end_s == stored.end_s
    for market, series in stored.items():
        for time_s in series.times_s:
            assert found[market].at(time_s) == series.at(time_s)


def test_unknown_types_of_a_store_are_left_out(stored: eb.PriceHistory, caplog: pytest.LogCaptureFixture) -> None:
    frame = stored.to_frame().astype({"instance_type": "string"})
    PriceStore("s.db").add(frame.assign(instance_type="x99.huge"))
    assert eb.PriceHistory.read("s.db").markets == stored.markets
    assert "instance types that the catalogue does not know (x99.huge)" in caplog.text


def test_a_store_is_not_replaced_by_a_parquet_file(stored: eb.PriceHistory) -> None:
    assert stored
    before = Path("s.db").read_bytes()
    with pytest.raises(InputError, match=r"s\.db: is a price store, to which `ebbtide watch` adds"):
        ingest_files(["p.parquet"], "s.db")
    assert Path("s.db").read_bytes() == before


def test_other_forms_are_told_how_to_be_read(tmp_path: Path) -> None:
    (tmp_path / "h.json").write_text("[]")
    with pytest.raises(InputError, match="`ebbtide ingest FILE --into prices.parquet` makes one of CSV, JSON"):
        eb.PriceHistory.read(tmp_path / "h.json")
