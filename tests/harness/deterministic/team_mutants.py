"""Broken variants of the code that keeps a team's limits, and that ends machines without any report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from ebbtide.controller.agent_provider import AgentProvider
from ebbtide.controller.spending_gate import SpendingGate
from ebbtide.controller.team import account as team_account
from ebbtide.controller.team import account_book
from ebbtide.controller.team import quotas as quota_book
from ebbtide.controller.team.account import TeamAccount
from ebbtide.controller.team.account_book import AccountBook, RunAccount
from ebbtide.errors import InputError
from ebbtide.policies.budget import WithinBudget

_Broken = AbstractContextManager[Any]


@contextmanager
def _the_team_s_budget_is_asked_at_requests_only() -> Iterator[None]:
    before = WithinBudget._watch

    def watch(self: WithinBudget, *given: Any) -> Any:
        return iter(()) if self.key == "team_budget" else before(self, *given)

    with patch.object(SpendingGate, "_by_team", lambda *_: ""), patch.object(WithinBudget, "_watch", watch):
        yield


def _a_quota_is_what_was_read_last() -> _Broken:
    return patch.object(TeamAccount, "reserve", lambda _self, _machines: True)


@contextmanager
def _machines_of_one_who_is_gone_count_for_ever() -> Iterator[None]:
    def counts(_age_s: float, _unattended_s: float) -> bool:
        return True

    with patch.object(account_book, "counts", counts), patch.object(team_account, "counts", counts):
        yield


@contextmanager
def _machines_of_one_who_is_gone_count_no_more_at_once() -> Iterator[None]:
    def counts(age_s: float, _unattended_s: float) -> bool:
        return age_s <= team_account.READ_EVERY_S

    with patch.object(account_book, "counts", counts), patch.object(team_account, "counts", counts):
        yield


def _a_damaged_account_is_an_error() -> _Broken:
    before = AccountBook.read

    def read(self: AccountBook, month: str, damaged: dict[str, str], *, lines: bool = True) -> list[RunAccount]:
        found = before(self, month, damaged, lines=lines)
        for why in damaged.values():
            raise InputError(why)
        return found

    return patch.object(AccountBook, "read", read)


@contextmanager
def _absurd_accounts_are_believed() -> Iterator[None]:
    def amount(values: Any, field_: str, **_: Any) -> Any:
        return values[field_]

    with patch.object(account_book, "amount", amount), patch.object(quota_book, "amount", amount):
        yield


def _a_machine_never_heard_from_is_paid_on() -> _Broken:
    return patch.object(AgentProvider, "_check_heard", lambda _self, _lease: None)


TEAM_MUTANTS: tuple[Callable[[], _Broken], ...] = (
    _the_team_s_budget_is_asked_at_requests_only,
    _a_quota_is_what_was_read_last,
    _machines_of_one_who_is_gone_count_for_ever,
    _machines_of_one_who_is_gone_count_no_more_at_once,
    _a_damaged_account_is_an_error,
    _absurd_accounts_are_believed,
    _a_machine_never_heard_from_is_paid_on,
)
