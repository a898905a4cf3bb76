"""The account book of a team: what each run has spent in a month and rents now, an object a run in one store.

Each controller writes its own account and reads the others'. Between two readings two controllers may both spend:
so of every other run what its machines will cost until it is read again, and for as long as they go on without
their controller, counts as spent.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebbtide._json import json_text
from ebbtide._utc import HOUR_S
from ebbtide.errors import InputError, MissingObjectError
from ebbtide.live.account_lines import AccountLine
from ebbtide.live.object_keys import checked_key
from ebbtide.live.settings import RunFolder
from ebbtide.live.storage import ObjectStore
from ebbtide.live.team import Accounting
from ebbtide.live.unique_names import fingerprint_of, unique_name

_VERSION = 1
# An account that is not written for so long is of a controller that is gone; its machines end themselves by then.
_MOST_UNSEEN_S = 1800.0
# Between two readings of the others' accounts; and until a run that has passed its limit looks, and has ended its
# machines.
READ_EVERY_S = 20.0
_UNSEEN_S = 180.0


@dataclass(frozen=True)
class Account:
    """What one run has spent in a month, and what it rents now.

    Attributes:
        name: Name of the account: runs of several people may have one id, but not one key.
        run: Id of the run.
        month: Calendar month (UTC), as `2026-11`.
        owner: Who pays for it; empty: nobody was named.
        tags: What it is for, value by name.
        provider: Who rents the machines out.
        policy: Name of the policy that decides.
        state: What the run does, as its controller last knew.
        spent_usd: USD spent in the month, open machines as if released at that time.
        machines: Number of machines that it rents now.
        usd_per_hour: What these cost now, USD per hour.
        at_epoch_s: When it was written, seconds since 1970.
        lines: Every amount of the month.
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

    def committed_usd(self, now_s: float) -> float:
        """What the run has spent, and may have by the time that it is read again, USD."""
        unseen_s = min(max(now_s - self.at_epoch_s, 0.0), _MOST_UNSEEN_S) + _UNSEEN_S
        return self.spent_usd + (self.usd_per_hour * unseen_s / HOUR_S if self.machines else 0.0)


@dataclass(frozen=True)
class AccountBook:
    """The accounts of all runs of a team.

    Attributes:
        objects: The common store.
    """

    objects: ObjectStore

    def write(self, account: Account) -> None:
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
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "account.json"
            file.write_text(json_text(content), encoding="utf-8")
            self.objects.put_file(_key(account.month, account.name), file)

    def read(self, month: str, *, lines: bool = True, damaged: dict[str, str] | None = None) -> list[Account]:
        """The accounts of a month, in order of their runs.

        Args:
            month: Calendar month (UTC), as `2026-11`.
            lines: Whether their lines are read as well.
            damaged: Takes accounts that cannot be read, and why, by key; None: one is an error.

        Raises:
            InputError: One is damaged, or a newer Ebbtide wrote it.
            OSError: The store does not answer.
        """
        found = []
        for key in self.objects.keys(f"accounts/{month}/"):
            try:
                content = self.objects.get(key)
            except MissingObjectError:
                continue
            try:
                found.append(_account_of(key, content, lines=lines))
            except InputError as error:
                if damaged is None:
                    raise
                damaged[key] = str(error)
        return found


_PLAIN = (
    *("name", "run", "month", "owner", "provider", "policy", "state"),
    *("spent_usd", "machines", "usd_per_hour", "at_epoch_s"),
)


def account_name(folder: RunFolder) -> str:
    """The name of a run's account, the same wherever the run is resumed, and of no other run."""
    return unique_name(folder.settings.run, fingerprint_of(folder.key))


def _key(month: str, name: str) -> str:
    return checked_key(f"accounts/{month}/{name}.json")


def _account_of(key: str, content: bytes, *, lines: bool) -> Account:
    try:
        values: dict[str, Any] = json.loads(content)
        if int(values["version"]) > _VERSION:
            raise InputError(f"account {key} was written by a newer Ebbtide; upgrade ebbtide")
        own = {name: values[name] for name in _PLAIN}
        kept = tuple(AccountLine(**line) for line in values["lines"]) if lines else ()
        account = Account(**own, tags=dict(values["tags"]), lines=kept)
        Accounting(account.owner, account.tags)
        figures = [account.spent_usd, account.usd_per_hour, account.at_epoch_s, account.machines]
        if not math.isfinite(math.fsum([*figures, *(line.usd for line in kept)])):
            raise ValueError("a figure in it is none")
        return account
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"account {key} of the team's store cannot be read: {error}; a run that goes on writes its own anew; "
            "remove that of one that is over, once you know what it has spent"
        ) from None
