"""The reports of a run's agents: which are read at each look, and which agents are not heard from any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ebbtide.agent.protocol import Report
from ebbtide.base.runtime import Runtime
from ebbtide.controller.machine_list import grouped
from ebbtide.controller.mailboxes import Mailboxes
from ebbtide.market.leases import Lease

# Most seconds of silence that count between two looks: what held up the looks may have held up the agent, too.
_MOST_SILENT_S = 60.0
# Machines whose reports storage refuses in one look, after which it counts as away until the next.
_UNREAD_AT_ONCE = 2
# Looks for which the last reports of a machine that has ended are waited for, if storage refuses them.
_REFUSALS_WAITED_FOR = 20
# Seconds for which reports that storage refuses of all machines are no silence.
_MOST_REFUSED_S = 6 * 3600.0
# A machine of which so many reports in a row are missing is silent.
_REPORTS_MISSED = 4


@dataclass(frozen=True)
class SilenceLimits:
    """Limits on how long an agent may be silent, in real seconds.

    Attributes:
        never_heard_s: Limit of an agent that was never heard from.
        alone_s: Time for which an agent may train without the store: the least limit of one that was heard from.
        poll_s: Seconds between two looks.
    """

    never_heard_s: float
    alone_s: float
    poll_s: float


@dataclass(frozen=True)
class Silence:
    """An agent that is not heard from.

    Attributes:
        duration_s: Real seconds of silence.
        was_heard: Whether it was heard from before.
        every_s: Seconds between two reports that it promised; 0: none.
    """

    duration_s: float
    was_heard: bool
    every_s: float


@dataclass(frozen=True)
class _Listened:
    """The silence of an agent.

    Attributes:
        silent_s: Real seconds of silence.
        refused_s: Real seconds for which storage refused to hand its reports out.
        until_s: Time up to which both were counted.
        reports: Number of reports that it had written.
    """

    silent_s: float
    refused_s: float
    until_s: float
    reports: int


class AgentReports:
    """Reads the reports of machines, so that one whose reports storage refuses holds up no other.

    Args:
        mailboxes: Orders and reports of each machine.
        handle: Called with each new report and the lease of its machine.
        refused: Called with the error if storage refuses a machine's reports.
        limits: Limits on how long an agent may be silent.
        runtime: Gives the time.
    """

    def __init__(
        self,
        mailboxes: Mailboxes,
        handle: Callable[[Lease, Report], None],
        refused: Callable[[OSError], None],
        limits: SilenceLimits,
        runtime: Runtime,
    ) -> None:
        self._mailboxes, self._handle, self._on_refusal = mailboxes, handle, refused
        self._limits, self._runtime = limits, runtime
        # Times that storage did not hand out the newest reports of a machine, and the errors of this look.
        self._refusals: dict[int, int] = {}
        self.refused: list[OSError] = []
        # Whether storage handed out the reports of any machine in this look.
        self._has_read = False
        self._listened: dict[int, _Listened] = {}
        # Seconds between two reports that each agent promised, by lease id.
        self._every_s: dict[int, float] = {}

    def begin_look(self, leases: Mapping[int, Lease]) -> list[tuple[int, Lease]]:
        """Begin a look; returns the leases in the order in which reports are to be read.

        Those that storage refused most often come last.
        """
        self.refused.clear()
        self._has_read = False
        self._mailboxes.fetch(lease_id for lease_id, lease in leases.items() if lease.is_open)
        return sorted(leases.items(), key=lambda item: self._refusals.get(item[0], 0))

    def read(self, lease: Lease) -> bool:
        """Handle the new reports of a machine; returns whether storage handed them out."""
        lease_id = lease.lease_id
        if len(self.refused) >= _UNREAD_AT_ONCE:
            return False
        try:
            for report in self._mailboxes.new(lease_id):
                self._handle(lease, report)
        except OSError as error:
            self.refused.append(error)
            self._refusals[lease_id] = self._refusals.get(lease_id, 0) + 1
            self._on_refusal(error)
            return False
        self._refusals.pop(lease_id, None)
        # Of a machine that was never heard, storage was hardly asked.
        self._has_read |= self._mailboxes.has_reported(lease_id)
        return True

    def read_last(self, lease: Lease) -> bool:
        """Handle the last reports of an ended machine; returns whether all were read, or refused too often."""
        return self.read(lease) or self._refusals.get(lease.lease_id, 0) >= _REFUSALS_WAITED_FOR

    def promised(self, lease: Lease, every_s: float) -> None:
        """Expect a report of a machine's agent every `every_s` seconds; 0: it promises none."""
        self._every_s[lease.lease_id] = every_s

    def silence(self, lease: Lease) -> Silence | None:
        """Return the silence of a machine that is paid for, once it is too long; None: its agent may run."""
        lease_id, now_s = lease.lease_id, self._runtime.monotonic_s()
        heard, every_s = self._mailboxes.reports_heard(lease_id), self._every_s.get(lease_id, 0.0)
        if not (lease.is_open and lease.is_charged) or (heard and not every_s):
            self._listened.pop(lease_id, None)
            return None
        before = self._listened.get(lease_id)
        if before is None or before.reports != heard:
            before = _Listened(0.0, 0.0, now_s, heard)
        more_s = min(now_s - before.until_s, max(_MOST_SILENT_S, 2.0 * self._limits.poll_s))
        silent_s, refused_s = before.silent_s, before.refused_s
        # An agent that storage does not let us hear is not silent, but its training may end without our knowing.
        if heard and lease_id in self._refusals and not self._has_read and refused_s < _MOST_REFUSED_S:
            refused_s += more_s
        else:
            silent_s += more_s
        self._listened[lease_id] = _Listened(silent_s, refused_s, now_s, heard)
        alone_s = self._limits.alone_s if heard else 0.0
        if silent_s < max(self._limits.never_heard_s, _REPORTS_MISSED * every_s, alone_s):
            return None
        # The agent may run, whatever state the cloud reports.
        self._mailboxes.open(lease_id)
        self.read(lease)
        if self._mailboxes.reports_heard(lease_id) != heard:
            return None
        del self._listened[lease_id]
        return Silence(silent_s, bool(heard), every_s)

    def promises(self, lease_ids: Iterable[int]) -> list[tuple[float, list[int]]]:
        """Pairs of the seconds between two reports, and the ids of the leases whose agents promised them."""
        return grouped(self._every_s, lease_ids)

    def restore(self, promises: Iterable[tuple[float, list[int]]]) -> None:
        """Continue from what `promises` gave."""
        self._every_s = {int(lease_id): every_s for every_s, lease_ids in promises for lease_id in lease_ids}
