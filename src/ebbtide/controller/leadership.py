"""Claims of controllers to a run: only the controller with the newest claim acts, whatever host it is on.

A lock keeps two controllers of one folder apart, but does not cover a copy of the folder or another host. So each
controller also claims its run in storage, by a conditional write of the next number, its epoch. An older
controller sees the new claim at its next poll and stops acting; machines obey the orders of the newest epoch.

Between two polls both may act. So machine numbers are allocated by conditional writes, too: if two controllers
continue from copies of one folder, only one gets the next number, and the other's copy is out of date for good.

Claims and numbers are sealed with the run's key, which machines do not have; objects sealed otherwise are ignored.
But if all claims under a run's name have another seal, the name is somebody else's, and the run is refused.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import time
from dataclasses import dataclass, field, replace
from typing import Any

from typing_extensions import TypedDict

from ebbtide.agent.protocol import mac_of
from ebbtide.base.utc import iso
from ebbtide.errors import InputError, MissingObjectError, StorageError
from ebbtide.storage.object_keys import checked_key
from ebbtide.storage.objects import ObjectStore, decoded_object, numbers_below, stored_from


class SupersededError(InputError):
    """Another controller has taken the run over, or rented machines that this one does not know."""


class LostClaimError(StorageError):
    """Storage lacks a claim that was written: a folder may not be mounted any more."""


class OthersRunError(InputError):
    """Storage has a run of this name that belongs to somebody else."""


class LostJournalError(SupersededError):
    """The run's journal records no machine, though the run has rented some."""


def older_copy(what: str, *, is_empty: bool) -> SupersededError:
    """The error for a journal that is older than storage.

    Args:
        what: Evidence that the journal is older, in words.
        is_empty: Whether the journal records no machine at all.
    """
    if is_empty:
        return LostJournalError(
            f"{what}, and the run's journal records no machine: it was lost, or its database is empty or has gone "
            "back in time; `ebbtide resume RUN --from-storage` goes on from its checkpoints with a new journal, "
            "`ebbtide down` ends its machines"
        )
    return SupersededError(
        f"{what}: this folder is an older copy; resume the run where it ran last. If there is no such place, "
        "since its journal's database has gone back in time, `ebbtide resume RUN --from-storage` goes on from its "
        "checkpoints with a new journal"
    )


@dataclass(frozen=True)
class Leadership:
    """A controller's claim to act for its run.

    Attributes:
        objects: Storage of the run.
        folder: Prefix of the claims of the run.
        epoch: Number of the claim, counted from 1.
        key: The run's key.
    """

    objects: ObjectStore
    folder: str
    epoch: int
    key: bytes = field(repr=False)

    @classmethod
    def take(cls, objects: ObjectStore, run: str, key: bytes, known: int = 0) -> Leadership:
        """Claim a run, superseding any earlier controller.

        Args:
            objects: Storage of the run.
            run: Id of the run.
            key: The run's key.
            known: Number of a claim that was written, whether storage still has it or not.

        Raises:
            OthersRunError: The run is somebody else's.
            OSError: Storage does not answer.
        """
        folder, epoch = _claims_of(run), max(newest_claim(objects, run, key), known) + 1
        while not objects.put_once(name := f"{folder}/{epoch:06d}", _sealed(name, _about(), key)):
            # The claim that came first may be that of another run of the same name, which begins now.
            newest_claim(objects, run, key)
            epoch += 1
        return cls(objects, folder, epoch, key)

    def check(self) -> None:
        """Make sure that nobody has claimed the run since.

        Raises:
            SupersededError: Another controller has.
            OSError: Storage does not answer.
        """
        for name in stored_from(self.objects, lambda epoch: f"{self.folder}/{epoch:06d}", self.epoch + 1):
            about = _opened(self.objects, name, self.key)
            if about is not None:
                raise SupersededError(f"another controller has taken this run over{_named(about)}; this one ends")


def check_has_claim(objects: ObjectStore, run: str, epoch: int) -> None:
    """Make sure that storage has a claim that was written.

    Args:
        objects: Storage of the run.
        run: Id of the run.
        epoch: Number of the claim; 0: there is none.

    Raises:
        LostClaimError: Storage lacks it.
        OSError: Storage does not answer.
    """
    if epoch and not objects.has(name := f"{_claims_of(run)}/{epoch:06d}"):
        raise LostClaimError(f"storage lacks {name}, which this run wrote there: is it mounted?")


def newest_claim(objects: ObjectStore, run: str, key: bytes) -> int:
    """Number of the newest claim that is sealed with the run's key; 0: it was never claimed.

    Args:
        objects: Storage of the run.
        run: Id of the run.
        key: The run's key.

    Raises:
        OthersRunError: It was claimed with other keys only.
        OSError: Storage does not answer.
    """
    folder, others = _claims_of(run), ""
    for epoch in sorted(numbers_below(objects, folder), reverse=True):
        found, is_sealed = _read(objects, f"{folder}/{epoch:06d}", key)
        if is_sealed:
            return epoch
        others = others or _named(found)
    if others:
        raise OthersRunError(
            f"storage has a run {run} already that is somebody else's{others}; begin this one anew under "
            "another name, or, if it is that one, put back its own file `key`"
        )
    return 0


class NumberRecord(TypedDict):
    """Numbers of machines as plain values.

    Attributes:
        next: First number that this copy of the run was not given yet.
        epochs: Pairs of a number and the epoch of the controller that asked for machines from that number on.
    """

    next: int
    epochs: list[tuple[int, int]]


@dataclass
class MachineNumbers:
    """The numbers of a run's machines, each given to one controller only.

    Attributes:
        objects: Storage of the run.
        run: Id of the run.
        key: The run's key.
        next: First number that this copy of the run was not given yet.
        epochs: Pairs of a number and the epoch of the controller that asked for machines from that number on.
    """

    objects: ObjectStore
    run: str
    key: bytes = field(repr=False)
    next: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)

    def begin(self, first: int, epoch: int) -> None:
        """Note that the controller of this epoch asks for machines from number `first` on."""
        self.epochs = [*(pair for pair in self.epochs if pair[0] < first), (first, epoch)]

    def check(self, newest: int) -> None:
        """Make sure that nobody was given numbers after `newest`, the last that this copy of the run knows.

        Raises:
            SupersededError: Somebody was.
            OSError: Storage does not answer.
        """
        found = self._taken()[1]
        if found is not None:
            self._check_ours(found, newest)

    @property
    def newest_epoch(self) -> int:
        """Number of the newest claim that this copy of the run knows of; 0: it knows of none."""
        return max((epoch for _, epoch in self.epochs), default=0)

    def take(self, newest: int) -> None:
        """Take the numbers up to `newest` before their machines are requested; repeating the call is harmless.

        Raises:
            SupersededError: Another controller was given one of them.
            OSError: Storage does not answer.
        """
        while self.next <= newest:
            later = [number for number, _ in self.epochs if self.next < number <= newest]
            last = min(later) - 1 if later else newest
            name, found = self._taken()
            if found is not None:
                # It may be our own, if the reply was lost, or our controller was killed after the write.
                last = self._check_ours(found, newest)
            elif not self.objects.put_once(
                name, _sealed(name, {**_about(), "epoch": self._epoch, "last": last}, self.key)
            ):
                raise StorageError(f"{name} was stored by somebody else meanwhile")
            self.next = last + 1

    def first_free(self) -> int:
        """The first number that nobody was given.

        Raises:
            OSError: Storage does not answer.
        """
        taken = replace(self)
        while (found := taken._taken()[1]) is not None:
            last = found.get("last")
            taken.next = max(last if isinstance(last, int) else taken.next, taken.next) + 1
        return taken.next

    def record(self) -> NumberRecord:
        """The numbers as plain values."""
        return {"next": self.next, "epochs": self.epochs}

    def restore(self, kept: NumberRecord) -> None:
        """Continue from plain values that `record` gave."""
        self.next = kept["next"]
        self.epochs = [(number, epoch) for number, epoch in kept["epochs"]]

    @property
    def _epoch(self) -> int:
        """The epoch of the controller that asked for the machine with the next number."""
        return max((pair for pair in self.epochs if pair[0] <= self.next), default=(0, 0))[1]

    def _taken(self) -> tuple[str, dict[str, Any] | None]:
        """Key of the object that says who was given the next number, and its content; None: nobody was."""
        name, passed = f"runs/{self.run}/rented/{self.next:08d}", 0

        def key_of(passed: int) -> str:
            return checked_key(f"{name}-{passed}" if passed else name)

        for here in stored_from(self.objects, key_of, 0):
            found = _opened(self.objects, here, self.key)
            if found is not None:
                return here, found
            passed += 1
        return key_of(passed), None

    def _check_ours(self, found: dict[str, Any], newest: int) -> int:
        """Check that an allocation is our own, and return its last number."""
        last = found.get("last")
        if found.get("epoch") != self._epoch or not isinstance(last, int) or not self.next <= last <= newest:
            what = f"machine {self.next} of this run was rented by another controller{_named(found)}"
            raise older_copy(what, is_empty=newest < 0)
        return last


def _about() -> dict[str, Any]:
    """Describe this process: its host, its id and the time."""
    return {"host": socket.gethostname(), "process": os.getpid(), "since": iso(time.time())}


def _sealed(name: str, content: dict[str, Any], key: bytes) -> bytes:
    """Content of an object, with a seal that is valid only under its name."""
    return json.dumps({**content, "mac": mac_of(key, name, content)}).encode()


def _opened(objects: ObjectStore, name: str, key: bytes) -> dict[str, Any] | None:
    """The content of an object; None: it is missing, or not sealed with the key."""
    found, is_sealed = _read(objects, name, key)
    return found if is_sealed else None


def _read(objects: ObjectStore, name: str, key: bytes) -> tuple[dict[str, Any], bool]:
    """The content of an object, empty if it has no seal, and whether it is sealed with the key."""

    def decode(content: bytes) -> tuple[dict[str, Any], bytes]:
        found = json.loads(content)
        return found, found.pop("mac").encode()

    try:
        found, given = decoded_object(objects, name, decode)
        return found, hmac.compare_digest(given, mac_of(key, name, found).encode())
    except (MissingObjectError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}, False


def _claims_of(run: str) -> str:
    return checked_key(f"runs/{run}/controllers")


def _named(about: Any) -> str:
    """Describe in words the process that wrote an object; empty: it is not known."""
    try:
        return f": process {int(about['process'])} on host {about['host']}, since {about['since']}"
    except (ValueError, KeyError, TypeError):
        return ""
