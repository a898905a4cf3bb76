"""`deadline`: choices of least expected cost under a deadline, solved backwards over a model of a zone's spells.

The cookbook of Cümülön-D over availability in place of price: its state is the time left, the work left, what is
held, and for how long the market has been up or down. Restarts are inside; a deadline is never missed, for no
choice is made after which an on-demand start would not fit any more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ebbtide._utc import HOUR_S
from ebbtide.forecasts.spells.fitting import AGE_BINS_S, DOWN, UP, SpellModel
from ebbtide.market.price_series import Floats
from ebbtide.policies.deadline.kernels import solved
from ebbtide.policies.deadline.problem import DeadlineProblem

# Ticks of the program, and steps of slack; between steps costs are a line.
TICK_S, SLACK_STEP_S = 300.0, 120.0


@dataclass(frozen=True)
class DeadlineTable:
    """Choices for every state.

    Attributes:
        problem: What they are for.
        choices: By ticks left, kind of spell, bin of age, held and slack: 0 nothing, 1 spot, 2 on-demand.
        expected_usd: At the start, if a spell has just begun: down, up.
        tick_s: Of the table.
        slack_step_s: Of the table.
    """

    problem: DeadlineProblem
    choices: np.ndarray
    expected_usd: tuple[float, float]
    tick_s: float = TICK_S
    slack_step_s: float = SLACK_STEP_S


def solve_deadline(problem: DeadlineProblem, model: SpellModel) -> DeadlineTable:
    """Solve it.

    Args:
        problem: The job and its prices.
        model: Of the zone's spells.
    """
    ticks = math.ceil(problem.deadline_h * HOUR_S / TICK_S)
    slack_s = (problem.deadline_h - problem.work_h) * HOUR_S
    steps = math.ceil(slack_s / SLACK_STEP_S) + 2
    ends = np.array([[model.ends_within(kind, age, TICK_S) for age in AGE_BINS_S] for kind in (DOWN, UP)])
    choices, costs = solved(
        ticks,
        TICK_S,
        steps,
        SLACK_STEP_S,
        problem.restart_h * HOUR_S,
        problem.spot_usd_per_hour,
        problem.on_demand_usd_per_hour,
        ends,
        _onward(),
    )
    place = slack_s / SLACK_STEP_S
    low, share = int(place), place - int(place)
    expected = [(1 - share) * costs[kind, 0, 0, low] + share * costs[kind, 0, 0, low + 1] for kind in (DOWN, UP)]
    return DeadlineTable(problem, choices, (float(expected[0]), float(expected[1])))


def _onward() -> Floats:
    """How likely a spell comes into its next bin of age in a tick: a bin is left after its width in the mean."""
    widths_s = np.diff(AGE_BINS_S, append=np.inf)
    return np.tile(np.minimum(TICK_S / widths_s, 1.0), (2, 1))
