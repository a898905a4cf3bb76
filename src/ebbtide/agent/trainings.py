"""Work that an agent has under way: trainings side by side, each in a part of the machine, or tasks of an array.

An order to train names the trials beside which it begins. All others are asked to leave, and it begins as soon as
enough of them have left to make room. So the controller alone decides what runs together. An order of a controller
that knows nothing of sharing names no trials, so that everything else leaves.
"""

from __future__ import annotations

import copy
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from threading import Lock

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.agent.core_shares import MachineParts
from ebbtide.agent.machine import RentedMachine
from ebbtide.agent.protocol import Ended, Ending, Hand, Keep, Leave, Report, SaveOrder, Train
from ebbtide.agent.tasks import TaskRunner
from ebbtide.agent.training import Loop, TrainingRun
from ebbtide.agent.work import SavingTimes

_LOGGER = logging.getLogger(__name__)

# Shares are sums of fractions such as 0.1.
_ROUNDING = 1e-9


class Trainings:
    """All that is under way on a machine; used by the agent's loop alone.

    Args:
        config: The configuration of the machine.
        machine: The machine.
        put: Called from any thread, to have the agent's loop handle an event.
        tell: Reports something, at once if it is urgent.
    """

    def __init__(
        self,
        config: AgentConfig,
        machine: RentedMachine,
        put: Callable[[Callable[[], None]], None],
        tell: Callable[[Report, bool], None],
    ) -> None:
        self._config, self._machine, self._put, self._tell = config, machine, put, tell
        self._folder = Path(config.folder).resolve()
        self._parts = MachineParts.of_this_machine(pins=config.pins_cores)
        # Durations from the last training, which the next begins with: they depend on the machine, too.
        self._times = SavingTimes(first_s=config.first_save_s, margin_s=config.margin_s)
        # Trainings by id of the trial, or tasks of an array; never both.
        self._here: dict[str, TrainingRun] = {}
        self._tasks: TaskRunner | None = None
        self._hands: list[Hand] = []
        # Ordered, and not begun: there is no room yet.
        self._waiting: list[Assignment] = []
        self._attempts: dict[str, int] = {}
        # How the last assignment of each trial ended here, to be repeated on request.
        self._endings: dict[str, Ended] = {}
        self._unhandled: Counter[TrainingRun] = Counter()
        self._lock = Lock()
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """True if anything is under way."""
        return bool(self._here) or self._tasks is not None

    # Orders.

    def train(self, order: Train) -> None:
        """Begin an assignment, once those that must not run beside it have left, and there is room."""
        assignment = order.assignment
        if assignment.attempt <= self._attempts.get(assignment.trial_id, 0):
            return  # written twice
        self._attempts[assignment.trial_id] = assignment.attempt
        if self._is_closed:
            self._tell(Ended(assignment.trial_id, assignment.attempt, Ending.LEFT, 0), True)
            return
        stays = set(order.beside) - {assignment.trial_id}
        for trial_id, training in self._here.items():
            if trial_id not in stays:
                training.leave()
        if self._tasks is not None:
            self._tasks.leave(self._machine.runtime.monotonic_s())
        for other in self._waiting:
            if other.trial_id not in {*stays, assignment.trial_id}:
                self._tell(Ended(other.trial_id, other.attempt, Ending.LEFT, 0), True)
        self._waiting = [other for other in self._waiting if other.trial_id in stays]
        self._waiting.append(assignment)
        self._begin_what_fits()

    def hand(self, order: Hand) -> None:
        """Do these tasks of an array as well."""
        if self._tasks is not None and order.attempt == self._tasks.assignment.attempt:
            self._tasks.hand(order)
        else:
            self._hands.append(order)

    def save(self, order: SaveOrder) -> None:
        """Have a trial saved."""
        for training in self._named(order.trial):
            training.ask_to_save()

    def keep(self, order: Keep) -> None:
        """Note that a checkpoint is whole: older ones of that assignment may be deleted."""
        for training in self._named(order.trial):
            if training.assignment.attempt == order.attempt:
                training.keep(order.number, order.best)

    def leave(self, order: Leave) -> None:
        """Save an assignment and leave it."""
        self._waiting = [other for other in self._waiting if not is_about(order, other)]
        found = [training for training in self._here.values() if is_about(order, training.assignment)]
        for training in found:
            training.leave(alone=order.alone)
        if self._tasks is not None and is_about(order, self._tasks.assignment):
            self._tasks.leave(self._machine.runtime.monotonic_s())
        elif not found and order.trial and not order.reported:
            # The assignment never began on this machine, or began under an earlier agent: nobody need wait for it.
            self._tell(Ended(order.trial, order.attempt, Ending.LEFT, 0), True)

    def close(self) -> None:
        """Have everything save and leave, and begin nothing more."""
        self._is_closed, self._waiting = True, []
        for training in self._here.values():
            training.leave()
        if self._tasks is not None:
            self._tasks.leave(self._machine.runtime.monotonic_s())

    def noticed(self) -> None:
        """Have all trainings prepare for the revocation of the machine."""
        for training in self._here.values():
            training.noticed()

    def repeat(self) -> None:
        """Report again how assignments ended."""
        for ended in self._endings.values():
            self._tell(ended, True)
        if self._tasks is not None:
            self._tasks.repeat()

    def tick(self, now_s: float, taken_at_s: float, gives_up_s: float) -> None:
        """Look at all of it, and do what is due.

        Args:
            now_s: The present time in monotonic seconds.
            taken_at_s: Time at which the machine is revoked; infinite: it has no notice.
            gives_up_s: Time at which everything that is not stored yet is given up.
        """
        tasks = self._tasks
        programs = [each.program for each in self._here.values()] if tasks is None else tasks.programs
        self._machine.reap([program for program in programs if program is not None])
        if tasks is not None:
            self._safely_of_tasks(partial(tasks.tick, now_s, taken_at_s))
            if self._tasks is tasks and (now_s >= gives_up_s or tasks.has_left):
                self._conclude_tasks(tasks)
        for training in list(self._here.values()):
            others = [other.times for other in self._here.values() if other is not training]
            self._safely(training, partial(training.tick, now_s, taken_at_s, gives_up_s, others))

    def _named(self, trial: str) -> Iterable[TrainingRun]:
        return list(self._here.values()) if not trial else [each for each in [self._here.get(trial)] if each]

    # Beginnings and ends.

    def _begin_what_fits(self) -> None:
        """Begin waiting assignments that there is room for now, in the order in which they were ordered."""
        waiting, self._waiting = self._waiting, []
        for assignment in waiting:
            used = math.fsum(training.assignment.share for training in self._here.values())
            fits = self._tasks is None and used + assignment.share <= 1.0 + _ROUNDING
            if fits and assignment.trial_id not in self._here:
                self._begin(assignment)
            else:
                self._waiting.append(assignment)

    def _begin(self, assignment: Assignment) -> None:
        if assignment.side_by_side:
            self._begin_tasks(assignment)
            return
        self._times = copy.deepcopy(self._times)
        loop = Loop(self._put_of, self._tell, self._over, lambda one: self._unhandled[one] > 0, self._end_left)
        part = self._parts.take(assignment.trial_id, assignment.share)
        self._here[assignment.trial_id] = TrainingRun(
            assignment, self._config, self._machine, self._times, loop, part
        )

    def _begin_tasks(self, assignment: Assignment) -> None:
        self._tasks = TaskRunner(
            assignment,
            self._folder / f"{assignment.trial_id}-{assignment.attempt}",
            self._folder / "code",
            self._config.machine,
            self._config.margin_s,
            self._machine,
            lambda happened: self._put(partial(self._safely_of_tasks, happened)),
            self._tell,
        )
        for hand in self._hands:
            if hand.attempt == assignment.attempt:
                self._tasks.hand(hand)
        self._hands = [hand for hand in self._hands if hand.attempt > assignment.attempt]

    def _over(self, training: TrainingRun, ended: Ended) -> None:
        """Remove a training that is over on this machine, and begin what waited for its room."""
        trial_id = training.assignment.trial_id
        if self._here.get(trial_id) is training:
            del self._here[trial_id]
            self._parts.give_back(trial_id)
        self._ended(ended)

    def _ended(self, ended: Ended) -> None:
        self._endings[ended.trial] = ended
        self._tell(ended, True)
        if not self._is_closed:
            self._begin_what_fits()

    def _conclude_tasks(self, tasks: TaskRunner) -> None:
        self._tasks = None
        tasks.close()
        self._ended(Ended(tasks.assignment.trial_id, tasks.assignment.attempt, Ending.LEFT, tasks.done))

    def _end_left(self, training: TrainingRun) -> None:
        """End what the program of a training left running; if it is alone, what any program here left."""
        is_alone = all(other is training for other in self._here.values())
        if is_alone:
            self._machine.end_left()
        else:
            self._machine.end_left(training.folder, training.program)

    # If an event of one training cannot be handled, that training fails, and not the others.

    def _put_of(self, training: TrainingRun, happened: Callable[[], None]) -> None:
        with self._lock:
            self._unhandled[training] += 1
        self._put(partial(self._handle, training, happened))

    def _handle(self, training: TrainingRun, happened: Callable[[], None]) -> None:
        self._safely(training, happened)
        with self._lock:
            self._unhandled[training] -= 1
            if not self._unhandled[training]:
                del self._unhandled[training]

    def _safely(self, training: TrainingRun, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            # The same error would end every agent that takes this training, so the training fails instead.
            _LOGGER.exception("trial %s cannot be continued", training.assignment.trial_id)
            training.fail(f"the agent cannot go on with it: {type(error).__name__}: {error}")

    def _safely_of_tasks(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            if self._tasks is None:
                raise
            _LOGGER.exception("tasks of %s cannot be continued", self._tasks.assignment.trial_id)
            self._conclude_tasks(self._tasks)


def is_about(order: Leave, assignment: Assignment) -> bool:
    """Return whether an order to leave is about an assignment; without a trial, about any of its number."""
    return order.attempt == assignment.attempt and order.trial in ("", assignment.trial_id)
