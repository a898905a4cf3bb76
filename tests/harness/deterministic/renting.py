"""Tenants of the simulated cloud: a run with everything its controllers use, and another run of the same id."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tests.harness.deterministic.cloud import CloudOf, SimulatedCloud, Tenant
from tests.harness.deterministic.faults import Faults
from tests.harness.deterministic.scenario import RUN, Scenario
from tests.harness.deterministic.storage import Disk, SimulatedJournal, SimulatedStorage, StorageOf
from tests.harness.deterministic.virtual_time import Process, VirtualRuntime, VirtualTime

from ebbtide.agent.config import AgentConfig
from ebbtide.base.files import write_secret
from ebbtide.clouds.cloud import Cloud
from ebbtide.clouds.own_machines import OwnMachines
from ebbtide.clouds.provider import RentingCloud
from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.clouds.several import SeveralClouds
from ebbtide.clouds.unique_names import fingerprint_of
from ebbtide.controller.agent_provider import PollIntervals
from ebbtide.controller.controller import Controller, Outside, Programs

# Real seconds without a controller after which machines end themselves.
LIMIT_S = 60.0
# Polls for which machines that are not listed are waited for.
_MISSING_POLLS = 5.0
# An agent is given up after this many seconds without a report.
SILENT_S = 45.0


def settings_of(scenario: Scenario, folder: Path, seed: int, fingerprint: str = "") -> LiveSettings:
    """Return the settings of a run of the scenario."""
    values = scenario.sweep.model_dump(mode="json")
    return LiveSettings(
        RUN, "local", scenario.policy_name, values, str(folder), "", {"speed": 1.0}, seed, fingerprint=fingerprint
    )


@dataclass(frozen=True)
class Renting:
    """Everything that a run's controllers use.

    Attributes:
        time: The simulation's clock.
        faults: Decides what goes wrong.
        scenario: The scenario that is run.
        cloud: The cloud, shared with other runs.
        tenant: The run as the cloud sees it.
    """

    time: VirtualTime
    faults: Faults
    scenario: Scenario
    cloud: SimulatedCloud
    tenant: Tenant

    def controller(
        self, folder: RunFolder, process: Process, runtime: VirtualRuntime, journal: SimulatedJournal
    ) -> Controller:
        """Make a controller of the run, in a process."""
        poll_s, settings = self.scenario.poll_s, folder.settings
        agent = AgentConfig(
            RUN,
            "",
            "",
            "",
            poll_s=poll_s,
            notice_poll_s=poll_s,
            report_s=poll_s,
            tick_s=poll_s / 2.0,
            controller_limit_s=LIMIT_S,
            first_save_s=2.0,
            margin_s=1.0,
        )
        parts = {name: CloudOf(self.cloud, name, self.tenant, process, runtime) for name in self.scenario.clouds}
        for part in parts.values():
            part.beside = [each for each in parts.values() if each is not part]
            part.missing_s = (_MISSING_POLLS + 1.0) * poll_s
        clouds = {name: cast(RentingCloud, part) for name, part in parts.items()}
        rents: Cloud = SeveralClouds(clouds) if len(clouds) > 1 else next(iter(clouds.values()))
        if settings.fingerprint:
            rents = OwnMachines(cast(RentingCloud, rents), settings.run, settings.unique_name)
        objects = StorageOf(self.tenant.storage, process, runtime)
        return Controller(
            folder,
            self.scenario.policy(),
            rents,
            agent,
            Programs(600.0, "python"),
            PollIntervals(
                poll_s,
                missing_s=_MISSING_POLLS * poll_s,
                kept_s=3.0 * poll_s,
                many=self.scenario.many,
                silent_s=SILENT_S,
            ),
            Outside(runtime, objects, journal, accounts=objects),
        )


class Namesake:
    """Another user's run of the same id, in the same account, with its own storage.

    Args:
        time: The simulation's clock.
        faults: Decides what goes wrong.
        scenario: The scenario that is run.
        cloud: The shared cloud.
        folder: Folder of the run.
        seed: Seed of the run, from which its key is made.

    Attributes:
        process: The process of its newest controller; None: no controller has begun.
    """

    def __init__(
        self, time: VirtualTime, faults: Faults, scenario: Scenario, cloud: SimulatedCloud, folder: Path, seed: int
    ) -> None:
        self.process: Process | None = None
        self._folder, self._disk = RunFolder(folder), Disk()
        folder.mkdir(parents=True)
        write_secret(folder / "key", hashlib.sha256(f"namesake {seed}".encode()).hexdigest())
        fingerprint = fingerprint_of(self._folder.key)
        self._folder.begin(settings_of(scenario, folder, seed, fingerprint))
        tenant = Tenant(self._folder.settings.unique_name, SimulatedStorage(time, faults))
        self._rents = Renting(time, faults, scenario, cloud, tenant)

    def live(self, is_over: Callable[[], bool]) -> None:
        """Run it, with a new controller whenever one has ended, until it is done or the simulation is over."""
        time, faults, controllers = self._rents.time, self._rents.faults, 0
        time.sleep(faults.number("a namesake begins", 0.0, 10.0))
        finished: list[bool] = []

        def body(process: Process, runtime: VirtualRuntime) -> None:
            journal = SimulatedJournal(self._disk, process, time, faults)
            finished.append(self._rents.controller(self._folder, process, runtime, journal).run().finished)
            process.is_alive = False

        while not any(finished) and not is_over():
            controllers += 1
            process = self.process = Process(f"namesake-{controllers}")
            runtime = VirtualRuntime(time, process, faults.number("namesake's skew", -300.0, 300.0))
            time.begin(process, lambda process=process, runtime=runtime: body(process, runtime))  # type: ignore[misc]
            while process.is_alive:
                time.sleep(2.0)
            time.sleep(faults.number("a namesake waits", 1.0, 20.0))
