"""Which controller acts for a run: the newest, wherever it runs.

Controllers of one folder are kept apart by a lock, which says nothing of a copy of the folder or of another host.
So each controller claims its run in storage by a conditional write of the next number, its epoch. An older one
sees it before its next look at cloud and storage, and stops acting; machines obey the orders of the newest epoch.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass

from ebbtide._utc import iso
from ebbtide.errors import InputError, MissingObjectError
from ebbtide.live.storage import ObjectStore, checked_key, numbers_below


class SupersededError(InputError):
    """Another controller has taken the run over."""


@dataclass(frozen=True)
class Claim:
    """A controller's claim to act for its run.

    Attributes:
        objects: Storage of the run.
        folder: Prefix of the claims of the run.
        epoch: Number of the claim, counted from 1.
    """

    objects: ObjectStore
    folder: str
    epoch: int

    @classmethod
    def take(cls, objects: ObjectStore, run: str) -> Claim:
        """Claim a run, in place of whoever has it.

        Args:
            objects: Storage of the run.
            run: Id of the run.

        Raises:
            OSError: Storage does not answer.
        """
        folder = checked_key(f"runs/{run}/controllers")
        epoch = max(numbers_below(objects, folder), default=0) + 1
        about = {"host": socket.gethostname(), "process": os.getpid(), "since": iso(time.time())}
        while not objects.put_once(f"{folder}/{epoch:06d}", json.dumps(about).encode()):
            epoch += 1
        return cls(objects, folder, epoch)

    def check(self) -> None:
        """Make sure that nobody has claimed the run since.

        Raises:
            SupersededError: Another controller has.
            OSError: Storage does not answer.
        """
        key = f"{self.folder}/{self.epoch + 1:06d}"
        if self.objects.has(key):
            raise SupersededError(f"another controller has taken this run over{self._who(key)}; this one ends")

    def _who(self, key: str) -> str:
        try:
            about = json.loads(self.objects.get(key))
            return f": process {int(about['process'])} on host {about['host']}, since {about['since']}"
        except (OSError, MissingObjectError, ValueError, KeyError, TypeError):
            return ""
