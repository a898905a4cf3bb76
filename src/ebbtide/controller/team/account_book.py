"""The account book of a team: what each run has spent in a month and rents now, one object per run in one store.

Each controller writes its own account and reads the others'. Between two reads, two controllers may both spend. So
what another run's machines will cost until its account is read again, and for as long as they go on without their
controller, counts as spent. Once they must have ended without it, the account counts no machines.

Others may write to the store, and writes may be cut short: an account with an impossible field is damaged, and
keeps nobody from reading the others.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ebbtide.base.json_values import json_text
from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.team.account_lines import AccountLine
from ebbtide.controller.team.team import Accounting
from ebbtide.errors import InputError, MissingObjectError, StorageError
from ebbtide.storage.object_keys import checked_key
from ebbtide.storage.objects import ObjectStore, decoded_object

_VERSION = 1
# Seconds until a run that has passed its limit notices, and has ended its machines; machines without a controller
# take as long to save and end.
UNSEEN_S = 180.0
# Seconds without a controller after which machines end, if an account does not say.
_UNATTENDED_S = 1800.0
# Seconds after which a run that rents nothing is read again only if its account has changed: a list of what is
# stored may be minutes old, while one that trains writes its account every half a minute.
_IDLE_S = 3600.0
# From _MANY accounts on, _AT_A_TIME are read at once.
_MANY, _AT_A_TIME = 8, 16
# Upper bounds of an account's amounts; anything above is an error.
_MOST = {"spent_usd": 1e9, "machines": 1e6, "usd_per_hour": 1e7, "at_epoch_s": 1e11, "unattended_s": 1e6}


@dataclass(frozen=True)
class RunAccount:
    """Spending of one run in a month, and the machines that it rents now.

    Attributes:
        name: Name of the account: runs of several people may share an id, but not a key.
        run: Id of the run.
        month: Calendar month (UTC), as `2026-11`.
        owner: Name of whoever pays for the run; empty: nobody was named.
        tags: Tags of the run, value by name.
        provider: Name of the provider of its machines.
        policy: Name of the policy that decides.
        state: State of the run, as its controller last knew.
        spent_usd: USD spent in the month, open machines as if released at that time.
        machines: Number of machines that it rents now.
        usd_per_hour: Present cost of these machines, USD per hour.
        at_epoch_s: Time of writing, seconds since 1970.
        lines: Every amount of the month.
        unattended_s: Seconds without a controller after which its machines end.
    """

    name: str
    run: str
    month: str
    owner: str
    tags: Mapping[str, str]
    provider: str
    policy: str
    state: str
    spent_usd: float
    machines: int
    usd_per_hour: float
    at_epoch_s: float
    lines: Sequence[AccountLine] = field(default=(), repr=False)
    unattended_s: float = _UNATTENDED_S

    def committed_usd(self, age_s: float) -> float:
        """Amount that the run has spent, or may have spent by the time its account is read again, USD.

        Args:
            age_s: Seconds since the account was written.
        """
        unseen_s = min(max(age_s, 0.0), self.unattended_s) + UNSEEN_S
        return self.spent_usd + (self.usd_per_hour * unseen_s / HOUR_S if self.machines else 0.0)

    def machines_left(self, age_s: float) -> int:
        """Number of machines that the run may still rent; 0 once they must have ended without their controller.

        Args:
            age_s: Seconds since the account was written.
        """
        return self.machines if counts(age_s, self.unattended_s) else 0


def counts(age_s: float, unattended_s: float) -> bool:
    """Tell whether machines may still run, given how long ago their controller last wrote.

    Args:
        age_s: Seconds since the controller wrote.
        unattended_s: Seconds without a controller after which they begin to end.
    """
    return age_s <= unattended_s + min(UNSEEN_S, 2.0 * unattended_s)


@dataclass(frozen=True)
class AccountBook:
    """The accounts of all runs of a team.

    Attributes:
        objects: The common store.
        runtime: Gives the time, and pools of threads.
    """

    objects: ObjectStore
    runtime: Runtime = RUNTIME
    # Accounts of runs that have rented nothing for long, with their versions, by key: a team may have thousands
    # in a month.
    _idle: dict[str, tuple[str, RunAccount]] = field(default_factory=dict, init=False, repr=False)

    def write(self, account: RunAccount) -> None:
        """Write an account in place of the run's earlier one of that month.

        Raises:
            OSError: The store does not answer.
        """
        content = {
            "version": _VERSION,
            **{name: getattr(account, name) for name in _PLAIN},
            "tags": dict(account.tags),
            "lines": [line.as_plain() for line in account.lines],
        }
        with _as_file(json_text(content).encode()) as file:
            self.objects.put_file(_key(account.month, account.name), file)

    def is_empty(self, month: str) -> bool:
        """Return whether there is no account of a month.

        Raises:
            OSError: The store does not answer.
        """
        return next(iter(self.objects.keys(f"accounts/{month}/")), None) is None

    def has(self, month: str, name: str) -> bool:
        """Return whether an account of a month is stored.

        Raises:
            OSError: The store does not answer.
        """
        return self.objects.has(_key(month, name))

    def read(
        self, month: str, damaged: dict[str, str], *, lines: bool = True, within_s: float = math.inf
    ) -> list[RunAccount]:
        """The accounts of a month, in order of their names.

        Args:
            month: Calendar month (UTC), as `2026-11`.
            damaged: Filled with the reason why an account cannot be read, by its name.
            lines: Whether to read their lines as well; without them, runs that have rented nothing for long are
                read again only if their account has changed.
            within_s: Seconds within which all have to be read, for a caller that has other work.

        Raises:
            OSError: The store does not answer.
        """
        prefix = f"accounts/{month}/"
        until_s = self.runtime.monotonic_s() + within_s
        versions = dict(self.objects.versions(prefix))
        known: dict[str, RunAccount] = {}
        if not lines:
            for key in [key for key in self._idle if key.startswith(prefix)]:
                version, account = self._idle[key]
                if version and version == versions.get(key):
                    known[key] = account
                else:
                    del self._idle[key]

        def read(key: str) -> RunAccount | None:
            if self.runtime.monotonic_s() > until_s:
                raise StorageError(f"{prefix} takes too long to read")
            found = self._read(key, month, damaged, lines=lines)
            if not lines and found is not None and self._is_idle(found):
                # Kept even if others take too long, so that the next attempt goes on from here.
                self._idle[key] = (versions[key], found)
            return found

        # Several at once: each trial of a search is a run.
        unknown = [key for key in versions if key not in known]
        with ExitStack() as stack:
            each = map if len(unknown) < _MANY else stack.enter_context(self.runtime.pool(_AT_A_TIME)).map
            found = known | dict(zip(unknown, each(read, unknown), strict=True))
        return [one for key in versions if (one := found[key]) is not None]

    def _is_idle(self, account: RunAccount) -> bool:
        return not account.machines and self.runtime.epoch_s() - account.at_epoch_s > _IDLE_S

    def _read(self, key: str, month: str, damaged: dict[str, str], *, lines: bool) -> RunAccount | None:
        """Read one account; None: it was removed since, or is damaged."""
        name = key.rpartition("/")[2].removesuffix(".json")
        try:
            return decoded_object(self.objects, key, partial(_account_of, name=name, month=month, lines=lines))
        except MissingObjectError:
            return None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, InputError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            damaged[name] = (
                f"account {key} of the team's store cannot be read: {why}; a run that goes on writes its own "
                "anew; remove that of one that is over, once you know what it has spent"
            )
            return None


_TEXTS = ("name", "run", "month", "owner", "provider", "policy", "state")
_PLAIN = (*_TEXTS, *_MOST)


def account_name(folder: RunFolder) -> str:
    """The name of a run's account, the same wherever the run is resumed, and of no other run."""
    return folder.unique_name


def amount(values: Mapping[str, Any], field_: str, *, least: float = 0.0) -> float:
    """A number of an account, checked for its type and range.

    Raises:
        KeyError: The field is missing.
        ValueError: Its value is not a number, or is out of range.
    """
    value, most = values[field_], _MOST[field_]
    if field_ == "unattended_s" and isinstance(value, int | float) and value > most:
        # Settings allow any; a run whose machines go on for weeks counts all the same.
        return most
    kinds = int if field_ == "machines" else (int, float)
    # NaN is outside any range.
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        kind = "a whole number" if field_ == "machines" else "a number"
        raise ValueError(f"{field_} is {str(value)[:40]!r}; {kind} from {least:g} to {most:g} is needed")
    return value


@contextmanager
def _as_file(content: bytes) -> Iterator[Path]:
    """Content as a file, in memory if possible, since the disk may be full."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "account.json"
            file.write_bytes(content)
            yield file
        return
    descriptor = os.memfd_create("account.json")
    try:
        with open(descriptor, "wb", closefd=False) as written:
            written.write(content)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _key(month: str, name: str) -> str:
    return checked_key(f"accounts/{month}/{name}.json")


def _account_of(content: bytes, name: str, month: str, *, lines: bool) -> RunAccount:
    if not content.strip():
        raise ValueError("it is empty")
    values = json.loads(content)
    if not isinstance(values, dict):
        raise TypeError(f"it holds {type(values).__name__}, no account")
    if lines and int(values["version"]) > _VERSION:
        # Without lines, its totals can still be read.
        raise InputError("a newer Ebbtide wrote it; upgrade ebbtide")
    own: dict[str, Any] = {field_: values[field_] for field_ in _TEXTS}
    for field_, value in own.items():
        if not isinstance(value, str):
            raise TypeError(f"{field_} is no text")
    for field_, stands_at in (("name", name), ("month", month)):
        if own[field_] != stands_at:
            raise ValueError(f"{field_} is {own[field_][:80]!r}, in the place of {stands_at}")
    # Accounts of earlier versions do not say after what time their machines end.
    given = {"unattended_s": _UNATTENDED_S} | values
    own |= {field_: amount(given, field_) for field_ in _MOST}
    kept = tuple(_line_of(line) for line in values["lines"]) if lines else ()
    account = RunAccount(**own, tags=dict(values["tags"]), lines=kept)
    Accounting(account.owner, account.tags)
    return account


def _line_of(values: Mapping[str, Any]) -> AccountLine:
    line = AccountLine(**values)
    most = _MOST["spent_usd"]
    if isinstance(line.usd, bool) or not isinstance(line.usd, (int, float)) or not -most <= line.usd <= most:
        raise ValueError(f"usd of a line is {str(line.usd)[:40]!r}; a number is needed")
    return line
