"""Members of a team with a clock of their own, and a store that goes away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.runs.cloud_as_told import Clock

from ebbtide.base.utc import to_epoch_s
from ebbtide.clouds.settings import LiveSettings
from ebbtide.controller.team.account import TeamAccount
from ebbtide.controller.team.account_book import RunAccount
from ebbtide.controller.team.account_lines import AccountLine, month_of
from ebbtide.controller.team.team import Accounting, Team
from ebbtide.storage.objects import FolderStore

NOW_S = to_epoch_s("2026-11-15T12:00:00Z")
# Real seconds after which machines end without their controller, in settings that name no other time.
UNATTENDED_S = 900.0


class WallTime(Clock):
    """A clock that is moved, in a middle of a month; `ahead_s`: of what others' clocks say."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.now_s, self.ahead_s = NOW_S, ahead_s

    def epoch_s(self) -> float:
        return self.now_s + self.ahead_s


class ShakyStore(FolderStore):
    """A folder that does not answer while `is_away`, or refuses writes alone."""

    is_away = refuses_writes = False

    def keys(self, prefix: str = "") -> Iterator[str]:
        self._check(self.is_away)
        return super().keys(prefix)

    def get(self, key: str) -> bytes:
        self._check(self.is_away)
        return super().get(key)

    def put_once(self, key: str, content: bytes) -> bool:
        self._check(self.is_away or self.refuses_writes)
        return super().put_once(key, content)

    def put_file(self, key: str, path: Path) -> None:
        self._check(self.is_away or self.refuses_writes)
        super().put_file(key, path)

    def _check(self, fails: bool) -> None:
        if fails:
            raise OSError("the store is away")


def account(run: str, spent_usd: float, clock: Clock | None = None, **given: Any) -> RunAccount:
    """An account as a controller writes it."""
    now_s = clock.epoch_s() if clock is not None else NOW_S
    values: dict[str, Any] = {
        "owner": "ann",
        "tags": {"a": "b"},
        "provider": "ec2",
        "policy": "ebbtide",
        "state": "running",
        "machines": 0,
        "usd_per_hour": 0.0,
        "at_epoch_s": now_s,
        "unattended_s": UNATTENDED_S,
    }
    return RunAccount(run, run, month_of(now_s), spent_usd=spent_usd, **(values | given))


def member(store: FolderStore, clock: Clock, team: Team, run: str = "mine", owner: str = "ann") -> TeamAccount:
    """The account of a run of ann's, or of another."""
    settings = LiveSettings(run, "ec2", "ebbtide", {}, "", "", {})
    return TeamAccount(run, settings, Accounting(owner, {}, team), store, clock)


def note(one: TeamAccount, machines: int, usd: float = 0.0, rate: float = 0.0, *, is_last: bool = False) -> str:
    """Have a controller tell of its machines and of what it spent in this month."""
    line = AccountLine(month_of(NOW_S), "charge", 0, "m", False, "", "", None, usd)
    return one.note(lambda: [line], machines, rate, "running", is_last=is_last)
