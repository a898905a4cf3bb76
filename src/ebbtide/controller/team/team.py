"""Limits of a team, and owners of runs: several controllers keep accounts in one store, and share a budget."""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt

from ebbtide.base.files import write_text
from ebbtide.clouds.settings import RunFolder
from ebbtide.errors import InputError
from ebbtide.jobs.parsing import Frozen, read_mapping, validated

# Environment variable that names the file of a team if no option does.
TEAM = "EBBTIDE_TEAM"
_FILE = "accounting.json"
# First part of the keys of all accounts in their store.
_BOOK = "accounts"
# Names and values that every cloud accepts as tags, and storage as keys.
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_VALUE = re.compile(r"[a-z0-9_-]{0,63}")


class TeamLimits(Frozen):
    """Limits on spending in a calendar month (UTC), and on machines rented at once.

    Attributes:
        monthly_budget_usd: The most that may be spent in a month, USD; None: there is no limit.
        machines: The most machines at once, over all runs; None: there is no limit.
    """

    monthly_budget_usd: PositiveFloat | None = Field(default=None, examples=[500.0])
    machines: PositiveInt | None = Field(default=None, examples=[20])


class Team(TeamLimits):
    """Limits of a team and of its members, and the store in which all their controllers keep accounts.

    Attributes:
        accounts: Storage of the accounts, the same for all: a folder, `s3://bucket/prefix` or `gs://bucket/prefix`.
            The path of a folder is relative to the team's file.
        owners: Limits of each member by name; if there are any, nobody else may rent.
    """

    accounts: Annotated[str, Field(min_length=1, examples=["s3://our-bucket/ebbtide"])]
    owners: dict[str, TeamLimits] = Field(default_factory=dict)

    def check_owner(self, owner: str) -> None:
        """Raise `InputError` for somebody who is not in the team."""
        if self.owners and owner not in self.owners:
            raise InputError(
                f"{owner!r} is not of the team; its owners are {', '.join(sorted(self.owners))}", field="owner"
            )


@dataclass(frozen=True)
class Accounting:
    """Owner and tags of a run, and the team whose limits apply besides its own budget.

    Attributes:
        owner: Name of whoever pays for the run; empty: nobody was named.
        tags: Tags of the run, value by name.
        team: Limits of the team; None: there is none.
    """

    owner: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    team: Team | None = None

    def __post_init__(self) -> None:
        wrong = [] if not self.owner or _NAME.fullmatch(self.owner) else [("owner", self.owner)]
        wrong += [("tags", name) for name in self.tags if not _NAME.fullmatch(name)]
        wrong += [(f"tags.{name}", value) for name, value in self.tags.items() if not _VALUE.fullmatch(value)]
        for field_, name in wrong[:1]:
            raise InputError(
                f"{name!r} is no tag that every cloud takes: at most 63 lower-case letters, digits, '_' and '-'; "
                "a name begins with a letter",
                field=field_,
            )
        if self.team is not None:
            self.team.check_owner(self.owner)

    @property
    def labels(self) -> dict[str, str]:
        """Tags of the run's machines, for the cost reports of their cloud."""
        mine = {"ebbtide-owner": self.owner} if self.owner else {}
        return {**self.tags, **mine}

    def keep(self, folder: RunFolder) -> None:
        """Write the accounting into a run's folder."""
        team = None if self.team is None else self.team.model_dump(mode="json")
        content = {"owner": self.owner, "tags": dict(self.tags), "team": team}
        write_text(folder.path / _FILE, json.dumps(content, indent=2) + "\n", mode=0o600)

    @classmethod
    def of(cls, folder: RunFolder) -> Accounting:
        """Read the accounting from a run's folder; empty for runs older than accounting.

        Raises:
            InputError: It cannot be read.
        """
        file = folder.path / _FILE
        if not file.exists():
            return cls()
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            team = None if values["team"] is None else validated(Team, values["team"], file)
            return cls(str(values["owner"]), dict(values["tags"]), team)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"holds no accounting of a run: {error}", file=file) from None


def accounting_of(
    owner: str | None = None, tags: Mapping[str, str] | None = None, team: Team | str | Path | None = None
) -> Accounting:
    """Return the owner, tags and team of a new run.

    Args:
        owner: Name of whoever pays for the run; None: the user of this machine, if there is a team.
        tags: Tags of the run, value by name.
        team: The team, whose accounts are relative to the working directory, or the path of its file; None: the
            file that `EBBTIDE_TEAM` names, if any.

    Raises:
        InputError: The file does not describe a team, the owner is not in it, or a name cannot be a tag.
    """
    found = _with_absolute_accounts(team, Path.cwd()) if isinstance(team, Team) else named_team(team)
    if owner is None:
        owner = _user() if found is not None else ""
    return Accounting(owner, dict(tags or {}), found)


def named_team(path: str | Path | None = None) -> Team | None:
    """The team of a file; None: the file that `EBBTIDE_TEAM` names, if any.

    Raises:
        InputError: There is no such file, or it does not describe a team.
    """
    named = os.environ.get(TEAM) if path is None else path
    return read_team(named) if named else None


def read_team(path: str | Path) -> Team:
    """The team that a file describes.

    Raises:
        InputError: There is no such file, it does not describe a team, or its accounts lie where they were before.
    """
    content: dict[str, Any] = read_mapping(path, "team: a mapping with accounts, monthly_budget_usd, owners...")
    team = validated(Team, content, path)
    found = _with_absolute_accounts(team, Path(path).resolve().parent)
    if "://" in found.accounts or (Path(found.accounts) / _BOOK).exists():
        return found
    # They were relative to the working directory before, and a month must not begin anew.
    for folder in (Path.cwd(), Path(path).absolute().parent):
        former = (folder / team.accounts).resolve()
        if (former / _BOOK).exists():
            raise InputError(
                f"its accounts in {former} are now looked for in {found.accounts}, beside its file: move them",
                file=path,
                field="accounts",
            )
    return found


def _with_absolute_accounts(team: Team, folder: Path) -> Team:
    """The team with accounts in the same folder wherever its runs are begun and resumed."""
    if "://" in team.accounts:
        return team
    return team.model_copy(update={"accounts": str((folder / Path(team.accounts).expanduser()).resolve())})


def _user() -> str:
    """The user of this machine as a name for cost reports."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        return ""
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).lstrip("0123456789_-")[:63]
