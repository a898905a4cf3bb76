"""Room that a deadline leaves: on which machines a job may still be put, and how long it may keep them."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.markets import Market
from ebbtide.policies.ebbtide.options import Way, Ways

# Share of the time until a deadline that may be planned for work on a spot machine.
_WORKING_SHARE = 0.8

# Looks that pass before a machine that is asked for is found to be gone, and another is asked for.
_LOOKS = 3.0


@dataclass(frozen=True)
class InTime:
    """The time that a job has, and what fits into it.

    Attributes:
        ways: The ways for the job.
        left_s: Seconds until its deadline, those for steps that it is to do later taken off.
        start_s: Seconds kept in reserve for the start of a machine.
        look_every_s: Seconds from one look to the next.
        allowed_s: Seconds that the job had at the run's start.
    """

    ways: Ways
    left_s: float
    start_s: float
    look_every_s: float
    allowed_s: float

    @property
    def can_be_kept(self) -> bool:
        """True if the job can be done in time on demand, a failed start included."""
        return any(way.work_s + 2.0 * self._restart_s(way) <= self.left_s for way in self.ways.out)

    def check(self) -> None:
        """Raise `InputError` if the deadline cannot be kept, or if there is no way out."""
        if self.can_be_kept:
            return
        name = self.ways.job.job.name
        if not self.ways.out:
            raise InputError(
                f"no market with a known on-demand price can run job {name}; with a deadline one is needed as the "
                "way out"
            )
        fastest_h = min(way.work_s for way in self.ways.out) / HOUR_S
        raise InputError(
            f"job {name} cannot be done in {self.left_s / HOUR_S:.1f} h: on the fastest machine it takes "
            f"{fastest_h:.1f} h, and a start {self.start_s / 60.0:.0f} min"
        )

    def may_try(self, way: Way) -> bool:
        """Return whether a machine may be tried: its work fits, and after a spot loss on-demand fits."""
        if way.on_demand:
            return way.work_s + self._restart_s(way) + self.look_every_s <= self.left_s
        fits = way.work_s <= max(_WORKING_SHARE * self.left_s, self._out_work_s)
        out_s = self._out_s + self._again_s
        return fits and out_s + _LOOKS * self.look_every_s + self._restart_s(way) <= self.left_s

    def may_keep(self, work_s: float) -> bool:
        """Return whether a spot machine may be kept until the next look, whatever happens to it.

        Args:
            work_s: Seconds of work that are left on it.
        """
        if work_s <= min(self.left_s, self.look_every_s):
            return True
        return self._out_s + self._again_s + self.look_every_s + self._least_restart_s <= self.left_s

    def waits_out(self, way: Way) -> bool:
        """Return whether to wait for usual prices rather than take a way, which is the best that there is now.

        Enough time is kept for a spot machine after one on demand.
        """
        ways = self.ways
        spare_s = self._spare_s(self.left_s, 1.0)
        if spare_s <= self.look_every_s or ways.job.job.checkpoint is None or ways.steps <= 0.0:
            return False
        whole = (ways.job.steps_done + ways.steps) / ways.steps
        return ways.is_dear(way, 1.0 - spare_s / max(self._spare_s(self.allowed_s, whole), spare_s))

    def best(self) -> Way | None:
        """The cheapest way that may be tried; where none may, the fastest machine on demand, or else of all."""
        if self._fitting:
            return min(self._fitting, key=lambda way: way.rank)
        return min(self.ways.all(), key=lambda way: (not way.on_demand, way.work_s, way.rank), default=None)

    def best_at_price(self) -> Way | None:
        """The way that may be tried and is cheapest at the price of this moment, whatever it was before."""
        return min(self._fitting, key=lambda way: (self.ways.at_price_usd(way), way.rank), default=None)

    @cached_property
    def _fitting(self) -> list[Way]:
        can_be_saved = self.ways.job.job.checkpoint is not None
        return [way for way in self.ways.all() if self.may_try(way) and (can_be_saved or way.on_demand)]

    def best_spot(self, outside: Container[Market] = ()) -> Way | None:
        """The cheapest spot machine that may be tried, outside some markets; None: there is none."""
        # A job that cannot be saved would lose all with it.
        spot = [way for way in self.ways.spot() if way.market not in outside and self.may_try(way)]
        return min(spot, key=lambda way: way.rank, default=None) if self.ways.job.job.checkpoint else None

    @cached_property
    def _out_s(self) -> float:
        """Seconds from the request of the fastest on-demand machine until the job is done there."""
        return min((way.work_s + self._restart_s(way) for way in self.ways.out), default=float("inf"))

    @cached_property
    def _out_work_s(self) -> float:
        """Seconds of work that are left on the fastest on-demand machine."""
        return min((way.work_s for way in self.ways.out), default=0.0)

    def _spare_s(self, left_s: float, times: float) -> float:
        """Seconds of some time that an on-demand machine, and a spot machine before or after it, do not need.

        Args:
            left_s: The time.
            times: What is to be done in that time, as a multiple of the work that is left.
        """
        reserve_s = (_LOOKS + 1.0) * self.look_every_s + 3.0 * self._least_restart_s
        return left_s - times * self._out_work_s - self._again_s - reserve_s

    @cached_property
    def _again_s(self) -> float:
        """Seconds of work to be done again if the machines were taken now.

        Where a save takes longer than the notice, what is not saved yet is lost.
        """
        ways, job = self.ways, self.ways.job
        unsaved = job.steps_done - job.steps_saved
        if unsaved <= 0.0 or ways.steps <= 0.0 or not job.leases:
            return 0.0
        markets = [lease.market for lease in job.leases]
        save_s = max(job.job.save_s(ways.view.machine(one).vcpus, one.place) for one in markets)
        if save_s <= ways.view.billing.notice_s:
            return 0.0
        return min((way.work_s for way in ways.out), default=0.0) * unsaved / ways.steps

    @cached_property
    def _least_restart_s(self) -> float:
        return min((self._restart_s(way) for way in self.ways.out), default=0.0)

    def _restart_s(self, way: Way) -> float:
        return self.start_s + self.ways.restore_s(way.market)
