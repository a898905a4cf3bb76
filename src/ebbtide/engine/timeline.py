"""The timeline: everything that happened in a run, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ebbtide.base.utc import from_epoch_s

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Moment:
    """Event in the timeline of a run.

    Attributes:
        time_s: Time of the event, seconds since 1970.
        what: A `Wake`, or `requested`, `released` or `gave up`.
        lease_id: Id of its lease, or -1.
        job_id: Id of its job, or -1.
        detail: What happened, in words for people.
        steps_done: Steps done of all jobs together, at that moment.
    """

    time_s: float
    what: str
    lease_id: int
    job_id: int
    detail: str
    steps_done: float


class Timeline(Sequence[Moment]):
    """Moments in order of time, from the first that is kept on."""

    def __init__(self) -> None:
        self._moments: list[Moment] = []
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._moments)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._moments[index]

    def add(self, moment: Moment) -> None:
        self._moments.append(moment)

    def since(self, number: int) -> list[Moment]:
        """Those that are kept of the moments from one on, counted from 0 since the first of all."""
        return self._moments[max(number - self._dropped, 0) :]

    def drop_before(self, number: int) -> None:
        """Keep no moment before one, counted in the same way: they are written down, and a run may be long."""
        count = min(max(number - self._dropped, 0), len(self._moments))
        del self._moments[:count]
        self._dropped += count

    def to_frame(self) -> pd.DataFrame:
        """A row a moment, times as UTC datetimes."""
        import pandas as pd

        frame = pd.DataFrame(
            [[getattr(moment, name) for name in Moment.__slots__] for moment in self],
            columns=list(Moment.__slots__),
        )
        frame.insert(0, "time", [from_epoch_s(time_s) for time_s in frame.pop("time_s")])
        return frame
