"""Teams: who they are and what limits them; every cent has its line and month."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.markets import C3, R3, START_S, history, job

from ebbtide.base.utc import HOUR_S, to_epoch_s
from ebbtide.controller.team.account_lines import (
    WallClock,
    _by_month,
    checked_month,
    lines_of,
    month_of,
    sums_by_month,
)
from ebbtide.controller.team.team import Accounting, Team, accounting_of, named_team, read_team
from ebbtide.errors import InputError
from ebbtide.policies.baselines import Reactive
from ebbtide.testing.scripted import replay

NOVEMBER_S = to_epoch_s("2026-11-30T23:00:00Z")


# Lines of the audit.


@given(st.floats(0, 3e9), st.floats(0, 2e7), st.floats(-100, 100))
def test_a_span_is_cut_where_months_end_and_loses_no_cent(start_s: float, length_s: float, usd: float) -> None:
    parts = list(_by_month(start_s, start_s + length_s, usd))
    assert math.fsum(part for _, _, part in parts) == pytest.approx(usd, abs=1e-9)
    assert parts[0][0] == start_s
    assert parts[-1][1] == start_s + length_s
    for one, other in itertools.pairwise(parts):
        assert one[1] == other[0]
    for begins_s, ends_s, _ in parts:
        assert month_of(begins_s) == month_of(max(ends_s - 1e-3, begins_s))


def test_a_charge_over_the_end_of_a_month_is_two_lines() -> None:
    prices = history({C3: [(0, 0.12)], R3: [(0, 9.0)]})
    outcome = replay(Reactive(), [job(7200, save_s=10, restore_s=20)], prices, billing="gcp-spot")
    # The market's clock is elsewhere; on the wall the run began an hour before December.
    clock = WallClock(START_S, NOVEMBER_S, 1.0)
    lines = lines_of(outcome.ledger, outcome.leases, {}, clock)
    assert [(line.month, line.entry) for line in lines] == [("2026-11", "charge"), ("2026-12", "charge")]
    assert math.fsum(line.usd for line in lines) == pytest.approx(outcome.cost_usd)
    (lease,) = outcome.leases
    held_s, before_s = lease.ended_s - lease.started_s, HOUR_S - (lease.started_s - START_S)
    assert lines[0].usd == pytest.approx(outcome.cost_usd * before_s / held_s, rel=1e-3)
    assert lines[0].end == lines[1].start == "2026-12-01T00:00:00Z"
    assert sums_by_month(lines) == {"2026-11": lines[0].usd, "2026-12": lines[1].usd}


def test_what_still_runs_has_a_line_and_a_faster_clock_is_turned_back() -> None:
    prices = history({C3: [(0, 0.1), (1000, 0.5)], R3: [(0, 0.12)]})
    outcome = replay(Reactive(), [job(3600)], prices)
    open_lease = replace(outcome.leases[0], ended_s=math.nan)
    lines = lines_of(
        outcome.ledger, [open_lease, *outcome.leases[1:]], {0: 0.25}, WallClock(START_S + 3600, NOVEMBER_S, 60.0)
    )
    last = lines[-1]
    assert (last.entry, last.usd, last.lease_id) == ("open", 0.25, 0)
    # An hour of the market is a minute on the wall.
    assert last.end == "2026-11-30T23:00:00Z"
    assert last.start >= "2026-11-30T22:59:00Z"


@pytest.mark.parametrize("month", ["2026-13", "November", "2026", "2026-11-01", "", "../2026-11"])
def test_what_is_no_month_is_an_error(month: str) -> None:
    with pytest.raises(InputError, match="is no month"):
        checked_month(month)


# Who pays.


def test_a_team_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "team.yaml"
    file.write_text(
        "accounts: /accounts\nmonthly_budget_usd: 500\nowners:\n  ann: {monthly_budget_usd: 200, machines: 8}\n"
    )
    team = read_team(file)
    assert (team.monthly_budget_usd, team.machines, team.owners["ann"].machines) == (500.0, None, 8)
    monkeypatch.setenv("EBBTIDE_TEAM", str(file))
    assert accounting_of("ann").team == team
    with pytest.raises(InputError, match="'bob' is not of the team; its owners are ann"):
        accounting_of("bob")
    monkeypatch.delenv("EBBTIDE_TEAM")
    assert accounting_of() == Accounting()


def test_accounts_in_a_folder_are_the_same_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, each working directory had accounts of its own, and the whole budget."""
    (tmp_path / "team.yaml").write_text("accounts: shared/accounts\nmonthly_budget_usd: 5\n")
    found = set()
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found.add(named_team(tmp_path / "team.yaml").accounts)
        found.add(accounting_of(team="../team.yaml").team.accounts)
    assert found == {str(tmp_path / "shared" / "accounts")}
    # A link to the file is that file.
    (tmp_path / "one" / "team.yaml").symlink_to(tmp_path / "team.yaml")
    assert named_team(tmp_path / "one" / "team.yaml").accounts == str(tmp_path / "shared" / "accounts")
    assert accounting_of(team=Team(accounts="own")).team.accounts == str(tmp_path / "other" / "own")
    assert accounting_of(team=Team(accounts="s3://bucket/x")).team.accounts == "s3://bucket/x"


def test_accounts_of_before_are_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were relative to the working directory; what a month has cost must count on."""
    for name in ("here/accounts/accounts", "there"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "there" / "team.yaml").write_text("accounts: accounts\nmonthly_budget_usd: 5\n")
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError, match=r"here/accounts are now looked for in .*there/accounts.*: move them"):
        read_team(tmp_path / "there" / "team.yaml")
    (tmp_path / "here" / "accounts").rename(tmp_path / "there" / "accounts")
    assert read_team(tmp_path / "there" / "team.yaml").accounts == str(tmp_path / "there" / "accounts")
    # Beside a link to the file, too.
    (tmp_path / "here" / "team.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    (tmp_path / "elsewhere.yaml").write_text("accounts: .\n")
    (tmp_path / "here" / "accounts").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    (tmp_path / "there" / "accounts").rename(tmp_path / "kept")
    with pytest.raises(InputError, match="move them"):
        read_team(tmp_path / "here" / "team.yaml")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("monthly_budget_usd: 5\n", "accounts"),
        ("accounts: a\nmonthly_budget_usd: -1\n", "monthly_budget_usd"),
        ("accounts: a\nmonthly_budgt_usd: 1\n", "monthly_budget_usd"),
        ("accounts: a\nowners: {ann: {machines: 0}}\n", "machines"),
        ("[]", "holds no team"),
    ],
)
def test_a_file_that_is_no_team_is_an_error(content: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text(content)
    with pytest.raises(InputError, match=problem):
        read_team(tmp_path / "team.yaml")


@pytest.mark.parametrize(
    ("owner", "tags"),
    [("Ann", {}), ("ann smith", {}), ("ann", {"Project": "x"}), ("ann", {"a": "b/../c"}), ("1a", {})],
)
def test_names_that_no_cloud_takes_are_refused(owner: str, tags: dict[str, str]) -> None:
    with pytest.raises(InputError, match="is no tag that every cloud takes"):
        Accounting(owner, tags)
