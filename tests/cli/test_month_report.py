"""`ebbtide report --month`: two people's runs in one store, and every amount of which the total is the sum."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from tests.cli.test_running import command
from tests.runs.sweeps import A, flapping, sweep
from tests.ui.made_run import made_run

from ebbtide.cli.main import main
from ebbtide.controller.team.account_book import AccountBook, RunAccount, account_name
from ebbtide.controller.team.account_lines import AccountLine
from ebbtide.controller.team.team import Accounting, Team, read_team
from ebbtide.storage.objects import FolderStore
from ebbtide.tracking.month_report import month_report

NOW = f"{datetime.now(UTC):%Y-%m}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, processes: None) -> Path:
    """Two folders of runs, one of each person, and the file of their team."""
    folder = tmp_path_factory.mktemp("team")
    wanted = sweep(folder, trials=1, steps=60)
    (folder / "sweep.yaml").write_text(yaml.safe_dump(wanted.model_dump(mode="json", exclude_none=True)))
    flapping().write(folder / "prices.parquet")
    (folder / "team.yaml").write_text(
        f"accounts: {folder / 'accounts'}\nmonthly_budget_usd: 5\nowners:\n  ann: {{monthly_budget_usd: 2}}\n  bob: {{}}\n"
    )
    for owner in ("ann", "bob"):
        words = ["run", folder / "sweep.yaml", "--prices", folder / "prices.parquet", "--runs", folder / owner]
        words += ["--team", folder / "team.yaml", "--owner", owner, "--tag", f"project={owner[::-1]}"]
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        assert ended.value.code == 0
    return folder


def paid_usd(runs: Path, capsys: pytest.CaptureFixture[str]) -> float:
    (status,) = json.loads(command(capsys, "status", "--json", "--runs", runs)[1])
    usd: float = status["money"]["paid_usd"]
    return usd


def test_each_sees_what_all_have_spent(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spent = {owner: paid_usd(place / owner, capsys) for owner in ("ann", "bob")}
    for own in ("ann", "bob", "nobody"):
        words = ("report", "--month", NOW, "--team", place / "team.yaml", "--runs", place / own)
        code, out, errors = command(capsys, *words, "--json")
        assert (code, errors) == (0, "")
        found = json.loads(out)
        assert {row["owner"]: row["usd"] for row in found["rows"]} == pytest.approx(spent)
        assert found["usd"] == pytest.approx(sum(spent.values()))
        assert [(one["of"], one["budget_usd"]) for one in found["budgets"]] == [("the team", 5), ("ann", 2)]
    code, out, _ = command(capsys, *words, "--by", "tag:project")
    assert code == 0
    assert "nna" in out
    assert "bob" in out
    assert f"USD in {NOW}" in out
    assert "the team: " in out


def test_the_audit_has_every_cent(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "audit.csv"
    words = ("report", "--month", NOW, "--team", place / "team.yaml", "--runs", place / "ann", "--audit", file)
    assert command(capsys, *words)[0] == 0
    rows = list(csv.DictReader(file.open()))
    for owner in ("ann", "bob"):
        mine = [row for row in rows if row["owner"] == owner]
        assert sum(float(row["usd"]) for row in mine) == pytest.approx(paid_usd(place / owner, capsys), abs=1e-9)
        assert {row["tags"] for row in mine} == {f"project={owner[::-1]}"}
        for row in mine:
            if row["entry"] == "charge":
                assert row["usd_per_hour"] == "0.03"
                assert row["start"] <= row["end"]


def test_runs_without_the_team_are_not_in_its_budgets(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Accounting("ann").keep(made_run(tmp_path / "runs", 6, stops_after_h=2.2))
    words = ("report", "--month", NOW, "--team", place / "team.yaml", "--runs")
    theirs = json.loads(command(capsys, *words, tmp_path / "none", "--json")[1])
    found = json.loads(command(capsys, *words, tmp_path / "runs", "--json")[1])
    assert found["usd"] > theirs["usd"]
    assert found["budgets"] == theirs["budgets"]
    assert "not in its budgets" in command(capsys, *words, tmp_path / "runs")[1]


def test_runs_that_name_the_accounts_by_another_path_are_in_the_budgets(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, runs that were begun when a folder of accounts was kept as it stood in the file were left out."""
    words = ("report", "--month", NOW, "--team", place / "team.yaml", "--json", "--runs")
    (before,) = (place / "ann").iterdir()
    run = tmp_path / "runs" / before.name
    shutil.copytree(before, run)
    kept = json.loads((run / "accounting.json").read_text())
    kept["team"]["accounts"] = "accounts"
    (run / "accounting.json").write_text(json.dumps(kept))
    found, theirs = (json.loads(command(capsys, *words, runs)[1]) for runs in (tmp_path / "runs", place / "ann"))
    assert found["budgets"] == theirs["budgets"]


def test_without_a_team_the_runs_here_are_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "report", "--month", NOW, "--runs", place / "ann", "--by", "run", "--json")
    assert code == 0
    assert json.loads(out)["usd"] == pytest.approx(paid_usd(place / "ann", capsys))
    code, out, _ = command(capsys, "report", "--month", "1999-01", "--runs", place / "ann")
    assert (code, out) == (0, "nothing was spent in 1999-01\n")


def test_a_run_of_refunds_and_open_machines_adds_up(tmp_path: Path, mid_month: None) -> None:
    folder = made_run(tmp_path / "runs", 6, stops_after_h=2.2)
    Accounting("ann", {"project": "x"}).keep(folder)
    report = month_report(NOW, tmp_path / "runs")
    entries = set(report.lines["entry"])
    assert entries == {"charge", "refund", "open"}
    sums = report.by("owner").iloc[0]
    assert sums["usd"] == pytest.approx(sums["charged_usd"] - sums["refunded_usd"] + sums["egress_usd"])
    by_market = report.by("market")
    assert by_market["usd"].sum() == pytest.approx(report.total_usd)
    assert list(by_market["usd"]) == sorted(by_market["usd"], reverse=True)


def test_two_people_s_runs_of_one_name_are_two(tmp_path: Path, mid_month: None) -> None:
    mine = made_run(tmp_path / "runs", 6, stops_after_h=2.2)
    theirs = AccountLine(NOW, "charge", 0, str(A), False, f"{NOW}-01T00:00:00Z", f"{NOW}-01T01:00:00Z", 3.0, 3.0)
    account = RunAccount(
        "made-0a1b2c3d", "made", NOW, "bob", {}, "ec2", "p", "running", 3.0, 1, 3.0, 0.0, [theirs]
    )
    book = AccountBook(FolderStore(tmp_path / "accounts"))
    book.write(account)
    team = Team(accounts=str(tmp_path / "accounts"), monthly_budget_usd=50.0)
    alone = month_report(NOW, tmp_path / "runs").total_usd
    report = month_report(NOW, tmp_path / "runs", team)
    assert report.total_usd == pytest.approx(alone + 3.0)
    # Mine is not of the team, theirs is.
    assert report.budgets() == [("the team", 3.0, 50.0)]
    by_run = report.by("run").set_index("run")
    assert by_run["usd"].to_dict() == pytest.approx({account_name(mine): alone, "made-0a1b2c3d": 3.0})
    assert list(by_run["runs"]) == [1, 1]
    # One that cannot be read is not taken for the other's.
    mine.journal.write_bytes(b"torn")
    report = month_report(NOW, tmp_path / "runs", team)
    assert report.by("run")["run"].to_list() == ["made"]
    assert list(report.unreadable) == ["made"]
    # Its own account tells of it.
    book.write(replace(account, name=account_name(mine)))
    report = month_report(NOW, tmp_path / "runs", team)
    assert (report.total_usd, dict(report.unreadable)) == (6.0, {})


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_spent_budget_rents_nothing(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    team = read_team(place / "team.yaml").model_dump(mode="json")
    (tmp_path / "team.yaml").write_text(yaml.safe_dump(team | {"monthly_budget_usd": 1e-5}))
    words = ("run", place / "sweep.yaml", "--prices", place / "prices.parquet", "--runs", tmp_path / "runs")
    code, _, errors = command(capsys, *words, "--team", tmp_path / "team.yaml", "--owner", "bob")
    assert code == 2
    assert f"the team's budget of 1e-05 USD for {NOW} is spent" in errors
    (status,) = json.loads(command(capsys, "status", "--json", "--runs", tmp_path / "runs")[1])
    assert (status["state"], status["rented_ever"]) == ("refused", 0)


def test_what_cannot_be_read_is_not_told_as_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = place / "ann"
    for journal in runs.glob("*/journal.sqlite"):
        journal.write_bytes(b"torn")
    code, out, errors = command(capsys, "report", "--month", NOW, "--runs", runs)
    assert (code, out) == (0, f"nothing was spent in {NOW} by the runs that can be read\n")
    assert "cannot be read" in errors
