"""Memory, storage and journal of a run of a week on the virtual clock: `python -m tests.harness.week_study`.

Three trainings of a week run on machines that live for hours, with the faults of the deterministic simulation, which
are rarer here. Every hour the objects that the controller and the oldest agent hold are measured, and what is in
storage and in the journal. Written to reports/week.json, with a row for each policy.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from unittest.mock import patch
from weakref import WeakSet

from tests.harness.deterministic import cloud, machines, renting, scenario, world
from tests.harness.deterministic.scenario import Scenario
from tests.harness.deterministic.simulate import in_memory
from tests.harness.memory_study import quarters
from tests.harness.study import failed, run_study

from ebbtide.agent.agent import Agent
from ebbtide.controller.controller import Controller

_DAY_S, _EVERY_S = 86_400.0, 3_600.0
# Machines live for hours, steps take half a minute, and faults are as much rarer as the run is longer.
_LIFE_S, _STEP_S, _INTENSITY, _LIMIT_S, _POLL_S = (6 * 3600.0, 48 * 3600.0), (25.0, 35.0), 0.004, 900.0, 20.0
_HEARTBEATS_KEPT = 200
# Bytes of the journal for each machine that was rented.
_JOURNAL_BYTES = 8 << 10
# Growth from the second to the last quarter of the run that is allowed, as a share of the second.
_FLAT = 0.25


@dataclass(frozen=True)
class WeekReport:
    """Memory, storage and journal of a run of some days, in its second and in its last quarter.

    Attributes:
        policy: Name of the policy.
        days: Virtual days that the run lasted.
        finished: Whether all trainings finished, and no invariant of the simulation broke.
        machines: Machines that were rented.
        controllers: Controllers that were started.
        faults: Faults that happened.
        controller_bytes: Mean size of the objects that the controller holds, without the values of metrics.
        agent_bytes: The same of the agent that had run for longest.
        stored_objects: Mean number of objects in the run's storage.
        journal_bytes: Mean size of the run's journal without metrics and events, which are its record.
        metrics: Values of metrics that the controller held at the end, one for each step.
        events: Events in the journal at the end.
        violations: Invariants that were broken, in words.
    """

    policy: str
    days: float
    finished: bool
    machines: int
    controllers: int
    faults: int
    controller_bytes: tuple[float, float]
    agent_bytes: tuple[float, float]
    stored_objects: tuple[float, float]
    journal_bytes: tuple[float, float]
    metrics: int
    events: int
    violations: tuple[str, ...]

    @property
    def problems(self) -> list[str]:
        """Failed checks, in words; empty if all hold."""
        return failed(
            {
                f"broke an invariant or did not finish: {'; '.join(self.violations)}": self.finished,
                "the controller grows": _is_flat(self.controller_bytes),
                "the agent grows": _is_flat(self.agent_bytes),
                "storage grows": _is_flat(self.stored_objects),
                # A lease, its bills and the decisions about it are kept for each machine.
                "the journal grows": self.journal_bytes[1] < _JOURNAL_BYTES * max(self.machines, 1),
            }
        )


def _is_flat(measured: tuple[float, float]) -> bool:
    return measured[1] <= (1.0 + _FLAT) * measured[0]


class _Week(world._World):
    """A simulated run that is measured every hour."""

    def __init__(self, seed: int, folder: Path, days: float, policy: str) -> None:
        def drawn(given: Scenario) -> Scenario:
            steps = int(days * _DAY_S / (sum(_STEP_S) / 2.0))
            changed = {"grid": {"lr": [0.1, 0.2, 0.3]}, "max_trial_steps": steps, "budget_usd": None, "share": 1.0}
            sweep = given.sweep.model_copy(update=changed)
            return replace(given, sweep=sweep, policy_name=policy, poll_s=_POLL_S, team=None)

        super().__init__(seed, folder, None, drawn)
        self.faults._intensity = _INTENSITY
        self.made: list[Controller] = []
        self.agents: WeakSet[Agent] = WeakSet()
        self.rows: list[tuple[int, int, int, int]] = []
        self.metrics = 0

    def measure(self) -> None:
        """Measure every hour until the run is over."""
        while not self.over:
            self.time.sleep(_EVERY_S)
            # The simulation keeps all heartbeats, of which no machine reads old ones.
            del self.storage.heartbeats[:-_HEARTBEATS_KEPT]
            living = [machine.agent for machine in self.cloud.machines.values() if machine.is_open]
            of_agents = [each for each in self.agents if each._runtime._process in living]  # type: ignore[attr-defined]
            if not of_agents or self.controller is None or not self.controller.is_alive:
                continue
            oldest = min(of_agents, key=lambda agent: agent._config.machine)
            kept = [*self.disk.records.values(), *self.disk.states.values()]
            controller = self.made[-1]
            values = [each.metrics for each in controller.provider.trials]
            self.metrics = sum(map(len, values))
            controller_bytes = held_bytes(controller) - held_bytes(values)
            rest = held_bytes(oldest), len(self.storage._objects), sum(map(len, kept))
            self.rows.append((controller_bytes, *rest))


def held_bytes(root: object) -> int:
    """Size of an object and of everything that it holds, without modules, classes and the simulation's own."""
    globals_of = {id(vars(module)) for module in list(sys.modules.values()) if isinstance(module, ModuleType)}
    seen, waiting, total = {id(root)}, [root], 0
    while waiting:
        one = waiting.pop()
        total += sys.getsizeof(one)
        for each in gc.get_referents(one):
            is_outside = isinstance(each, type | ModuleType) or type(each).__module__.startswith(
                ("tests.", "logging")
            )
            if id(each) in seen or id(each) in globals_of or is_outside:
                continue
            seen.add(id(each))
            waiting.append(each)
    return total


@contextmanager
def _slower() -> Iterator[None]:
    """Let machines live for hours, and everything take its time."""
    with ExitStack() as stack:
        for place, name, value in (
            (cloud, "_LIFE_S", _LIFE_S),
            (cloud, "_LOOK_S", _POLL_S),
            (machines, "_STEP_S", _STEP_S),
            (renting, "LIMIT_S", _LIMIT_S),
            (world, "LIMIT_S", _LIMIT_S),
        ):
            stack.enter_context(patch.object(place, name, value))
        yield


def studied(_runs: Path, days: float, seed: int) -> Sequence[WeekReport]:
    """Run the three trainings once with each policy, with their files in memory: they are written very often.

    Args:
        days: Virtual days that the trainings take.
        seed: Seed of the simulation.
    """
    with in_memory() as place:
        return [_studied(place / policy, days, seed, policy) for policy in ("on-demand", "reactive")]


def _studied(place: Path, days: float, seed: int, policy: str) -> WeekReport:
    with (
        _slower(),
        patch.object(world, "FAULTS_S", days * _DAY_S),
        patch.object(scenario, "LONGEST_S", 2.0 * days * _DAY_S),
    ):
        week = _Week(seed, place, days, policy)
        made, begun = renting.Renting.controller, Agent.__init__

        def controller(*given: object) -> Controller:
            week.made.append(made(*given))  # type: ignore[arg-type]
            return week.made[-1]

        def begin(agent: Agent, *given: object) -> None:
            begun(agent, *given)  # type: ignore[arg-type]
            week.agents.add(agent)

        with patch.object(renting.Renting, "controller", controller), patch.object(Agent, "__init__", begin):
            week.time.begin(week.user, week.measure)
            found = week.run()
    controller_bytes, agent_bytes, stored_objects, journal_bytes = map(quarters, zip(*week.rows, strict=True))
    return WeekReport(
        policy=policy,
        days=found.simulated_s / _DAY_S,
        finished=found.is_whole and found.state == "finished",
        machines=found.machines,
        controllers=found.controllers,
        faults=len(found.faults),
        controller_bytes=controller_bytes,
        agent_bytes=agent_bytes,
        stored_objects=stored_objects,
        journal_bytes=journal_bytes,
        metrics=week.metrics,
        events=len(week.disk.moments),
        violations=tuple(f"{each.what}: {each.why}" for each in found.violations),
    )


if __name__ == "__main__":
    run_study(__doc__, "reports/week.json", studied, days=7.0, seed=0)
