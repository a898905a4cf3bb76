"""The errors a user can act on: what was wrong, where, and what would be right.

```
EbbtideError
├── InputError                   bad input: a file, a field, an option (also a ValueError)
│   ├── OthersRunError           storage has a run of this name, and it is somebody else's
│   ├── SupersededError          another controller has taken over the run
│   │   └── LostJournalError     the run's journal records no machine, though it has rented some
│   └── TooShort                 no record of availability is long enough
├── PolicyError                  a policy's mistake (also a RuntimeError)
├── CloudError                   the cloud does not answer, or refused
│   ├── CloudGoneError           it has ended, and its machines with it
│   ├── ComputeError             Google's Compute Engine refused a request
│   └── PartlySilentError        a part of it has never answered; others do
├── StorageError                 object storage does not answer, or refused (also an OSError)
│   ├── DamagedResultError       what is stored of a task's result is not what was stored
│   ├── DamagedAnswerError       storage gives an object damaged in another way each time
│   ├── LostCheckpointError      storage lacks a checkpoint that the run knows of
│   ├── LostClaimError           storage lacks a controller's claim to the run, which was written
│   └── MissingObjectError       nothing is stored under the name (also a KeyError)
├── CheckpointError              a checkpoint cannot be used, or may not be written
│   ├── DamagedCheckpointError   its content is not what its manifest says
│   │   └── MissingPartError     storage lacks a part of it
│   ├── DamagedInputError        what a needed job has stored cannot be had
│   ├── DamagedTileError         the bytes of a matrix's tile are not those that were written
│   └── SupersededWriterError    another writer has taken over the training
├── JournalError                 a run's journal cannot be written or read
│   ├── JournalAwayError         the database server that keeps it does not answer
│   ├── JournalWentBackError     the database has failed over to an older copy
│   └── UnusableJournalError     it is damaged, or its database does not allow what is needed
└── TrainingError                a program of the user's failed
```
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

# In a message: the most characters of a name, and the most known names that are listed.
_SHOWN = 80
_LISTED = 40


class EbbtideError(Exception):
    """Any error that Ebbtide itself raises."""


class InputError(EbbtideError, ValueError):
    """Bad input, described in one line: the file, the row and the field, then what was wrong.

    Attributes:
        file: The path of the file at fault; None: no file is.
        row: Its row, counted from 1 below any header, as a spreadsheet or `head` would show it.
        field: The column or key at fault; None: no single one is.
        problem: What was wrong, in one line; with several problems, how many there are.
        problems: One line for each problem, where one input has several.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | Path | None = None,
        row: int | None = None,
        field: str | None = None,
        problems: Iterable[str] = (),
    ) -> None:
        self.file = str(file) if file is not None else None
        self.row = row
        self.field = field
        self.problem = " ".join(problem.split())
        where = [self.file] if self.file else []
        where += [f"row {row}"] if row is not None else []
        where += [f"field {field}"] if field else []
        self.problems = tuple(" ".join(line.split()) for line in problems)
        summary = f"{', '.join(where)}: {self.problem}" if where else self.problem
        super().__init__("\n  ".join((summary, *self.problems)))

    def __reduce__(self) -> tuple[object, ...]:
        # Workers send errors across processes; keyword arguments do not survive the default pickling.
        return _rebuild, (self.problem, self.file, self.row, self.field, self.problems)


def _rebuild(
    problem: str, file: str | None, row: int | None, field: str | None, problems: tuple[str, ...]
) -> InputError:
    return InputError(problem, file=file, row=row, field=field, problems=problems)


class PolicyError(EbbtideError, RuntimeError):
    """An object that is no policy, a policy that raised an exception, or one that asked for something impossible.

    Described in one line: the policy, the time of the market, the market or lease, then what was wrong. An
    exception that the policy raised is the `__cause__`.

    Attributes:
        problem: What was wrong, in one line.
        policy: The policy's name, or its class's where it has none.
        time: The market's time, ISO 8601 in UTC; empty before the run began.
        about: The market or lease that it asked for; empty if it was about neither.
    """

    def __init__(self, problem: str, *, policy: str = "", time: str = "", about: str = "") -> None:
        self.problem = " ".join(problem.split())
        self.policy, self.time, self.about = policy, time, about
        who = f"policy {policy}" if policy else "a policy"
        where = [f"{who} at {time}" if time else who, *([about] if about else [])]
        super().__init__(f"{', '.join(where)}: {self.problem}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_policy_error, (self.problem, self.policy, self.time, self.about)


def _rebuild_policy_error(problem: str, policy: str, time: str, about: str) -> PolicyError:
    return PolicyError(problem, policy=policy, time=time, about=about)


class CloudError(EbbtideError):
    """The cloud does not answer, or not now: try again later.

    Attributes:
        is_refusal: Whether the cloud answered with a refusal, so that asking again at once does not help.
        is_unsent: Whether a machine was to be requested, and the request was certainly not sent.
    """

    is_refusal = False
    is_unsent = False


class CloudGoneError(CloudError):
    """The cloud has ended, and its machines with it."""


class StorageError(EbbtideError, OSError):
    """Object storage does not answer, or refused."""


class LostCheckpointError(StorageError):
    """Storage answers, and lacks a checkpoint that was stored: perhaps it is not mounted, or another is."""


class MissingObjectError(StorageError, KeyError):
    """Nothing is stored under the name.

    Attributes:
        key: The name under which nothing is stored.
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"nothing is stored as {key}")
        self.key = key

    def __reduce__(self) -> tuple[object, ...]:
        return MissingObjectError, (self.key,)


class DamagedAnswerError(StorageError):
    """Storage gives an object damaged each time that it is read, and each time in another way."""


class CheckpointError(EbbtideError):
    """A checkpoint cannot be used, or may not be written."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint's content is not what its manifest says."""


class MissingPartError(DamagedCheckpointError):
    """Storage lacks a part of a checkpoint, for good or for a moment: a store may have been lost from sight."""


class SupersededWriterError(CheckpointError):
    """Another writer has taken over the training."""


class JournalError(EbbtideError):
    """A run's journal cannot be written or read.

    Attributes:
        is_passing: Whether the same may succeed later: the disk is full, or somebody else has locked it.
    """

    is_passing = True


class JournalAwayError(JournalError):
    """The database server that keeps the journal does not answer, or lets nobody in."""


class JournalWentBackError(JournalError):
    """The database has lost what was written last: it failed over to a copy that is older.

    Attributes:
        lost_events: Number of the last events that it lost.
    """

    def __init__(self, message: str, lost_events: int) -> None:
        super().__init__(message)
        self.lost_events = lost_events


class UnusableJournalError(JournalError):
    """The journal is damaged, or its database does not allow what is needed: a retry does not help."""

    is_passing = False


class TrainingError(EbbtideError):
    """A user's program failed: which trials, their exit codes and their last lines, where they are known.

    Attributes:
        outcome: The `Outcome` of the run, with its cost, leases, charges and events; None: it is not known.
    """

    def __init__(self, problem: str, outcome: Any = None) -> None:
        super().__init__(" ".join(problem.split()))
        self.outcome = outcome


def unknown_name(kind: str, name: str, valid: Iterable[str]) -> InputError:
    """An `InputError` for a name that is none of `valid`, suggesting the nearest."""
    names = sorted(valid)
    near = get_close_matches(name[:_SHOWN], names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."
    known = ", ".join(names if len(names) <= _LISTED else [*names[:_LISTED], f"... ({len(names)} in all)"])
    return InputError(f"unknown {kind} {shown!r}{hint}; known: {known}")
