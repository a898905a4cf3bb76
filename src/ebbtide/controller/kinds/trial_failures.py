"""Failures of a training's program: how often it is retried, and which checkpoints are no longer used."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from ebbtide.agent.protocol import Ended
from ebbtide.controller.kinds.state import TrialState

# A training that fails this often without progress has failed.
MOST_FAILURES = 5
# After this many failures from one checkpoint, before the first step, the previous one is used. A checkpoint from
# which training has already made progress is not blamed for its first failure.
_FAILURES_FROM_ONE = {True: 2, False: 1}
_TAIL_LINES = 12
# The exit code for a wrong command line, by argparse's convention, and real seconds within which it is returned.
_WRONG_USAGE, _AT_ONCE_S = 2, 30.0


@dataclass(frozen=True)
class Failure:
    """A failure, once it is counted.

    Attributes:
        how: How the program failed, in one line.
        tail: The last lines that it printed, in one line.
        is_final: Whether the training is not retried.
    """

    how: str
    tail: str
    is_final: bool


def count_failure(trial: TrialState, ended: Ended, now_epoch_s: float) -> Failure:
    """Count a failure against a training and the checkpoint that it resumed from.

    Args:
        trial: The training, whose counts are changed.
        ended: The report of the program that failed.
        now_epoch_s: Seconds since 1970 by the controller's clock.
    """
    # In a gang, the number on this machine differs from that of the whole checkpoint.
    number = str(trial.began_number if trial.is_gang else ended.number)
    # A program may be killed by a machine short of memory, or by anyone else: that counts half.
    killed = ended.code == -signal.SIGKILL
    # A failure after some progress, by being killed, or of the machine does not speak against the checkpoint.
    is_from_it = not ended.came and not killed and not ended.of_machine
    is_proved = _is_proved(trial, int(number))
    if is_from_it:
        trial.from_one = {**trial.from_one, number: trial.from_one.get(number, 0) + 1}
    is_bad = is_from_it and number != "0" and trial.from_one.get(number, 0) >= _FAILURES_FROM_ONE[is_proved]
    if is_bad and int(number) not in trial.aside:
        trial.aside = (*trial.aside, int(number))
    # A bad checkpoint says nothing against the program.
    if not is_bad or is_proved:
        trial.failures += 0.5 if killed else 1.0
    lines = tuple(ended.tail[-_TAIL_LINES:])
    # A command line that the program refuses is refused on any machine, with the same output as the last time.
    is_refused = (
        ended.code == _WRONG_USAGE
        and not ended.came
        and number == "0"
        and now_epoch_s - trial.began_epoch_s < _AT_ONCE_S
        and bool(lines)
        and lines == tuple(trial.tail)
    )
    trial.tail = lines
    tail = " | ".join(line for line in trial.tail[-3:] if line.strip())
    how = f"with exit code {ended.code}{': ' * bool(tail)}{tail}" if ended.code is not None else tail
    return Failure(how, tail, is_refused or trial.failures >= MOST_FAILURES)


def _is_proved(trial: TrialState, number: int) -> bool:
    """Return whether training has gone on from this checkpoint before."""
    return any(
        stretch.number_from == number and (stretch.has_saved or stretch.step_done > stretch.step_from)
        for stretch in trial.stretches
    )
