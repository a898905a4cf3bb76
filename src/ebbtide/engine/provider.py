"""Interfaces of the provider that rents the machines and runs the training on them, for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats, PriceSeries
from ebbtide.policies.api.events import Event


class Provider(Protocol):
    """Machines, training and a clock. Methods return at once; what follows comes as events."""

    @property
    def now_s(self) -> float:
        """The time, seconds since 1970."""
        ...

    @property
    def is_over(self) -> bool:
        """True if no more time can pass: a replayed history has ended."""
        ...

    @property
    def markets(self) -> Sequence[Market]:
        """The markets that have a price now."""
        ...

    def prices(self, market: Market) -> PriceSeries:
        """The market's prices. A replay holds the future too; the engine shows policies only the past."""
        ...

    def start(self, jobs: Sequence[JobProgress], *, watch_prices: bool) -> None:
        """Begin with the jobs of a run; with `watch_prices`, every price change becomes an event."""
        ...

    def launch(self, lease: Lease) -> None:
        """Begin to rent. `running` or `launch_failed` follows; later perhaps `notice` and `ended`."""
        ...

    def terminate(self, lease: Lease) -> None:
        """Give a machine back now, whatever runs on it."""
        ...

    def assign(self, job_id: int, leases: Sequence[Lease]) -> None:
        """Let the job run on exactly these leases, once they have booted; those it leaves are saved first."""
        ...

    def in_use(self, lease: Lease) -> bool:
        """Return whether some job's training is on the machine, or is being saved there."""
        ...

    def save(self, job_id: int) -> None:
        """Checkpoint a job now; `saved` follows."""
        ...

    def stop(self, job_id: int) -> None:
        """Checkpoint a job and end it; `finished` follows."""
        ...

    def wake_at_step(self, job_id: int, step: int) -> None:
        """Tell, as `milestone`, when the job has done so many steps."""
        ...

    def measured(self, job_id: int) -> tuple[Floats, Floats]:
        """Steps and metric of the job's validations so far, up to where it stands; empty if it reports none."""
        ...

    def refresh(self) -> None:
        """Bring `steps_done` of the jobs up to now."""
        ...

    def next_event(self, until_s: float) -> Event | None:
        """The next event up to `until_s`, waiting for it; None when that time has come first."""
        ...

    def close(self) -> None:
        """End everything that still runs."""
        ...


@runtime_checkable
class TellsTogether(Protocol):
    """A provider that learns of many things at a time, which are told in one decision where they are very many."""

    def burst(self) -> Sequence[Event]:
        """Events beside the one that `next_event` has just given, to be told with it; none where they are few."""
        ...


@runtime_checkable
class MeasuresSpeed(Protocol):
    """A provider whose machines are real: how fast training is on them is seen, and not given."""

    def measured_steps_per_s(self, job_id: int, market: Market) -> float | None:
        """Steps a second of a job on a market's machines, as seen; None: not seen for long enough."""
        ...

    def steps_per_s(self, job_id: int, market: Market, declared: float) -> float:
        """Measured, or the declared rate as corrected by what was measured elsewhere."""
        ...
