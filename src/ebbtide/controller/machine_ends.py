"""Ends a run's machines and checks that they have ended; refused requests are noted, shown and repeated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from ebbtide.base.runtime import Runtime
from ebbtide.clouds.cloud import Cloud, Instance
from ebbtide.clouds.parts import PartlySilentError
from ebbtide.controller.machine_list import OVER, MachineList, end_of, note_times
from ebbtide.errors import CloudError, CloudGoneError
from ebbtide.market.leases import Lease, LeaseState

# Real seconds to request a machine's end before the run continues without an answer, and between last requests.
_ENDS_WITHIN_S, _ASKED_AGAIN_S = 5.0, 0.5
# After a request to end a machine had no answer, no other is made for this many seconds.
_SILENT_S = 5.0
# While machines are ended, a listing is good for this many seconds.
_LISTED_AGAIN_S = 1.0
# Seconds after which a cloud lists every machine that it was asked for, and that still runs.
_LISTED_WITHIN_S = 30.0
# The same of a machine of which the cloud refuses the end: it is gone if it is missing for as long as in a run.
_GONE_WITHIN_S = 120.0


class MachineEnds:
    """The ends of machines.

    Args:
        cloud: The cloud that rents them out.
        machines: The run's machines, as the cloud lists them.
        poll_s: Seconds between retries of a request that is not answered.
        refused: Called with the id of a lease whose machine the cloud did not end.
        waits: Called while an answer is waited for.
        runtime: Gives the time, and waits.

    Attributes:
        unended: Reason why the cloud did not end a machine, by lease id.
    """

    def __init__(
        self,
        cloud: Cloud,
        machines: MachineList,
        poll_s: float,
        refused: Callable[[int], None],
        waits: Callable[[], None],
        runtime: Runtime,
    ) -> None:
        self._cloud, self._machines, self._poll_s = cloud, machines, poll_s
        self._refused, self._waits, self._runtime = refused, waits, runtime
        self.unended: dict[int, str] = {}
        # Leases whose machines were ended and not seen to have ended: the cloud may list them later. And since
        # when the cloud, or the part of it that rents them out, has answered without listing them, by lease id.
        self._unconfirmed = set[int]()
        self._unlisted_since_s: dict[int, float] = {}
        # Leases whose machines' last request to end was refused, or not answered.
        self._refused_again = set[int]()
        self._silent_until_s = -math.inf

    def restore(self, unended: Iterable[tuple[int, str]], leases: Mapping[int, Lease]) -> None:
        """Continue from a snapshot of `unended` and of the run's leases, by id."""
        self.unended = dict(unended)
        since_s = self._cloud.now_s - _LISTED_WITHIN_S
        ended = {lease_id for lease_id, lease in leases.items() if not lease.is_open and lease.ended_s >= since_s}
        self._unconfirmed = ended.union(self.unended)

    def end(self, lease: Lease) -> None:
        """End the machine of a lease, and note how and when it ended as far as that is known.

        If there is no answer, the request is repeated for a while, and again at later polls.
        """
        ended_s, instance = self._ended(lease)
        if instance is not None:
            note_times(lease, instance)
        lease.state = LeaseState.RELEASED if lease.is_charged else LeaseState.FAILED
        if instance is not None and instance.state is LeaseState.REVOKED:
            # Revoked before it could be released, which may cost a different amount.
            lease.state = LeaseState.REVOKED
        lease.ended_s = end_of(lease, ended_s if ended_s is not None else self._cloud.now_s)
        if instance is None or instance.state not in OVER:
            self._unconfirmed.add(lease.lease_id)

    def _ended(self, lease: Lease) -> tuple[float | None, Instance | None]:
        """Request the end; returns its time, and the machine as the cloud has it, each None if not known."""
        machines, runtime = self._machines, self._runtime
        token = machines.token(lease.lease_id)
        now_s = runtime.monotonic_s()
        until_s = now_s + (0.0 if self.unended or machines.trouble else _ENDS_WITHIN_S)
        while True:
            try:
                if self.unended and now_s < self._silent_until_s:
                    # Many machines may be waiting to end, and each request without an answer takes seconds.
                    raise CloudError(machines.trouble or "the cloud does not answer")
                ended_s = self._cloud.terminate(token)
                self._silent_until_s = -math.inf
                # If the cloud knows no such machine, an earlier listing cannot be trusted.
                instance = machines.listed(0.0 if ended_s is None else _LISTED_AGAIN_S).get(token)
                if ended_s is None and instance is None and lease.is_charged:
                    # The cloud no longer knows the machine, so it was gone before.
                    ended_s = machines.last_seen_s(lease)
                return ended_s, instance
            except CloudError as error:
                if isinstance(error, CloudGoneError):
                    return None, None
                machines.troubled(error)
                if not error.is_refusal and now_s >= self._silent_until_s:
                    self._silent_until_s = runtime.monotonic_s() + _SILENT_S
                if error.is_refusal or runtime.monotonic_s() >= until_s:
                    self.unended[lease.lease_id] = str(error)
                    self._refused(lease.lease_id)
                    return None, None
                self._waits()
                runtime.sleep(self._poll_s)

    def differs(self, lease: Lease, instance: Instance | None) -> bool:
        """Check the machine of an ended lease; if it still runs, request its end again.

        Returns:
            Whether it ended in another way than it was charged for; the lease is then corrected.
        """
        lease_id = lease.lease_id
        if instance is None:
            return self._differs_unlisted(lease)
        self._unlisted_since_s.pop(lease_id, None)
        if instance.state not in OVER:
            self._try_to_end(lease_id, instance.token)
            return False
        self.unended.pop(lease_id, None)
        self._unconfirmed.discard(lease_id)
        before = lease.state, lease.started_s, lease.ended_s
        note_times(lease, instance)
        ended_s = lease.ended_s if math.isnan(instance.ended_s) else instance.ended_s
        lease.state, lease.ended_s = instance.state, end_of(lease, ended_s)
        now = lease.state, lease.started_s, lease.ended_s
        # A lease that was never charged has a start of NaN, which equals nothing.
        return lease.is_charged and now != before

    def _try_to_end(self, lease_id: int, token: str) -> None:
        try:
            self._cloud.terminate(token)
        except CloudError as error:
            self._machines.troubled(error)
            self.unended[lease_id] = str(error)
            self._refused_again.add(lease_id)
        else:
            self._refused_again.discard(lease_id)

    def _differs_unlisted(self, lease: Lease) -> bool:
        """The same for a machine that the cloud no longer lists: it ended when it was last seen."""
        if not self._is_long_unlisted(lease.lease_id):
            if lease.lease_id in self.unended:
                # An old list may lack it, and no request to end it was accepted.
                self._try_to_end(lease.lease_id, self._machines.token(lease.lease_id))
            return False
        was_assumed = self.unended.pop(lease.lease_id, None) is not None
        seen_s = self._machines.seen_s.get(lease.lease_id, math.inf)
        if not was_assumed or not lease.is_charged or seen_s >= lease.ended_s:
            return False
        lease.ended_s = end_of(lease, seen_s)
        return True

    def end_remaining(
        self, leases: Mapping[int, Lease], within_s: float, refused_within_s: float, looked: Callable[[], None]
    ) -> dict[int, Lease]:
        """After the run, end machines that have not ended yet, and check how all ended.

        Args:
            leases: All leases of the run, by id.
            within_s: Real seconds after which this is given up.
            refused_within_s: The same for as long as the cloud refuses, or does not answer.
            looked: Called after each look.

        Returns:
            The leases whose machines ended in another way than they were charged for, by id.
        """
        otherwise: dict[int, Lease] = {}
        began_s, is_seen = self._runtime.monotonic_s(), False
        while not is_seen or self.unended:
            try:
                instances = self._listed()
                is_seen = True
            except CloudGoneError:
                self.unended.clear()
                break
            except CloudError as error:
                self._machines.troubled(error)
                self.unended = dict.fromkeys([*self.unended, *sorted(self._unconfirmed)], str(error))
            else:
                for lease_id, lease in leases.items():
                    instance = instances.get(self._machines.token(lease_id))
                    if instance is None and not self._machines.is_heard(lease.market):
                        if lease_id in self._unconfirmed:
                            self.unended.setdefault(lease_id, "its part of the cloud does not answer")
                        continue
                    if self.differs(lease, instance):
                        otherwise[lease_id] = lease
                    # A listing may be older than the end of a machine, or than its request.
                    is_seen &= lease_id not in self._unconfirmed if instance is None else instance.state in OVER
            looked()
            limit_s = min(within_s, refused_within_s) if self.unended else within_s
            if self._runtime.monotonic_s() >= began_s + limit_s:
                break
            if not is_seen or self.unended:
                self._runtime.sleep(max(self._poll_s, _ASKED_AGAIN_S))
        for lease_id in sorted(self._unconfirmed):
            self.unended.setdefault(lease_id, "the cloud does not list it, and may do so later")
        return otherwise

    def _listed(self) -> Mapping[str, Instance]:
        try:
            return self._machines.listed()
        except PartlySilentError as error:
            # The parts that answer are asked to end their machines all the same.
            self._machines.troubled(error)
            return {instance.token: instance for instance in error.found}

    def _is_long_unlisted(self, lease_id: int) -> bool:
        """Return whether a machine that the cloud does not list would be listed by now, if it still ran."""
        if lease_id not in self._unconfirmed:
            return True
        limit_s = _GONE_WITHIN_S if lease_id in self._refused_again else _LISTED_WITHIN_S
        now_s = self._runtime.monotonic_s()
        if now_s - self._unlisted_since_s.setdefault(lease_id, now_s) < limit_s:
            return False
        self._unconfirmed.discard(lease_id)
        self._unlisted_since_s.pop(lease_id)
        return True
