"""Messages between a controller and its machines: typed, versioned, numbered and authenticated records.

Orders go from the controller to a machine's agent, reports come back. Each is sealed with an HMAC by a key that
only that machine and the controller have. It covers the machine, the direction, the sender's boot, the number of
the record and its content. So nobody else who may write to the storage can give an order or forge a report, and a
record cannot be replayed as another one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, Union

from ebbtide.agent.config import Assignment

# Incremented whenever an older Ebbtide would misread a record; it ignores fields that it does not know. A record
# has the lowest version that can express it. Version 2 added trainings side by side.
VERSION = 2
# Limit of steps and other whole numbers.
MOST_STEPS = (1 << 60) - 1

# No object that Ebbtide writes comes near this size.
_MOST_BYTES = 4 << 20


class BadMessageError(ValueError):
    """A message cannot be read: it is torn, of a newer version, or not sealed by its supposed sender."""


class Ending(str, Enum):  # noqa: UP042 (machines may have Python 3.10, which has no StrEnum)
    """Outcome of an assignment on a machine."""

    FINISHED = "finished"  # all steps are done and saved
    LEFT = "left"  # it was asked to leave, and saved as far as it could
    FAILED = "failed"  # the program itself failed
    SUPERSEDED = "superseded"  # another machine has the trial now

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Train:
    """Order: train this, after what is trained now has been left.

    Attributes:
        assignment: What to train, and how.
        beside: Ids of the trials that are not left, but trained beside it.
    """

    kind: ClassVar[str] = "train"
    assignment: Assignment
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class SaveOrder:
    """Order: save a trial.

    Attributes:
        trial: Its id; empty: whatever is trained now, as older controllers say.
    """

    kind: ClassVar[str] = "save"
    trial: str = ""


@dataclass(frozen=True)
class Leave:
    """Order: save an assignment and leave it.

    Attributes:
        attempt: Number of the assignment.
        trial: Id of its trial, since several may have an assignment of that number; empty: any of that number, as
            older controllers write once its end was reported.
        alone: Whether a machine of its gang is gone; its program may wait forever for that machine, and is killed
            soon.
        reported: Whether its end was reported, so that an agent that does not know it need not report it again.
    """

    kind: ClassVar[str] = "leave"
    attempt: int
    trial: str = ""
    alone: bool = False
    reported: bool = False


@dataclass(frozen=True)
class Keep:
    """Order: a checkpoint is whole, since all machines of its assignment have stored theirs; drop older ones.

    Attributes:
        attempt: Number of the assignment.
        number: Number of this machine's checkpoint, which stays, as do later ones.
        trial: Id of its trial; empty: any that has an assignment of that number.
        best: Number of its checkpoint with the best metric, which stays as well; 0: as before.
    """

    kind: ClassVar[str] = "keep"
    attempt: int
    number: int
    trial: str = ""
    best: int = 0


@dataclass(frozen=True)
class Hand:
    """Order: do these tasks of an array, in this order, after those handed out before.

    Attributes:
        attempt: Number of the assignment.
        tasks: Numbers of the tasks.
        values: The value of each, which stands for `{task}` in the command.
    """

    kind: ClassVar[str] = "hand"
    attempt: int
    tasks: tuple[int, ...]
    values: tuple[str, ...]


@dataclass(frozen=True)
class End:
    """Order: save, leave, and end the machine."""

    kind: ClassVar[str] = "end"


@dataclass(frozen=True)
class Repeat:
    """Order: report again how assignments ended, since reports were lost."""

    kind: ClassVar[str] = "repeat"


@dataclass(frozen=True)
class Up:
    """Report: the agent runs.

    Attributes:
        every_s: Seconds after which it reports that again; 0: never, as agents of former versions.
    """

    kind: ClassVar[str] = "up"

    every_s: float = 0.0


@dataclass(frozen=True)
class Down:
    """Report: the agent ends."""

    kind: ClassVar[str] = "down"


@dataclass(frozen=True)
class Stranded:
    """Report: no heartbeat was seen for long, so the machine ends."""

    kind: ClassVar[str] = "stranded"


@dataclass(frozen=True)
class Rebalance:
    """Report: the cloud says that a revocation has become more likely."""

    kind: ClassVar[str] = "rebalance"


@dataclass(frozen=True)
class Noticed:
    """Report: the machine will be revoked.

    Attributes:
        taken_at_s: Announced time of the revocation, in seconds since 1970.
    """

    kind: ClassVar[str] = "notice"
    taken_at_s: float


@dataclass(frozen=True)
class Log:
    """Report: a line that a program printed, or how many lines were left out, since it prints too much.

    Attributes:
        trial: Id of its trial.
        line: The line; empty if there are lines that were left out.
        left_out: Number of lines that were left out.
    """

    kind: ClassVar[str] = "log"
    trial: str
    line: str
    left_out: int = 0


@dataclass(frozen=True)
class Restored:
    """Report: an assignment resumes.

    Attributes:
        trial: Id of the trial.
        attempt: Number of the assignment.
        step: Resume step; 0: from the beginning.
        number: Number of the checkpoint; 0: there is none.
        told_s: Time of the report, seconds since 1970 by the machine's clock; its program starts then. NaN: not
            told.
    """

    kind: ClassVar[str] = "restored"
    trial: str
    attempt: int
    step: int
    number: int
    told_s: float = math.nan


@dataclass(frozen=True)
class Stepped:
    """Report: a program has reached a step.

    Attributes:
        trial: Id of the trial.
        attempt: Number of the assignment.
        step: Highest step that it reported.
        told_s: Time at which it reported that, seconds since 1970 by the machine's clock.
        at: Step at which the metric was measured.
        metric: Value of the metric; NaN: none was reported; infinity: one that is not finite.
        began: Resume step of the assignment, as in `Restored`, which may be lost; None: not told.
        restored: Number of the checkpoint that it resumed from; 0: there was none.
    """

    kind: ClassVar[str] = "step"
    trial: str
    attempt: int
    step: int
    told_s: float
    at: int = 0
    metric: float = math.nan
    began: int | None = None
    restored: int = 0


@dataclass(frozen=True)
class Named:
    """Report: names of numbers that a program reports.

    Attributes:
        trial: Id of the trial.
        attempt: Number of the assignment.
        names: Names that were not reported before.
    """

    kind: ClassVar[str] = "fields"
    trial: str
    attempt: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Saved:
    """Report: a checkpoint is in storage.

    Attributes:
        trial: Id of the trial.
        attempt: Number of the assignment.
        step: Its step.
        number: Its number.
        size_bytes: Its size.
        began: Resume step of the assignment; None: not told.
        restored: Number of the checkpoint that it resumed from; 0: there was none.
        written_s: When it was complete on the machine, seconds since 1970 by the machine's clock; NaN: not told.
        stored_s: When it was in storage, by the same clock; NaN: not told.
        save_s: Seconds that the program took to write it; NaN: the program does not say.
        metric: Value of the trial's metric that it was saved with; NaN: not known.
        uploaded_bytes: Bytes uploaded for it, without content that storage had already; None: not told.
        lacks: A path that it lacks, since the agent may not read it; empty: it lacks none.
    """

    kind: ClassVar[str] = "saved"
    trial: str
    attempt: int
    step: int
    number: int
    size_bytes: int = 0
    began: int | None = None
    restored: int = 0
    written_s: float = math.nan
    stored_s: float = math.nan
    save_s: float = math.nan
    metric: float = math.nan
    uploaded_bytes: int | None = None
    lacks: str = ""


@dataclass(frozen=True)
class Unsaved:
    """Report: storage has refused a checkpoint, or not answered, for several tries; it is tried again.

    Attributes:
        trial: Id of the trial.
        attempt: Number of the assignment.
        step: Step of the checkpoint.
        why: The reason, in words.
    """

    kind: ClassVar[str] = "unsaved"
    trial: str
    attempt: int
    step: int
    why: str


@dataclass(frozen=True)
class Ended:
    """Report: an assignment is over on this machine.

    Attributes:
        trial: Id of the trial.
        attempt: Number of the assignment.
        how: How it ended.
        step: Step that it reached; if it left, the step of the newest stored checkpoint.
        came: Number of steps that it trained.
        number: Number of the checkpoint that it resumed from; 0: from the beginning.
        stored: Number of the newest checkpoint that it stored; 0: it stored none.
        code: Exit code of the program; None: it was never started.
        tail: The last lines that it printed.
        cannot_start: Whether its executable is missing.
        of_machine: Whether this machine failed, not the program: its disk is full, or storage is not mounted here.
        began: Resume step of the assignment; None: not told.
    """

    kind: ClassVar[str] = "ended"
    trial: str
    attempt: int
    how: Ending
    step: int
    came: int = 0
    number: int = 0
    stored: int = 0
    code: int | None = None
    tail: tuple[str, ...] = ()
    cannot_start: bool = False
    of_machine: bool = False
    began: int | None = None


@dataclass(frozen=True)
class TaskDone:
    """Report: the result of a task of an array is in storage.

    Attributes:
        trial: Id of the array.
        attempt: Number of the assignment.
        task: Number of the task.
        told_s: When it was done, seconds since 1970 by the machine's clock.
        duration_s: Real seconds that it took; 0: another machine had done it before.
        size_bytes: Size of its files as they were stored; 0: it has none, or this machine stored none.
    """

    kind: ClassVar[str] = "task-done"
    trial: str
    attempt: int
    task: int
    told_s: float
    duration_s: float = 0.0
    size_bytes: int = 0


@dataclass(frozen=True)
class TaskFailed:
    """Report: a task of an array failed.

    Attributes:
        trial: Id of the array.
        attempt: Number of the assignment.
        task: Number of the task.
        code: Exit code of its program; None: it was never started.
        tail: The last lines that it printed.
        cannot_start: Whether its executable is missing.
        of_machine: Whether this machine failed, not the program.
    """

    kind: ClassVar[str] = "task-failed"
    trial: str
    attempt: int
    task: int
    code: int | None = None
    tail: tuple[str, ...] = ()
    cannot_start: bool = False
    of_machine: bool = False


Order = Union[Train, SaveOrder, Leave, Keep, Hand, End, Repeat]  # noqa: UP007 (evaluated by Python 3.10 on machines)
OfTrial = Union[Restored, Stepped, Named, Saved, Unsaved, TaskDone, TaskFailed, Ended]  # noqa: UP007
Report = Union[Up, Down, Stranded, Rebalance, Noticed, Log, OfTrial]  # noqa: UP007
Message = Union[Order, Report]  # noqa: UP007

ORDERS: Mapping[str, type[Order]] = {
    kind.kind: kind for kind in (Train, SaveOrder, Leave, Keep, Hand, End, Repeat)
}
REPORTS: Mapping[str, type[Report]] = {
    kind.kind: kind
    for kind in (
        *(Up, Down, Stranded, Rebalance, Noticed, Log),
        *(Restored, Stepped, Named, Saved, Unsaved, TaskDone, TaskFailed, Ended),
    )
}


@dataclass(frozen=True)
class Envelope:
    """A message as it was received.

    Attributes:
        boot: Id of the sender's process.
        count: Number of the message in that process, from 1.
        epoch: Number of the controller that sent it, counted from 1; 0: an agent sent it.
        message: The message itself; None: it is of a kind that only a newer Ebbtide knows.
    """

    boot: str
    count: int
    epoch: int
    message: Message | None


@dataclass(frozen=True)
class Channel:
    """Messages in one direction between the controller and one machine.

    Attributes:
        machine: Id of the machine.
        kinds: Types of the messages by kind, `ORDERS` or `REPORTS`.
        key: Key with which messages are sealed.
    """

    machine: str
    kinds: Mapping[str, type[Message]]
    key: bytes = field(repr=False)

    def seal(self, envelope: Envelope) -> dict[str, Any]:
        """A message as plain values, sealed."""
        message = envelope.message
        assert message is not None
        content = {
            "version": _version_of(message),
            "boot": envelope.boot,
            "count": envelope.count,
            "epoch": envelope.epoch,
            **plain(message),
        }
        return content | {"mac": self._mac(content)}

    def open(self, values: Any) -> Envelope:
        """Read a message from plain values.

        Raises:
            BadMessageError: They are no message, are of a newer version, or are not sealed with the key.
        """
        if not isinstance(values, dict):
            raise BadMessageError("is no message")
        if not self.is_sealed(values):
            raise BadMessageError("is not sealed with this machine's key")
        content = {name: value for name, value in values.items() if name != "mac"}
        version = content.get("version")
        if not isinstance(version, int) or version > VERSION:
            raise BadMessageError(f"has version {version}, and this Ebbtide reads versions up to {VERSION}")
        return Envelope(
            _typed(content.get("boot"), str),
            _typed(content.get("count"), int),
            _typed(content.get("epoch"), int),
            decoded(content, self.kinds),
        )

    def is_sealed(self, values: Any) -> bool:
        """Return whether plain values are sealed with the key, whatever they contain."""
        if not isinstance(values, dict):
            return False
        content = {name: value for name, value in values.items() if name != "mac"}
        given = values.get("mac")
        try:
            return isinstance(given, str) and hmac.compare_digest(given.encode(), self._mac(content).encode())
        except (ValueError, TypeError, RecursionError, UnicodeEncodeError):
            return False

    def _mac(self, content: Mapping[str, Any]) -> str:
        return mac_of(self.key, "orders" if self.kinds is ORDERS else "reports", self.machine, content)


def _version_of(message: Message) -> int:
    """The lowest version that can express a message."""
    shares = isinstance(message, Train) and (message.assignment.share < 1.0 or bool(message.beside))
    return 2 if shares else 1


def mac_of(key: bytes, *said: Any) -> str:
    """The authentication code of plain values, independent of the order of their fields."""
    content = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, content.encode(), hashlib.sha256).hexdigest()


def key_of(run_key: bytes, machine: str) -> bytes:
    """The key of one machine of a run.

    Args:
        run_key: The run's key, which its controllers alone have.
        machine: Id of the machine.
    """
    return hmac.new(run_key, machine.encode(), hashlib.sha256).digest()


def secret_of(run_key: bytes, trial: str, attempt: int) -> bytes:
    """Compute the secret that the machines of one assignment share: 32 bytes.

    Args:
        run_key: The run's key, which only its controllers have.
        trial: Id of the trial, without the rank of a machine.
        attempt: Number of the assignment.
    """
    return hmac.new(run_key, f"secret/{trial}/{attempt}".encode(), hashlib.sha256).digest()


def covered(secret: bytes, key: bytes, trial: str, attempt: int) -> bytes:
    """Cover a secret for storage, or uncover it: it is XORed with bytes that only the key gives.

    Args:
        secret: The secret, or its covered form.
        key: The machine's key.
        trial: Id of the trial as that machine has it.
        attempt: Number of the assignment, so that no two secrets are covered alike.
    """
    cover = hmac.new(key, f"cover/{trial}/{attempt}".encode(), hashlib.sha256).digest()
    return bytes(one ^ other for one, other in zip(secret, cover, strict=True))


def read_messages(content: bytes) -> list[Any]:
    """The messages of one object, as plain values.

    Raises:
        BadMessageError: The object is torn, or holds something else.
    """
    if len(content) > _MOST_BYTES:
        raise BadMessageError(f"has {len(content):,} bytes, and {_MOST_BYTES:,} are the most")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadMessageError(f"is not JSON: {error}") from None
    if not isinstance(found, list):
        raise BadMessageError("is no list of messages")
    return found


def plain(message: Message) -> dict[str, Any]:
    """Return the content of a message as plain values that JSON can hold."""
    return {"kind": message.kind} | {each.name: _plain(getattr(message, each.name)) for each in fields(message)}


def decoded(content: Mapping[str, Any], kinds: Mapping[str, type[Message]]) -> Message | None:
    """Read a message from what `plain` gave. Unknown fields are ignored; None: its kind is unknown.

    Raises:
        BadMessageError: A field is missing or is not of its type.
    """
    kind = kinds.get(str(content.get("kind")))
    if kind is None:
        return None
    try:
        if kind is Train:
            beside = _texts(content.get("beside", []))
            return Train(Assignment.decode(_typed(content["assignment"], dict)), beside)
        known = {each.name: content[each.name] for each in fields(kind) if each.name in content}
        return kind(**{name: _READ[name](value) for name, value in known.items()})
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadMessageError(f"is no message {kind.kind!r}: {error!r}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Assignment):
        return value.encode()
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def _typed(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise BadMessageError(f"{value!r:.80} is not {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def _number(value: Any) -> float:
    return float(_typed(value, int, float))


def _whole(value: Any) -> int:
    found = int(_typed(value, int))
    if not 0 <= found <= MOST_STEPS:
        raise ValueError(f"{found} is out of range")
    return found


def _text(value: Any) -> str:
    # File names may hold bytes that are no text; a message with them could be neither stored nor printed.
    return str(_typed(value, str)).encode(errors="backslashreplace").decode()


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(each) for each in _typed(value, list))


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple(_whole(each) for each in _typed(value, list))


# Reads each field of a message, by its name: names mean the same in all messages.
_READ: Mapping[str, Any] = {
    "trial": _text,
    "attempt": _whole,
    "step": _whole,
    "number": _whole,
    "best": _whole,
    "stored": _whole,
    "size_bytes": _whole,
    "at": _whole,
    "came": _whole,
    "task": _whole,
    "tasks": _numbers,
    "values": _texts,
    "duration_s": _number,
    "told_s": _number,
    "written_s": _number,
    "stored_s": _number,
    "save_s": _number,
    "taken_at_s": _number,
    "every_s": _number,
    "metric": _number,
    "line": _text,
    "left_out": _whole,
    "why": _text,
    "lacks": _text,
    "names": _texts,
    "tail": _texts,
    "how": Ending,
    "code": lambda value: None if value is None else int(_typed(value, int)),
    "cannot_start": bool,
    "of_machine": bool,
    "alone": bool,
    "reported": bool,
    "began": lambda value: None if value is None else _whole(value),
    "uploaded_bytes": lambda value: None if value is None else _whole(value),
    "restored": _whole,
}
