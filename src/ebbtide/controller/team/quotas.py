"""Reservations of machines under a team's quotas: a table that one controller at a time may change.

Each version of the table is an object with the next number, written only if there is none yet. So if two
controllers see the same four free machines, one gets them, and the other sees the new table before it tries
again. Old versions are deleted; the newest never is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from ebbtide.controller.team.account_book import amount
from ebbtide.errors import MissingObjectError, StorageError
from ebbtide.storage.object_keys import checked_key
from ebbtide.storage.objects import ObjectStore, decoded_object, numbers_below, stored_from

_LOGGER = logging.getLogger(__name__)

_FOLDER = "quotas"
# Versions to keep. A writer that was held up for more changes than this finds a newer version after its write.
_KEPT = 32
# Tries of one write, each of which fails only if somebody else has just changed the table.
_TRIES = 20


@dataclass(frozen=True)
class Reservation:
    """Machines that a run has reserved, or rents.

    Attributes:
        owner: Name of whoever pays for them; empty: nobody was named.
        machines: Number of machines.
        at_epoch_s: When the reservation was written, seconds since 1970.
        unattended_s: Seconds without a controller after which they end.
    """

    owner: str
    machines: int
    at_epoch_s: float
    unattended_s: float


@dataclass
class QuotaBook:
    """The reservations of all runs of a team.

    Attributes:
        objects: The common store.
    """

    objects: ObjectStore
    # Unreadable versions that were already warned of.
    _torn: set[int] = field(default_factory=set, init=False, repr=False)

    def table(self) -> dict[str, Reservation]:
        """The reservations now, by the name of the run's account.

        Raises:
            OSError: The store does not answer.
        """
        return self._newest()[1]

    def write(
        self, name: str, wanted: Reservation, fits: Callable[[dict[str, Reservation]], bool] = lambda _others: True
    ) -> bool:
        """Replace a run's reservation; one of no machines is removed.

        Args:
            name: Name of the run's account.
            wanted: The new reservation.
            fits: Tells whether it fits beside the others' reservations, and may remove those that no longer count.

        Returns:
            Whether it fits, and was written.

        Raises:
            OSError: The store does not answer, or others write all the time.
        """
        for _ in range(_TRIES):
            number, table = self._newest()
            table.pop(name, None)
            if not fits(table):
                return False
            content = table | ({name: wanted} if wanted.machines else {})
            encoded = json.dumps({one: asdict(kept) for one, kept in content.items()}).encode()
            if not self.objects.put_once(_key(number + 1), encoded):
                continue
            # A writer that was held up before the write may have filled a gap among old versions.
            if max(self._numbers(), default=0) > number + _KEPT:
                continue
            if number >= _KEPT:
                self.objects.delete(_key(number + 1 - _KEPT))
            return True
        raise StorageError(f"{_FOLDER} of the team's store is written by others all the time")

    def has(self, name: str, machines: int) -> bool:
        """Return whether a run has reserved at least so many machines.

        Raises:
            OSError: The store does not answer.
        """
        found = self._newest()[1].get(name)
        return machines == 0 or (found is not None and found.machines >= machines)

    def _numbers(self) -> set[int]:
        """Numbers of the versions that still have a predecessor; others are the oldest, or not a controller's."""
        found = numbers_below(self.objects, _FOLDER)
        return {number for number in found if number == 1 or number - 1 in found}

    def _newest(self) -> tuple[int, dict[str, Reservation]]:
        """The number of the newest version, and its table; of what is damaged in that, the version before it.

        Raises:
            StorageError: All listed versions are gone, so the listing is some time old.
        """
        listed = sorted(self._numbers(), reverse=True)
        newest = first = listed[0] if listed else 0
        # A listing may not show the newest versions for minutes, and each can be asked for by name.
        newest += sum(1 for _ in stored_from(self.objects, _key, newest + 1))
        is_torn, table, unread = False, dict[str, Reservation](), None
        for number in (*range(newest, first, -1), *listed):
            try:
                found, damaged = decoded_object(self.objects, _key(number), _decoded)
                table |= {name: one for name, one in found.items() if unread is None or name in unread}
                if unread is not None or not damaged:
                    return newest, table
                unread = damaged
            except MissingObjectError:
                continue
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
                is_torn = True
                if number not in self._torn:
                    self._torn.add(number)
                    _LOGGER.warning("%s of the team's store cannot be read: %s; passed over", _key(number), error)
        if newest and not is_torn and unread is None:
            raise StorageError(f"{_FOLDER} of the team's store is listed as it was a while ago")
        return newest, table


def _key(number: int) -> str:
    return checked_key(f"{_FOLDER}/{number:08d}")


def _decoded(content: bytes) -> tuple[dict[str, Reservation], set[str]]:
    """Decode a table; returns it, and the names of entries that cannot be read, which hide no others."""
    found, damaged = {}, set()
    for name, values in json.loads(content).items():
        try:
            if not isinstance(values["owner"], str):
                raise TypeError("owner is no text")
            found[name] = Reservation(
                values["owner"],
                int(amount(values, "machines")),
                amount(values, "at_epoch_s"),
                amount(values, "unattended_s"),
            )
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            damaged.add(name)
            _LOGGER.warning("the reservation of %s in the team's store cannot be read: %s", name, error)
    return found, damaged
