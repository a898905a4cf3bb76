"""Requests a run's machines from its cloud, but only while no other controller has taken the run over."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ebbtide.agent.config import AgentConfig
from ebbtide.agent.protocol import key_of
from ebbtide.base.runtime import Runtime
from ebbtide.clouds.cloud import Cloud, MachineRequest
from ebbtide.controller.leadership import (
    Leadership,
    MachineNumbers,
    NumberRecord,
    SupersededError,
    newest_claim,
    older_copy,
)
from ebbtide.controller.machine_list import MachineList
from ebbtide.errors import CloudError, CloudGoneError, InputError
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market
from ebbtide.storage.objects import ObjectStore

_LOGGER = logging.getLogger(__name__)

# Seconds to spend on requests at one poll, before everything else gets its turn.
_REQUESTING_S = 3.0
# Seconds between two requests that are made although the boots before have failed.
_TRIED_EVERY_S = 3600.0
# Reason of a request that is kept back.
_NO_QUOTA = "the team's quota leaves no room for it"


@dataclass(frozen=True)
class RefusedRequest:
    """A request for a machine that is not made again.

    Attributes:
        lease_id: Id of its lease.
        why: Reason in words.
        may_exist: Whether an earlier request for the machine may have reached the cloud.
    """

    lease_id: int
    why: str
    may_exist: bool = False


class MachineRequests:
    """Machines that a run has requested, and those it has yet to request.

    Args:
        cloud: The cloud that rents them out.
        machines: The run's machines, as the cloud lists them.
        objects: Storage of the run.
        agent: Configuration of all agents; the machine is filled in.
        key: The run's key, from which its machines' keys are derived.
        waits: Called before each request.
        holds: Tells whether the team's quotas allow so many machines in all; called before requests.
        is_at_work: Tells whether a machine of the run trains, which a problem of new ones must not end.
        runtime: Gives the time.

    Attributes:
        leases: Leases of all machines ever requested, or yet to be, by id.
        waiting: Ids of the leases whose request may not have reached the cloud.
        refused: Requests that were refused in a way that only the user can change, or not made, while other zones
            may still be asked, or other machines are at work; for the provider to take.
        is_superseded: Whether another controller acts for the run.
    """

    def __init__(
        self,
        cloud: Cloud,
        machines: MachineList,
        objects: ObjectStore,
        agent: AgentConfig,
        key: bytes,
        waits: Callable[[], None],
        holds: Callable[[int], bool],
        is_at_work: Callable[[], bool],
        runtime: Runtime,
    ) -> None:
        self._cloud, self._machines, self._agent, self._key = cloud, machines, agent, key
        self._waits, self._holds, self._is_at_work, self._runtime = waits, holds, is_at_work, runtime
        self._claim: Leadership | None = None
        self.numbers = MachineNumbers(objects, agent.run, key)
        self.leases: dict[int, Lease] = {}
        self.waiting: deque[int] = deque()
        # Leases that the journal does not have yet: their machines would be unknown to the next controller.
        self._unwritten = set[int]()
        self.refused: deque[RefusedRequest] = deque()
        self.is_superseded = False
        # Zones, each with its region and cloud, that refused in such a way.
        self._closed: set[tuple[str, str, str]] = set()
        # Machines whose id in the run is not known, which were warned of.
        self._unknown = set[str]()
        # Error for which machines are requested only once an hour (None: there is none), and when the last was.
        self._stopped: InputError | None = None
        self._tried_s = 0.0
        # Since when a waiting lease's request had no answer, and the last error, by lease id.
        self._unanswered: dict[int, tuple[float, str]] = {}
        # Waiting leases whose machines may exist, since a request for them may have reached the cloud.
        self._sent = set[int]()
        # Markets in which no machines are requested.
        self._aside = frozenset[Market]()

    def add(self, lease: Lease) -> None:
        """Queue a machine to be requested once the journal has its lease."""
        self.leases[lease.lease_id] = lease
        self.waiting.append(lease.lease_id)
        self._unwritten.add(lease.lease_id)

    def written(self) -> None:
        """Note that the journal has all leases added so far."""
        self._unwritten.clear()

    def restore(self, leases: Mapping[int, Lease], numbers: NumberRecord) -> None:
        """Continue with the leases of a snapshot."""
        self.leases.clear()
        self.leases.update(leases)
        self.numbers.restore(numbers)

    def repeat(self, waiting: Iterable[int]) -> None:
        """Continue with the requests of a snapshot, and repeat those that may not have reached the cloud."""
        self.waiting.extend(waiting)
        asked = set(self.waiting)
        self.waiting.extend(
            lease_id
            for lease_id, lease in self.leases.items()
            if lease.state is LeaseState.REQUESTED and lease_id not in asked
        )
        self._sent.update(self.waiting)

    def check_is_newest(self) -> None:
        """Refuse to act if this is an older copy of the run, which would end another controller's machines.

        If the cloud does not answer, later polls make the same check.

        Raises:
            SupersededError: A machine was rented after this copy of the run's folder was made.
            OthersRunError: Somebody else has a run of this name in its storage.
            OSError: Storage does not answer.
        """
        with self._told_if_superseded():
            newest_claim(self.numbers.objects, self.numbers.run, self._key)
            self.numbers.check(self._newest)
            with suppress(CloudError):
                self._check_known(self._machines.listed())

    def begin_at(self, number: int) -> None:
        """Number machines from here on: lower numbers belong to a journal that was lost."""
        self._machines.first = self.numbers.next = number

    def claim(self, claim: Leadership) -> None:
        """Act only while this claim to the run is the newest. Until a claim is given, none is checked."""
        self._claim = claim
        self.numbers.begin(self._newest + 1, claim.epoch)

    def check_claim(self) -> None:
        """Make sure that no other controller has taken the run over.

        Raises:
            SupersededError: Another controller has.
            OSError: Storage does not answer.
        """
        with self._told_if_superseded():
            if self._claim is not None:
                self._claim.check()

    def check_listed(self, tokens: Iterable[str]) -> None:
        """Make sure that the journal has every machine of the run that the cloud lists.

        Raises:
            SupersededError: A listed machine is not in the journal.
        """
        with self._told_if_superseded():
            self._check_known(tokens)

    def unanswered(self, lease_id: int, within_s: float) -> str:
        """Return why a waiting request had no answer for so many seconds; empty: it waits for less than that."""
        since_s, why = self._unanswered.get(lease_id, (math.inf, ""))
        return why if self._runtime.monotonic_s() - since_s >= within_s else ""

    def is_unsent(self, lease_id: int) -> bool:
        """Return whether no request for a waiting machine can have reached the cloud."""
        return lease_id in self.waiting and lease_id not in self._sent

    def withdraw(self, lease_id: int) -> bool:
        """Request a waiting machine no more; returns whether a request may have got through."""
        with suppress(ValueError):
            self.waiting.remove(lease_id)
        self._unanswered.pop(lease_id, None)
        may_exist = lease_id in self._sent
        self._sent.discard(lease_id)
        return may_exist

    def set_silent_aside(self, within_s: float) -> None:
        """Request no machines in markets whose part of the cloud has not answered for long while others did.

        Args:
            within_s: Time for which an answer is waited for, seconds.
        """
        now_s, silent_since_s = self._runtime.monotonic_s(), self._machines.silent_since_s
        others_answer = bool(silent_since_s) and len(silent_since_s) < len(self._cloud.markets)
        self._aside = frozenset(
            market
            for market, since_s in silent_since_s.items()
            if market in self._aside or (others_answer and now_s - since_s >= within_s)
        )

    def request_all(self, unended: int = 0) -> None:
        """Request the waiting machines whose leases the journal has, as many as a few seconds allow.

        Args:
            unended: Number of machines that run although their end was requested.

        Raises:
            SupersededError: Another controller has rented under their numbers.
            CloudGoneError: The cloud is gone.
            InputError: No machine is at work, and every zone refuses in a way that only the user can change, such
                as missing permissions; or `stop` was called.
        """
        if not any(self.leases[lease_id].is_open for lease_id in self.waiting):
            # Leases that ended before their request need no numbers from storage, which may be on a full disk.
            self.waiting.clear()
            return
        due = [lease_id for lease_id in self.waiting if lease_id not in self._unwritten]
        if not due:
            return
        if self._stopped is not None:
            if not self._is_at_work():
                raise self._stopped
            # One is requested now and then: what the problem was may have passed.
            now_s = self._runtime.monotonic_s()
            is_tried = now_s - self._tried_s >= _TRIED_EVERY_S
            for lease_id in due[is_tried:]:
                may_exist = self.withdraw(lease_id)
                self.refused.append(RefusedRequest(lease_id, str(self._stopped), may_exist))
            if not is_tried:
                return
            due, self._tried_s = due[:1], now_s
        if not self._holds(unended + sum(lease.is_open for lease in self.leases.values())):
            self._wait_for_quota(due)
            return
        if self._claim is not None:
            try:
                with self._told_if_superseded():
                    self.numbers.take(self._machines.first + max(due))
            except OSError as error:
                self._machines.troubled(error)
                return
        until_s = self._runtime.monotonic_s() + _REQUESTING_S
        for lease_id in due:
            # Thousands of requests take a while, and everything else waits for them.
            if self._runtime.monotonic_s() >= until_s:
                break
            lease = self.leases[lease_id]
            if lease.is_open and lease.market in self._aside and lease_id not in self._sent:
                self.withdraw(lease_id)
                why = f"cloud {lease.market.cloud} does not answer for {lease.market.zone}"
                self.refused.append(RefusedRequest(lease_id, why))
                continue
            self._waits()
            self.waiting.remove(lease_id)
            try:
                self._request(lease)
            except CloudGoneError:
                self.waiting.append(lease_id)
                raise
            except CloudError as error:
                self._machines.troubled(error)
                self.waiting.append(lease_id)
                since_s, before = self._unanswered.get(lease_id, (math.inf, _NO_QUOTA))
                since_s = self._runtime.monotonic_s() if before == _NO_QUOTA else since_s
                self._unanswered[lease_id] = since_s, str(error)
                if not error.is_unsent:
                    self._sent.add(lease_id)
            except InputError as error:
                self.refuse(lease_id, error)
            else:
                self._unanswered.pop(lease_id, None)
                self._sent.discard(lease_id)

    def _wait_for_quota(self, due: Iterable[int]) -> None:
        """Keep back requests that the team's quotas do not allow; those whose machines came are done."""
        now_s = self._runtime.monotonic_s()
        for lease_id in due:
            if self.leases[lease_id].state is LeaseState.REQUESTED:
                self._unanswered.setdefault(lease_id, (now_s, _NO_QUOTA))
            else:
                self.withdraw(lease_id)

    def stop(self, error: InputError) -> None:
        """Request one machine an hour until `go_on` is called; raise the error once no machine is at work."""
        if not self._is_at_work():
            raise error
        if self._stopped is None:
            _LOGGER.warning(
                "%s; machines that train go on, and one more is requested each hour until one begins", error
            )
        self._stopped, self._tried_s = error, self._runtime.monotonic_s()

    def go_on(self) -> None:
        """Request machines again after `stop`."""
        self._stopped = None

    def granted(self, lease: Lease) -> None:
        """Open a lease's zone again, since it has given a machine: an accepted request may be refused later."""
        self._closed.discard(_zone_of(lease.market))

    def refuse(self, lease_id: int, error: InputError) -> None:
        """Count a zone as closed; raise the error if no other is left, and no machine is at work."""
        zone = _zone_of(self.leases[lease_id].market)
        is_last = {*map(_zone_of, self._cloud.markets)} <= {*self._closed, zone}
        if is_last and not self._is_at_work():
            self.waiting.append(lease_id)
            raise error
        if zone not in self._closed:
            others = "the machines that train go on" if is_last else "other zones are asked"
            _LOGGER.warning("%s; %s", error, others)
        self._closed.add(zone)
        self.refused.append(RefusedRequest(lease_id, str(error), self.withdraw(lease_id)))

    def _request(self, lease: Lease) -> None:
        if not lease.is_open:
            return
        token = self._machines.token(lease.lease_id)
        agent = {**vars(self._agent), "machine": token, "key": key_of(self._key, token).hex()}
        self._cloud.launch(
            MachineRequest(token, lease.market, lease.max_price_usd_per_hour, lease.on_demand, agent)
        )

    @property
    def _newest(self) -> int:
        """Number of the newest machine of the run; -1: it has none yet."""
        return self._machines.first + max(self.leases, default=-1)

    def _check_known(self, tokens: Iterable[str]) -> None:
        for token in tokens:
            lease_id = self._machines.lease_id_of(token)
            if lease_id is None:
                # Somebody has changed its tags; without heartbeats it ends itself.
                if token not in self._unknown:
                    self._unknown.add(token)
                    _LOGGER.warning("machine %s has the run's tag but no machine's id; it is not counted", token)
            elif lease_id >= 0 and lease_id not in self.leases:
                raise older_copy(f"machine {token} of this run is not in its journal", is_empty=not self.leases)

    @contextmanager
    def _told_if_superseded(self) -> Iterator[None]:
        """Remember that another controller acts for the run, so that this one ends none of its machines."""
        try:
            yield
        except SupersededError:
            self.is_superseded = True
            raise


def _zone_of(market: Market) -> tuple[str, str, str]:
    return market.cloud, market.region, market.zone
