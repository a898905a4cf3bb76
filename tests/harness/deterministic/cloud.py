"""A simulated cloud: it rents out machines that run real agents, revokes and forgets them, and bills them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from tests.harness.deterministic.faults import Faults
from tests.harness.deterministic.machines import SimulatedMachine
from tests.harness.deterministic.storage import SimulatedStorage
from tests.harness.deterministic.virtual_time import Process, VirtualRuntime, VirtualTime

from ebbtide.agent.agent import ENDS_MACHINE, Agent
from ebbtide.agent.config import AgentConfig
from ebbtide.clouds.cloud import Instance, MachineRequest
from ebbtide.errors import CloudError
from ebbtide.market.billing import ON_DEMAND, Billing, LeaseEnding
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory

# Shares of requests, then of machines, by fault.
_REFUSED, _NO_REPLY, _SLOW, _OLD, _DIES = 0.06, 0.05, 0.02, 0.05, 0.002
_NOT_LAUNCHED, _SUDDEN, _FORGOTTEN, _NOT_ENDED = 0.08, 0.25, 0.1, 0.02
# Seconds that a listing may be old, as one that was made by another server of the cloud.
_OLD_S = 30.0
_LATENCY_S, _SLOW_S = (0.02, 0.3), (1.0, 12.0)
_REQUEST_S, _BOOT_S, _LIFE_S, _NOTICE_S = (0.5, 6.0), (2.0, 15.0), (30.0, 900.0), (8.0, 40.0)
_FORGOTTEN_AFTER_S, _REFUSED_FOR_S = (5.0, 60.0), (10.0, 90.0)
_NO_SET_UP, _NO_SET_UP_FOR_S = 0.02, (20.0, 120.0)
# The start script ends a hanging set-up after this time, if the controller has not ended the machine before.
_HANGS, _HANGS_FOR_S = 0.04, 400.0
_LOOK_S, _SKEW_S = 2.0, 400.0
# A controller lists its machines about so often before it first polls.
_LOOKS_BEFORE = 4
# Seconds for which a cloud beside others answers nothing, and until a request fails meanwhile; the share of requests
# for machines that are never sent then. Others take effect.
_SILENT_S, _HANGS_S, _UNSENT = (20.0, 300.0), (0.05, 10.0), 0.5
_OPEN = (LeaseState.REQUESTED, LeaseState.STARTING, LeaseState.RUNNING)


class _Refused(CloudError):
    """The cloud refused a request."""

    is_refusal = True


@dataclass(eq=False)
class Tenant:
    """A run as the cloud sees it.

    Attributes:
        tag: Tag of its machines, by which its controllers find them.
        storage: Storage that its agents use.
        on_step: Called with an agent's process, trial, step, and whether the program begins there or has done it.
        on_start: Called with an agent's process and its number of programs, whenever it starts one.
        on_end: Called with a controller and the machine that it ends.
        on_stranded: Called with a machine that ends for lack of a heartbeat, and the time of the last one.
        on_asked_in_vain: Called with a controller and its request of a cloud that has not listed its machines for
            long, beside others.
    """

    tag: str
    storage: SimulatedStorage
    on_step: Callable[[Process, str, int, bool], None] = lambda *_: None
    on_start: Callable[[Process, int], None] = lambda *_: None
    on_end: Callable[[Process, RentedMachine], None] = lambda *_: None
    on_stranded: Callable[[RentedMachine, float], None] = lambda *_: None
    on_asked_in_vain: Callable[[Process, MachineRequest], None] = lambda *_: None


@dataclass(eq=False)
class RentedMachine:
    """A machine as the cloud sees it.

    Attributes:
        wanted: The request for it.
        tenant: The run that requested it.
        state: Its state.
        is_known: Whether the cloud lists it.
        listed_ended: Whether a listing has shown its end to a controller.
        bill_usd: Its cost, USD; 0 until it has ended.
        agent: The process of its agent; None: no agent was started.
        agent_began_s: Start of that process, seconds since 1970; infinity: not started.
        hangs_since_s: Time since which its set-up hangs, seconds since 1970; infinity: it does not.
    """

    wanted: MachineRequest
    tenant: Tenant
    state: LeaseState = LeaseState.REQUESTED
    started_s: float = math.nan
    running_s: float = math.nan
    ended_s: float = math.nan
    taken_at_s: float | None = None
    why: str = ""
    is_known: bool = True
    listed_ended: bool = False
    not_ended_until_s: float = -math.inf
    bill_usd: float = 0.0
    agent: Process | None = None
    agent_began_s: float = math.inf
    hangs_since_s: float = math.inf
    exit_code: int | None = None
    skew_s: float = 0.0

    @property
    def is_open(self) -> bool:
        """True if the machine costs money, or will."""
        return self.state in _OPEN


@dataclass
class SimulatedCloud:
    """The true state of all machines in an account.

    Attributes:
        time: The simulation's clock.
        faults: Decides what goes wrong.
        prices: Prices of all markets.
        billing: Billing rule of spot machines.
        listed: On-demand price in USD an hour.
        folder: Folder below which agents work.
        on_shared: Called with a machine of another run that a run requests or ends.
        silent_until_s: By cloud, time until which it answers nothing, seconds since 1970.
    """

    time: VirtualTime
    faults: Faults
    prices: PriceHistory
    billing: Billing
    listed: Callable[[Market], float]
    folder: Path
    on_shared: Callable[[RentedMachine], None] = lambda _machine: None
    machines: dict[str, RentedMachine] = field(default_factory=dict)
    process: Process = field(default_factory=lambda: Process("cloud"))
    silent_until_s: dict[str, float] = field(default_factory=dict)
    _folders: int = 0
    _no_set_up_until_s: float = -math.inf

    def machines_of(self, tenant: Tenant) -> dict[str, RentedMachine]:
        """Return the machines of a run by token."""
        return {token: machine for token, machine in self.machines.items() if machine.tenant is tenant}

    def fall_silent(self, name: str) -> None:
        """Let a cloud answer nothing for some minutes."""
        self.silent_until_s[name] = self.time.now_s + self.faults.number("silent for", *_SILENT_S)

    def is_silent(self, name: str) -> bool:
        """Tell whether a cloud answers nothing now."""
        return self.faults.is_active and self.time.now_s < self.silent_until_s.get(name, -math.inf)

    def launch(self, wanted: MachineRequest, tenant: Tenant) -> None:
        """Begin to rent a machine, unless its token was used before."""
        before = self.machines.get(wanted.token)
        if before is None:
            machine = self.machines[wanted.token] = RentedMachine(wanted, tenant)
            self.time.begin(self.process, lambda: self._live(machine))
        elif before.tenant is not tenant:
            self.on_shared(before)

    def end(self, machine: RentedMachine, state: LeaseState, why: str = "") -> None:
        """End a machine and everything that runs on it, and bill it."""
        if not machine.is_open:
            return
        is_charged = not math.isnan(machine.started_s)
        machine.state = state if is_charged else LeaseState.FAILED
        machine.ended_s, machine.why = self.time.now_s, why
        if is_charged:
            ending = LeaseEnding.REVOKED if state is LeaseState.REVOKED else LeaseEnding.RELEASED
            machine.bill_usd = self.cost_usd(machine, self.time.now_s, ending)
        if machine.agent is not None:
            self.time.kill(machine.agent)
        if self.faults.strikes("cloud: forgets", _FORGOTTEN, self.time.now_s, machine.wanted.token):
            self.time.begin(self.process, lambda: self._forget(machine))

    def cost_usd(
        self, machine: RentedMachine, until_s: float, ending: LeaseEnding = LeaseEnding.RELEASED
    ) -> float:
        """Return the cost of a machine that ends at this time in this way, USD net of refunds."""
        market = machine.wanted.market
        if machine.wanted.on_demand:
            prices = PriceSeries(np.array([machine.started_s]), np.array([self.listed(market)]))
            return self.rule(machine).bill(prices, machine.started_s, until_s, ending).usd
        return self.rule(machine).bill(self.prices[market], machine.started_s, until_s, ending).usd

    def rule(self, machine: RentedMachine) -> Billing:
        """The billing rule of a machine."""
        return (self.billing.on_demand or ON_DEMAND) if machine.wanted.on_demand else self.billing

    def instance(self, machine: RentedMachine) -> Instance:
        """A machine as the cloud lists it."""
        return Instance(
            machine.wanted.token,
            machine.state,
            machine.started_s,
            machine.running_s,
            machine.ended_s,
            machine.why,
        )

    # The life of a machine.

    def _live(self, machine: RentedMachine) -> None:
        number, wanted = self.faults.number, machine.wanted
        self.time.sleep(number("request takes", *_REQUEST_S))
        if not machine.is_open:
            return
        series = self.prices[wanted.market]
        too_dear = not wanted.on_demand and series.at(self.time.now_s) > wanted.max_price_usd_per_hour
        if too_dear or self.faults.strikes("cloud: no capacity", _NOT_LAUNCHED, self.time.now_s, wanted.token):
            machine.state, machine.ended_s = LeaseState.FAILED, self.time.now_s
            machine.why = "no capacity"
            return
        machine.state, machine.started_s = LeaseState.STARTING, self.time.now_s
        taken_s = self.time.now_s + number("lives", *_LIFE_S) if self.faults.is_active else math.inf
        is_sudden = self.faults.strikes("cloud: takes it without notice", _SUDDEN, self.time.now_s, wanted.token)
        notice_s = 0.0 if is_sudden else number("notice", *_NOTICE_S)
        if wanted.on_demand and not is_sudden:
            taken_s = math.inf
        taken_s = min(taken_s, self._dearer_s(machine) + notice_s)
        self.time.sleep(number("boot takes", *_BOOT_S))
        if not machine.is_open:
            return
        machine.state, machine.running_s = LeaseState.RUNNING, self.time.now_s
        if self._set_up_fails(machine):
            self.time.sleep(number("set-up fails after", *_REQUEST_S))
            self.end(machine, LeaseState.RELEASED, "its set-up failed")
            return
        if self.faults.strikes("cloud: set-up hangs", _HANGS, self.time.now_s, wanted.token):
            machine.hangs_since_s = self.time.now_s
            self.time.sleep(_HANGS_FOR_S)
            self.end(machine, LeaseState.RELEASED, "its set-up hung")
            return
        machine.skew_s = number("skew", -_SKEW_S, _SKEW_S)
        self._boot(machine)
        while machine.is_open:
            if machine.taken_at_s is None and not is_sudden and self.time.now_s >= taken_s - notice_s:
                machine.taken_at_s = taken_s
            if self.time.now_s >= taken_s:
                self.end(machine, LeaseState.REVOKED, "taken")
                return
            if machine.agent is not None and (machine.exit_code is not None or not machine.agent.is_alive):
                if machine.exit_code == ENDS_MACHINE:
                    self.end(machine, LeaseState.RELEASED, "ended by its agent")
                    return
                self._boot(machine)
            self.time.sleep(min(_LOOK_S, max(taken_s - self.time.now_s, 0.0)))

    def _set_up_fails(self, machine: RentedMachine) -> bool:
        """Return whether a machine's set-up fails; after a failure all fail for a while, as with an index down."""
        now_s = self.time.now_s
        if self.faults.strikes("cloud: set-up fails", _NO_SET_UP, now_s, machine.wanted.token):
            self._no_set_up_until_s = now_s + self.faults.number("set-up fails for", *_NO_SET_UP_FOR_S)
        return now_s < self._no_set_up_until_s and self.faults.is_active

    def _dearer_s(self, machine: RentedMachine) -> float:
        """Find the time at which the price next exceeds the max price; infinity: never."""
        wanted, series = machine.wanted, self.prices[machine.wanted.market]
        time_s = self.time.now_s
        while not wanted.on_demand and time_s < math.inf:
            time_s = series.next_change(time_s)
            if time_s < math.inf and series.at(time_s) > wanted.max_price_usd_per_hour:
                return time_s
        return math.inf

    def _boot(self, machine: RentedMachine) -> None:
        if machine.agent is not None:
            # Kill everything of the previous agent, as a service manager does.
            self.time.kill(machine.agent)
        self._folders += 1
        folder = self.folder / f"m{self._folders}"
        config = AgentConfig(**{**machine.wanted.agent, "folder": str(folder)})
        process = machine.agent = Process(f"agent-{machine.wanted.token}-{self._folders}")
        machine.exit_code, machine.agent_began_s = None, self.time.now_s
        own = SimulatedMachine(
            process,
            self.time,
            machine.tenant.storage,
            self.faults,
            machine.skew_s,
            lambda: machine.taken_at_s,
            machine.tenant.on_step,
            machine.tenant.on_start,
        )

        def run() -> None:
            agent = Agent(config, own)
            machine.exit_code = agent.run()
            if agent.stranded_since_s < math.inf:
                machine.tenant.on_stranded(machine, agent.stranded_since_s)
            self.time.kill(process)

        self.time.begin(process, run)

    def _forget(self, machine: RentedMachine) -> None:
        self.time.sleep(self.faults.number("forgotten after", *_FORGOTTEN_AFTER_S))
        machine.is_known = False


class CloudOf:
    """One of the clouds, as accessed by a controller.

    Args:
        cloud: The machines of all clouds.
        name: Name of the cloud in markets.
        tenant: The controller's run.
        process: The controller's process.
        runtime: Runtime of that process.
    """

    def __init__(
        self, cloud: SimulatedCloud, name: str, tenant: Tenant, process: Process, runtime: VirtualRuntime
    ) -> None:
        self._cloud, self._name, self._tenant = cloud, name, tenant
        self._process, self._runtime = process, runtime
        # Other clouds of the run, and the time for which a cloud that does not answer is waited for beside them.
        self.beside: Sequence[CloudOf] = ()
        self.missing_s = math.inf
        self._heard_s, self._unheard_s = math.nan, list[float]()
        self._asked = set[str]()
        self._before: list[Instance] = []
        self._before_s = -math.inf

    @property
    def now_s(self) -> float:
        return self._cloud.time.now_s

    @property
    def is_over(self) -> bool:
        return False

    @property
    def markets(self) -> Sequence[Market]:
        return [market for market in self._cloud.prices if market.cloud == self._name]

    def prices(self, market: Market) -> PriceSeries:
        return self._cloud.prices[market]

    def time_of(self, epoch_s: float) -> float:
        return epoch_s

    def launch(self, wanted: MachineRequest) -> None:
        is_known = wanted.token in self._asked or wanted.token in self._cloud.machines
        since_s = self._unheard_s[_LOOKS_BEFORE] if len(self._unheard_s) > _LOOKS_BEFORE else math.nan
        if not is_known and any(each._heard_s - since_s >= self.missing_s for each in self.beside):
            self._tenant.on_asked_in_vain(self._process, wanted)
        self._asked.add(wanted.token)
        self._request("launch", wanted.token, takes_effect=lambda: self._launch(wanted))
        self._launch(wanted)
        self._reply("launch", wanted.token)

    def _launch(self, wanted: MachineRequest) -> None:
        self._cloud.launch(replace(wanted, agent=dict(wanted.agent)), self._tenant)

    def terminate(self, token: str) -> float | None:
        self._request("end", token)
        machine = self._cloud.machines.get(token)
        if machine is None or not machine.is_known or machine.wanted.market.cloud != self._name:
            return None
        now_s = self.now_s
        if machine.is_open and self._strikes("may not end", _NOT_ENDED, token):
            machine.not_ended_until_s = now_s + self._cloud.faults.number("may not end for", *_REFUSED_FOR_S)
        if now_s < machine.not_ended_until_s and self._cloud.faults.is_active and machine.is_open:
            raise _Refused(f"{token}: UnauthorizedOperation")
        if machine.tenant is not self._tenant:
            self._cloud.on_shared(machine)
        elif machine.is_open:
            self._tenant.on_end(self._process, machine)
        self._cloud.end(machine, LeaseState.RELEASED)
        self._reply("end", token)
        return machine.ended_s

    def instances(self) -> Sequence[Instance]:
        try:
            found = self._listed()
        except CloudError:
            self._unheard_s.append(self.now_s)
            raise
        self._heard_s, self._unheard_s = self.now_s, []
        return found

    def _listed(self) -> Sequence[Instance]:
        self._request("list machines", "")
        is_recent = self._cloud.time.now_s - self._before_s <= _OLD_S
        if self._before and is_recent and self._strikes("lists as it was", _OLD, ""):
            return self._before
        found = [
            machine
            for machine in self._cloud.machines.values()
            if machine.is_known
            and machine.tenant.tag == self._tenant.tag
            and machine.wanted.market.cloud == self._name
        ]
        self._reply("list machines", "")
        for machine in found:
            machine.listed_ended = machine.listed_ended or not machine.is_open
        self._before = [self._cloud.instance(machine) for machine in found]
        self._before_s = self._cloud.time.now_s
        return self._before

    def _request(self, what: str, token: str, takes_effect: Callable[[], None] | None = None) -> None:
        """Let a request travel; it may not arrive, and may take effect though the cloud does not answer."""
        faults = self._cloud.faults
        duration_s = faults.number("cloud latency", *_LATENCY_S)
        if self._strikes("slow", _SLOW, token):
            duration_s = faults.number("cloud slow by", *_SLOW_S)
        is_silent = self._cloud.is_silent(self._name)
        if is_silent:
            duration_s = faults.number("cloud hangs for", *_HANGS_S)
        self._runtime.sleep(duration_s)
        if self._strikes(f"dies before {what}", _DIES, token):
            self._cloud.time.kill(self._process)
        if is_silent:
            error = CloudError(f"{what}: {self._name} does not answer")
            if takes_effect is not None:
                error.is_unsent = faults.number("not sent", 0.0, 1.0) < _UNSENT
                if not error.is_unsent:
                    takes_effect()
            raise error
        if self._strikes(f"refused {what}", _REFUSED, token):
            raise CloudError(f"{what}: RequestLimitExceeded")

    def _reply(self, what: str, token: str) -> None:
        if self._strikes(f"dies after {what}", _DIES, token):
            self._cloud.time.kill(self._process)
        if self._strikes(f"no reply to {what}", _NO_REPLY, token):
            raise CloudError(f"{what}: the connection was closed")

    def _strikes(self, kind: str, share: float, token: str) -> bool:
        return self._cloud.faults.strikes(f"controller: cloud {kind}", share, self._cloud.time.now_s, token)
