"""All constants and records that compiled functions share: one number for each name, one record for each idea.

Numba writes constants into the machine code, so they are numbers, not enums. Records with fields of one kind each
are NamedTuples, which Numba takes as arguments; rows of tables are NumPy record types.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# Jobs with a deadline: what is held, and, in the table of one zone, what is chosen. Over several zones, one may be
# watched while nothing is held.
NOTHING, SPOT, ON_DEMAND, WATCHING = range(4)

# Jobs with a deadline: the rule of a run.
ALWAYS_ON_DEMAND, GREEDY, UNIFORM_PROGRESS, FAILOVER, TABLE = range(5)

# Jobs with a deadline: answers of a rule over several zones. A number from 0 on is a zone to request a machine in.
WAIT, GO_ON_DEMAND = -1, -2

# Jobs with a deadline: the cost of missing it, in USD; more than any run costs.
MISSED_USD = 1e9

# When a zone refused that never has, in seconds from the start of a run.
LONG_AGO_S = -1e12

# Cookbooks: the cost of a state from which the work cannot be done in time, in USD; costs below the second number
# are of states from which it can.
INFEASIBLE_USD = 1e30
FEASIBLE_USD = 1e15

# DeepSpotCloud: when to move to another market.
MOVE_NEVER, MOVE_CHEAPER, MOVE_PERIOD_END, MOVE_WORTHWHILE = range(4)

# States of a lease, phases of a training, and events that are due to a lease.
REQUESTED, STARTING, RUNNING, NOTICED, ENDED, REVOKED = range(6)
IDLE, RESTORING, TRAINING, SAVING = range(4)
LAUNCH, BOOT, NOTICE, REVOKE = range(4)

# No lease, place or cloud; no market.
NONE = -1
NO_MARKET = -1

# Room for leases, for leases that are open at once, and for timers of one replay.
MAX_LEASES = 8192
MAX_OPEN = 16
MAX_TIMERS = 256


# Jobs with a deadline.


class ZoneTask(NamedTuple):
    """A job with a deadline that runs in one zone.

    Attributes:
        work_s: Seconds of work on one machine.
        deadline_s: Seconds from the start to the deadline.
        restart_s: Seconds from the start of a machine until it works.
        spot_usd: Price of a spot machine, USD per hour.
        on_demand_usd: Price of an on-demand machine, USD per hour.
    """

    work_s: float
    deadline_s: float
    restart_s: float
    spot_usd: float
    on_demand_usd: float


class ZonesTask(NamedTuple):
    """A job with a deadline that can run in several zones.

    Attributes:
        work_s: Seconds of work on one machine.
        deadline_s: Seconds from the start to the deadline.
        restart_s: Seconds from the start of a machine in the checkpoint's place until it works.
        start_s: The same by place of the checkpoint and of the machine; shape (places, places).
        on_demand_usd: Price of an on-demand machine, USD per hour.
        spot_usd: Expected price of a spot machine, USD per hour; shape (zones,).
        place_of: Index of each zone's place; shape (zones,).
        egress_usd: Cost of moving the checkpoint from place to place, USD; shape (places, places).
        speed: Speed of a zone's spot machine against that of an on-demand machine; shape (zones,).
        look_s: Seconds of a machine that are paid for to see whether a zone has one; infinity: no zone is watched.
    """

    work_s: float
    deadline_s: float
    restart_s: float
    start_s: Any
    on_demand_usd: float
    spot_usd: Any
    place_of: Any
    egress_usd: Any
    speed: Any
    look_s: float


class SlackGrid(NamedTuple):
    """The grid of a backward induction: ticks to the deadline, steps of slack (time left beyond the work left).

    Attributes:
        ticks: Number of ticks from the start to the deadline.
        tick_s: Length of a tick in seconds.
        steps: Number of steps of slack.
        step_s: Width of a step of slack in seconds.
    """

    ticks: int
    tick_s: float
    steps: int
    step_s: float


class SpellChances(NamedTuple):
    """Probabilities within a tick of one zone's spells (times of being up or down without a break).

    Attributes:
        ends: Probability that a spell ends; shape (kinds, bins of age).
        onward: Probability that a spell that does not end comes into its next bin of age; the same shape.
    """

    ends: Any
    onward: Any


class ZonesChances(NamedTuple):
    """Probabilities of the spells of several zones.

    Attributes:
        ends: Probability that a spell ends within a tick; shape (parts of the day, zones, kinds, bins of age).
        onward: Probability that a spell that does not end comes into its next bin of age; shape (bins,).
        arrives: Probability that a zone that has been down for that long or longer comes up within a tick; shape
            (parts of the day, zones, bins).
        up_since: Probability that a zone is up so long after it refused; shape (zones, bins).
        ages: Probability of each age of its up spell then, if it is up; shape (zones, bins since, bins).
        parts: Part of the day by ticks left; shape (ticks + 1,).
    """

    ends: Any
    onward: Any
    arrives: Any
    up_since: Any
    ages: Any
    parts: Any


class ZonesProgram(NamedTuple):
    """The program that is solved for the costs of `deadline` over several zones.

    Attributes:
        grid: Ticks and steps of slack.
        task: The job, its zones and their prices.
        chances: Probabilities of the zones' spells.
        gamma: USD of expected cost that a USD of standard deviation is worth.
        most_to_do_s: States with more seconds of work left are not solved: costs are continued in a straight line.
    """

    grid: SlackGrid
    task: ZonesTask
    chances: ZonesChances
    gamma: float
    most_to_do_s: float


class BoundProgram(NamedTuple):
    """The program of the least cost in up to three zones whose states are all tracked.

    Attributes:
        grid: Ticks and steps of slack.
        task: The job, its zones and their prices.
        ends: Probability that a spell ends within a tick; shape (zones, kinds, bins of age).
        onward: Probability that a spell that does not end comes into its next bin of age; shape (bins,).
    """

    grid: SlackGrid
    task: ZonesTask
    ends: Any
    onward: Any


class SlackState(NamedTuple):
    """A point of the grid of a backward induction.

    Attributes:
        step: Index of the step of slack.
        slack_s: Seconds to the deadline beyond the work left.
        to_do_s: Seconds of work left.
        part: Part of the day.
    """

    step: int
    slack_s: float
    to_do_s: float
    part: int


class Moments(NamedTuple):
    """Mean and mean square of the cost from each state on.

    Attributes:
        means: Expected cost in USD; shape (held, zones, bins of age, steps of slack).
        squares: Mean square of the cost; the same shape.
    """

    means: Any
    squares: Any


class ZonesRoom(NamedTuple):
    """Working arrays of a point of the grid. Costs are mean, mean square and score (mean plus gamma deviations).

    Attributes:
        taken: Cost from taking a machine whose spell is new; shape (places, 3, zones).
        met: Cost from taking a machine of a zone that refused so long ago; shape (places, bins since, 3, zones).
        by_new: Zones in order of the score of `taken`; shape (places, zones).
        by_met: Zones in order of the score of `met`; shape (places, bins since, zones).
        refused: Cost when all zones refuse; shape (held, zones, bins of age, 3).
        kept: Cost when a spot machine is held and no other is taken; shape (zones, bins of age, 3).
        again: Cost when a zone is watched and still has a machine; shape (zones, bins of age, 3).
        by_age: Mean and mean square of the cost after a start, by age of the spell; shape (bins of age, 2).
    """

    taken: Any
    met: Any
    by_new: Any
    by_met: Any
    refused: Any
    kept: Any
    again: Any
    by_age: Any


class AdvisorGrid(NamedTuple):
    """Time and slack of an advisor's tables: narrow steps of slack near zero, where a start decides, then wide.

    Attributes:
        ticks: Number of ticks until the deadline.
        tick_s: Length of a tick, seconds.
        slack_s: Slack at each step, seconds; shape (steps,).
        narrow: Number of narrow steps.
        narrow_s: Width of a narrow step, seconds.
        wide_s: Width of a wide step, seconds.
        whole_ticks: Whether the last tick is charged whole.
    """

    ticks: int
    tick_s: float
    slack_s: Any
    narrow: int
    narrow_s: float
    wide_s: float
    whole_ticks: bool


class AdvisorTables(NamedTuple):
    """Expected costs of a job for each type of zone, and what tells the types apart.

    Attributes:
        usd: Expected cost from the start of a tick on, USD; shape (types, ticks + 1, kinds, bins of age, held,
            steps of slack).
        grid: Time and slack.
        hazards: Probability per second that a spell ends; shape (types, kinds, bins of age).
        bins_s: Lower ends of the bins of age, seconds.
    """

    usd: Any
    grid: AdvisorGrid
    hazards: Any
    bins_s: Any


class AdvisorMoment(NamedTuple):
    """State of a run when its advisor is asked.

    Attributes:
        left_s: Seconds until the deadline.
        work_s: Seconds of work left.
        held: `NOTHING`, `SPOT` or `ON_DEMAND`; a spot machine that was revoked is nothing.
        starting_s: Seconds of the held machine's start still to run.
        up: Whether a spot machine is available: 1 or 0.
        tick_s: Seconds until the next question.
        unseen_s: Seconds that a spot machine may be gone before it is asked again; 0: it lasts a whole tick.
    """

    left_s: float
    work_s: float
    held: int
    starting_s: float
    up: int
    tick_s: float
    unseen_s: float


class ZonesMoment(NamedTuple):
    """State of a run when its advisor over several zones is asked.

    Attributes:
        left_s: Seconds until the deadline.
        work_s: Seconds of work left.
        held: `NOTHING`, `SPOT` or `ON_DEMAND`; a spot machine that was revoked is nothing.
        zone: Zone of the machine that is held or was held last.
        starting_s: Seconds of the held machine's start still to run.
        tick_s: Seconds until the next question.
        unseen_s: Seconds that a spot machine may be gone before it is asked again; 0: it lasts a whole tick.
        whole_ticks: Whether the last tick is charged whole.
        up: By zone, whether a spot machine is available: 1, 0, or -1 where that is not known.
        age: By zone, the place among the bins of age of a spell that is expected to last as long as the one under
            way, or, where the state is not known, as one that is met now; between bins a fraction.
    """

    left_s: float
    work_s: float
    held: int
    zone: int
    starting_s: float
    tick_s: float
    unseen_s: float
    whole_ticks: bool
    up: Any
    age: Any


class ZoneChoices(NamedTuple):
    """The solved table of one zone.

    Attributes:
        choices: `NOTHING`, `SPOT` or `ON_DEMAND`; shape (ticks + 1, kinds, bins of age, held, steps of slack).
        tick_s: Length of the table's ticks in seconds.
        step_s: Width of its steps of slack in seconds.
        bins_s: Lower ends of its bins of age in seconds; shape (bins,).
    """

    choices: Any
    tick_s: float
    step_s: float
    bins_s: Any


class ZonesCosts(NamedTuple):
    """The solved table of several zones.

    Attributes:
        usd: Cost from each state on; shape (ticks + 1, held, zones, bins of age, steps of slack). `WATCHING` is
            among what is held if zones are watched.
        tick_s: Length of the table's ticks in seconds.
        step_s: Width of its steps of slack in seconds.
        bins_s: Lower ends of its bins of age in seconds; shape (bins,).
        lasts_s: Mean time that a spot machine lasts, seconds; shape (zones,).
        ages: Probability of each age of a zone's up spell by the time since it refused; shape (zones, bins since,
            bins of age).
        home: Zone that stands for the place of a run before its first machine.
        away_s: Seconds for which that zone has been down, if it refuses at the start.
    """

    usd: Any
    tick_s: float
    step_s: float
    bins_s: Any
    lasts_s: Any
    ages: Any
    home: int
    away_s: float


class ZonesNow(NamedTuple):
    """State known to a rule over several zones when it is asked.

    Attributes:
        left_s: Seconds to the deadline.
        slack_s: Seconds to the deadline beyond the work left.
        until_next_s: Seconds until the rule is asked again.
        spot_usd: Prices of spot machines now, USD per hour; shape (zones,).
        zone: Zone of the machine that is held or was held last.
        held: `NOTHING`, `SPOT` or `ON_DEMAND`.
        age_s: Age of that zone's spell in seconds.
        since_refused_s: Seconds since each zone refused; 0: just now; shape (zones,).
        may_ask: Whether other zones may be asked while a spot machine is held.
        fresh: Whether no machine was held yet, so that there is no checkpoint to fetch.
        fell_place: Place where the last spot machine was revoked; -1: none was.
        was_safety: Whether the job already stays on demand to keep the deadline.
        watched: Zone that is watched while nothing is held; -1: none is.
        watched_s: Age of that zone's spell in seconds.
    """

    left_s: float
    slack_s: float
    until_next_s: float
    spot_usd: Any
    zone: int
    held: int
    age_s: float
    since_refused_s: Any
    may_ask: bool
    fresh: bool
    fell_place: int
    was_safety: bool
    watched: int
    watched_s: float


class ZonesTape(NamedTuple):
    """Recorded availability and prices of several zones.

    Attributes:
        available: Whether a zone has a spot machine in a tick; shape (zones, ticks).
        spot_usd: Its price, USD per hour; the same shape.
        tick_s: Length of a tick in seconds.
    """

    available: Any
    spot_usd: Any
    tick_s: float


class HindsightMoment(NamedTuple):
    """A tick of the optimum's program.

    Attributes:
        left_s: Seconds to the deadline at the tick's start.
        tick_s: Length of a tick in seconds.
        step_s: Width of a step of slack in seconds.
    """

    left_s: float
    tick_s: float
    step_s: float


class HindsightChoice(NamedTuple):
    """A choice in the optimum's program.

    Attributes:
        shift_s: Seconds of slack that the choice takes.
        usd: Price of the machine, USD per hour; 0: none is rented.
        moved_usd: Cost of moving the checkpoint, USD.
        overhead_s: Seconds until the machine works.
        speed: Its speed against that of an on-demand machine.
    """

    shift_s: float
    usd: float
    moved_usd: float
    overhead_s: float
    speed: float


# Cookbooks.


class Moves(NamedTuple):
    """Transitions of a cookbook's step: work left and machines held after it.

    Attributes:
        low: Level of work below the work left after a step; shape (levels, machines before, machines now).
        share: How far that is towards the level above, 0 to 1; the same shape.
        held: Machines held in the step before, by holding; shape (holdings,).
        sizes: Machines held in this step if m more are charged, -1: too many; shape (holdings, m).
        leads_to: Index of the holding after that; the same shape.
    """

    low: Any
    share: Any
    held: Any
    sizes: Any
    leads_to: Any


class CostsToCome(NamedTuple):
    """Moments of the cost after a step and of the charge in it, given the price at its beginning.

    Attributes:
        mean: Expected cost after the step, USD; shape (levels, holdings, prices).
        square: Its mean square; the same shape.
        joint: Expectation of the charge times the cost after the step; the same shape.
        charge: Expected charge of a machine for the step, USD; shape (prices,).
        charge_variance: Variance of that charge; shape (prices,).
    """

    mean: Any
    square: Any
    joint: Any
    charge: Any
    charge_variance: Any


class StepSolution(NamedTuple):
    """Arrays that one step of a cookbook's induction fills, each of shape (levels, holdings, prices).

    Attributes:
        actions: Machines to charge in each state.
        means: Expected cost from each state on, USD.
        variances: Variance of that cost.
    """

    actions: Any
    means: Any
    variances: Any


class Book(NamedTuple):
    """A solved cookbook and its workflow.

    Attributes:
        actions: Machines to hold; shape (steps, levels, holdings, prices).
        can: Whether a step can be begun so that the deadline is met; shape (steps + 1, levels, holdings).
        levels_h: Levels of work left, machine-hours; shape (levels,).
        prices: Price levels, USD per hour; shape (prices,).
        speeds: Speed of each job by number of machines, in machines; shape (jobs, most + 1).
        ends_h: Work left when each job is done, machine-hours; shape (jobs,).
        start_work_h: Work added by the start of a machine, machine-hours.
        stop_work_h: Work added by the stop of a machine, machine-hours.
        ticks: Number of ticks in a step.
        tick_h: Length of a tick in hours.
    """

    actions: Any
    can: Any
    levels_h: Any
    prices: Any
    speeds: Any
    ends_h: Any
    start_work_h: float
    stop_work_h: float
    ticks: int
    tick_h: float


class ClusterRules(NamedTuple):
    """Bids and charging rules of a cluster.

    Attributes:
        bids: Bid by step and level of work left, USD per hour; shape (steps, levels).
        period: Ticks in a charge period.
        delay: Ticks from a decision to its effect.
        fixed_size: Machines to hold always; 0: as the cookbook says.
        on_demand_usd: Price of an on-demand machine, USD per hour; infinity: none is used.
    """

    bids: Any
    period: int
    delay: int
    fixed_size: int
    on_demand_usd: float


class MachineBatches(NamedTuple):
    """Machines of a cluster that were requested together; arrays with one value for each batch.

    Attributes:
        count: Number of machines in the batch.
        comes: Tick at which they start.
        bid: Highest price they are kept at, USD per hour.
        going: Number of them that stop at their next charge.
        listed: Whether they are on-demand machines.
        paid: Price of the charge period under way, USD a machine.
    """

    count: Any
    comes: Any
    bid: Any
    going: Any
    listed: Any
    paid: Any


class Books(NamedTuple):
    """Overhead and cost that a cluster has accumulated.

    Attributes:
        extra: Overhead that is not worked off yet, machine-hours.
        usd: Cost so far in USD.
    """

    extra: float
    usd: float


# Replays of DeepSpotCloud.

# A change point of a price. `above`: index of the first point from this one on with a price above the list price.
# The last field is of all markets' change points in order of time: when the point comes.
POINT = np.dtype([("time_s", "f8"), ("price", "f8"), ("above", "i8"), ("by_time_s", "f8")], align=True)

# A market. Its change points are `points[first:last]`, its list price is `listed` (NaN: none is known). The other
# fields are the job's speed, times to save and restore, indices of place and cloud, and the cost of copying the
# data set there.
MARKET = np.dtype(
    [
        ("first", "i8"),
        ("last", "i8"),
        ("listed", "f8"),
        ("steps_per_s", "f8"),
        ("save_s", "f8"),
        ("restore_s", "f8"),
        ("place", "i8"),
        ("cloud", "i8"),
        ("dataset_usd", "f8"),
    ],
    align=True,
)

# The market that is cheapest from a time on.
CHEAPEST = np.dtype([("time_s", "f8"), ("market", "i8")], align=True)

# Settings of the policy, the job and the billing; see `DeepSpotCloud`, `Job` and `Billing`.
RULE = np.dtype(
    [
        ("when", "i8"),
        ("overlap", "?"),
        ("lead_s", "f8"),
        ("stay_s", "f8"),
        ("moves_per_day", "f8"),
        ("charged_boot_s", "f8"),
        ("retry_s", "f8"),
        ("look_s", "f8"),
        ("margin_s", "f8"),
        ("save_margin_s", "f8"),
        ("steps", "f8"),
        ("tolerance", "f8"),
        ("clock_s", "f8"),
        ("dataset_s", "f8"),
        ("dataset_cloud", "i8"),
        ("end_s", "f8"),
        ("period_us", "i8"),
        ("minimum_us", "i8"),
        ("at_lease_start", "?"),
        ("refund_first_hour", "?"),
        ("refund_partial", "?"),
        ("notice_s", "f8"),
        ("price_revokes", "?"),
        ("max_lifetime_s", "f8"),
        ("round_s", "f8"),
    ],
    align=True,
)

# A rented machine.
LEASE = np.dtype(
    [
        ("market", "i8"),
        ("state", "i8"),
        ("due", "i8"),
        ("requested_s", "f8"),
        ("max_price", "f8"),
        ("started_s", "f8"),
        ("running_s", "f8"),
        ("revoke_at_s", "f8"),
        ("leave_at_s", "f8"),
        ("look_s", "f8"),
        ("due_s", "f8"),
        ("entered_s", "f8"),
        ("notice_at_s", "f8"),
        ("noticed_from_s", "f8"),
        ("assigned", "?"),
        ("for_job", "?"),
        ("draining", "?"),
        ("left", "?"),
    ],
    align=True,
)

# The state of one replay, and its result.
STATE = np.dtype(
    [
        ("start_s", "f8"),
        ("now_s", "f8"),
        ("phase", "i8"),
        ("member", "i8"),
        ("until_s", "f8"),
        ("unsaved", "f8"),
        ("since_s", "f8"),
        ("steps_per_s", "f8"),
        ("saved", "f8"),
        ("saved_at", "i8"),
        ("tolerance", "f8"),
        ("lost", "f8"),
        ("finished_s", "f8"),
        ("leases", "i8"),
        ("open", "i8"),
        ("timers", "i8"),
        ("cost_usd", "f8"),
        ("egress_usd", "f8"),
        ("charged", "i8"),
        ("revoked", "i8"),
        ("clouds", "i8"),
        ("change", "i8"),
        ("retry_s", "f8"),
        ("ask", "?"),
        ("failed", "?"),
        ("overflow", "?"),
    ],
    align=True,
)


class Tape(NamedTuple):
    """Prices of many markets.

    Attributes:
        points: `POINT` records of all markets, one market after the other; shape (points,).
        markets: `MARKET` records in the same order; shape (markets,).
    """

    points: Any
    markets: Any


class World(NamedTuple):
    """All that a replay reads, and the arrays it works in.

    Attributes:
        points: `POINT` records of all markets; shape (points,).
        markets: `MARKET` records in the same order; shape (markets,).
        cheapest: `CHEAPEST` records in order of time.
        pairs: Seconds and USD to move a checkpoint from place to place; shape (2, places, places).
        delays: Seconds to launch and to boot; row (second of the request + index of the lease) modulo n; shape
            (n, 2).
        rule: A `RULE` record of the policy, the job and the billing.
        leases: `LEASE` records of all machines, filled by the replay; shape (MAX_LEASES,).
        opened: Indices of the open leases; shape (MAX_OPEN,).
        timers: Times of the timers that are set, seconds; shape (MAX_TIMERS,).
    """

    points: Any
    markets: Any
    cheapest: Any
    pairs: Any
    delays: Any
    rule: Any
    leases: Any
    opened: Any
    timers: Any
