"""The policy protocol: the one function that a policy is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from ebbtide.errors import InputError, PolicyError
from ebbtide.jobs.job import Job
from ebbtide.policies.api.actions import Action
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.view import View


@runtime_checkable
class Policy(Protocol):
    """Decides what to rent.

    Write a frozen dataclass whose fields are the policy's parameters, and give it to `backtest`, `compare`, `plan`
    and `run`, or name it on the command line as `FILE.py:CLASS`. Everything that it needs is in
    `ebbtide.policies`:

        import math
        from collections.abc import Iterable
        from dataclasses import dataclass

        from ebbtide.policies import Action, Request, View, Wake, WakeAt

        @dataclass(frozen=True)
        class Cheapest:
            most_usd_per_hour: float = math.inf
            name: str = "cheapest"
            wakes_on: frozenset[Wake] = frozenset()

            def decide(self, view: View) -> Iterable[Action]:
                for job in view.jobs:
                    if not job.is_finished and not view.leases_of(job.job_id):
                        able = [market for market in view.markets if view.steps_per_s(job.job, market) > 0]
                        if able:
                            market = min(able, key=view.price)
                            yield Request(market, self.most_usd_per_hour, job=job.job_id)
                        else:
                            yield WakeAt(view.now_s + 300.0)

    The life of a policy in one run:

    1. `decide` is called with a `Wake.START` event before anything is rented.
    2. Then it is called whenever something has happened that it is always told (a machine has booted, was refused,
       got a revocation notice, ended; a job reached a step that was asked for, or is finished; a timer), and for
       what it names in `wakes_on` (price changes, ends of charge periods, complete checkpoints, recommendations to
       leave a machine).
    3. Each time it answers with actions, in a list or as it yields them. An action is done before the next one is
       asked for, so that the view is up to date after each `yield`. No action means: go on as before.
    4. The run ends when every job is finished or stopped, or when the policy gives up. There is no last call.

    The view is read-only. `decide` depends on the view and on `view.memory` alone, a dictionary of plain values
    (what JSON can hold), which the engine keeps between calls and a live controller stores: the policy object may
    be another one at the next call. One object may serve many runs, so it keeps nothing itself. Random numbers
    come from `view.random`. An exception ends the run with a `PolicyError` that names policy, time and line.

    The goals of the work (deadline, budget, theta and the like) are `view.goals`. A policy whose parameters depend
    on them has one more method, `for_goals(goals) -> Policy`: each verb calls it once, before the run, and uses
    the policy that it returns.

    `ebbtide.testing.PolicyContract` checks all of this from a test file of your own.
    """

    @property
    def name(self) -> str:
        """Name of the policy in tables, on the command line and in tags."""
        ...

    @property
    def wakes_on(self) -> frozenset[Wake]:
        """Kinds of events that wake the policy, beyond those that are always delivered."""
        ...

    def decide(self, view: View) -> Iterable[Action]:
        """Answer the events of `view`.

        Args:
            view: The world at this moment; read-only, and good for this call.

        Returns:
            Actions, in the order in which they are to be done.
        """
        ...


def check_fits(policy: Policy, jobs: Iterable[Job]) -> None:
    """Raise `InputError` for jobs that a policy is not made for.

    A policy says so by an attribute: `one_machine_a_job = True` if it rents one machine for each job, `one_job =
    True` if it rents any number of machines, none among them, for one job. One that serves several groups of jobs
    has a method of its own, `check_fits(jobs)`.

    Args:
        policy: A policy, or one that wraps another as its `policy`.
        jobs: The jobs that it is to run.
    """
    inner: Any = policy
    says = ("one_machine_a_job", "one_job", "check_fits")
    while not any(hasattr(inner, name) for name in says) and hasattr(inner, "policy"):
        inner = inner.policy
    asked, one_job = list(jobs), getattr(inner, "one_job", False)
    if hasattr(inner, "check_fits"):
        inner.check_fits(asked)
        return
    if one_job and len(asked) > 1:
        raise InputError(
            f"policy {policy.name} rents machines for one job, and these are {len(asked)}", field="policy"
        )
    if not one_job and not getattr(inner, "one_machine_a_job", False):
        return
    gives = "any number of machines, none among them" if one_job else "each job one machine"
    for job in asked:
        if job.least_machines > 1:
            raise InputError(
                f"policy {policy.name} gives {gives}, and job {job.name} waits for "
                f"{job.least_machines}; others give several, such as reactive or exosphere",
                field="policy",
            )


def checked_policy(policy: object) -> Policy:
    """The policy, if it has what every policy has: a name, what wakes it, and how it decides.

    Raises:
        PolicyError: It lacks one of them, or is a class and no instance of it.
    """
    if isinstance(policy, type):
        raise PolicyError(f"is a class; give an instance of it: {policy.__name__}()", policy=policy.__name__)
    kind = type(policy).__name__
    for field, example in _EXAMPLES.items():
        if not hasattr(policy, field):
            raise PolicyError(f"has no {field}; a policy has {example}", policy=kind)
    name = getattr(policy, "name", None)
    if not isinstance(name, str) or not name.strip():
        raise PolicyError(f"name is {name!r}; a policy has {_EXAMPLES['name']}", policy=kind)
    if not callable(getattr(policy, "decide", None)):
        raise PolicyError(f"decide is no method; a policy has {_EXAMPLES['decide']}", policy=name)
    wakes = getattr(policy, "wakes_on", None)
    if not isinstance(wakes, (frozenset, set)) or not all(isinstance(wake, Wake) for wake in wakes):
        raise PolicyError(f"wakes_on is {wakes!r}; a policy has {_EXAMPLES['wakes_on']}", policy=name)
    return policy  # type: ignore[return-value]


_EXAMPLES = {
    "name": "a name in text, such as name = 'mine'",
    "wakes_on": "a frozenset of Wake, such as wakes_on = frozenset({Wake.PRICE}), or frozenset() for none",
    "decide": "a method decide(self, view) that answers with actions",
}
