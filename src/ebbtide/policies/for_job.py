"""The policy of a live run where the user names none, and one-line descriptions of policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ebbtide.errors import InputError, unknown_name
from ebbtide.forecasts.bundle import ModelBundle
from ebbtide.forecasts.capacity.models import SpellModels
from ebbtide.jobs.job_list import JobList, ListedJob, OneJob, Runnable
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.policies.api.goals import Goals, for_goals, keeps_deadlines, unknown_work
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.cluster_head import WithHead
from ebbtide.policies.deadline.policy import Deadline, DeadlineRule
from ebbtide.policies.dynamic_pricing.policy import DynamicPricing
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.policies.job_order import InOrder, JobGroup
from ebbtide.policies.parameters import with_parameters
from ebbtide.policies.registry import DEFAULT, DEFAULT_NAME, absolute_name, check_names, names_of, resolved
from ebbtide.policies.registry import policy as policy_named
from ebbtide.policies.spottune.policy import SpotTune

_SUMMARIES = {
    "ebbtide": "the machine of least expected cost for what is left to do, spot or on demand; with a deadline, in "
    "time; trials are predicted at theta and only the best trained to the end",
    "reactive": "the machine cheapest for each step, at no more than the on-demand price; when it is revoked, the "
    "one cheapest then",
    "deadline": "spot machines while there is time, on-demand ones when the deadline leaves none",
    "spottune-bid": "the machine and max price of least expected cost for each step; trials are predicted at "
    "theta and only the best trained to the end",
}


def policy_for(
    sweep: Runnable,
    name: str,
    spells: SpellModels | None = None,
    models: ModelBundle | None = None,
    parameters: Mapping[str, Any] | None = None,
    catalogue: Catalogue | None = None,
) -> Policy:
    """The policy of a name, with the sweep's theta, deadline and direction, limited to the sweep's budget.

    It is the same policy wherever the name is used: in backtests, comparisons, plans and live runs, as are the
    parameters that the sweep's file has for the policy of this name.

    Args:
        sweep: The sweep, or the list of jobs, to run.
        name: A name in the registry; `default`: the policy that suits the sweep, or each job of the list.
        spells: Models of how capacity comes and goes; None: those of the bundle.
        models: What was learnt, for policies that ask it; None: what comes with the package.
        parameters: Parameters that are to differ, by name; before those of the sweep's file.
        catalogue: Known instance types, which parameters may name; the embedded catalogue by default.

    Raises:
        InputError: No policy has this name, or it has no such parameter, or not with that value.
    """
    kind, given = asked_policy(sweep, name, parameters)
    return policy_with(sweep, kind, given, spells, models, catalogue)


def policy_with(
    sweep: Runnable,
    name: str,
    parameters: Mapping[str, Any],
    spells: SpellModels | None = None,
    models: ModelBundle | None = None,
    catalogue: Catalogue | None = None,
) -> Policy:
    """The same, with the parameters that `asked_policy` gave, as a run keeps them, and no others."""
    if sweep.is_list:
        return within_budget(sweep, _in_order(sweep, name, parameters, spells, models, catalogue))
    found = for_goals(policy_named(name, models, spells=spells), Goals.of_sweep(sweep))
    found = with_parameters(found, parameters)
    _check_work_is_known(found, sweep)
    _check_limits(found, sweep.job_names, catalogue)
    return within_budget(sweep, found)


def _check_work_is_known(policy: Policy, sweep: OneJob) -> None:
    """Raise `InputError` where a deadline is to be planned for work of unknown length."""
    if not isinstance(policy, Deadline) or (sweep.is_measured and sweep.steps is not None):
        return
    # Without a deadline the other rules do with any: they compare only the time and the work that are left.
    if policy.rule is DeadlineRule.TABLE or math.isfinite(policy.deadline_s):
        raise unknown_work(policy.name, Goals.of_sweep(sweep))


def _check_limits(policy: Policy, job_names: Sequence[str], catalogue: Catalogue | None) -> None:
    if isinstance(policy, DynamicPricing):
        _check_names("job", "slo_h", policy.slo_h, job_names)
        types = (catalogue or default_catalogue()).instance_types
        _check_names("instance type", "quotas", policy.quotas, [entry.name for entry in types])


def _in_order(
    listed: JobList,
    name: str,
    parameters: Mapping[str, Any],
    spells: SpellModels | None,
    models: ModelBundle | None,
    catalogue: Catalogue | None,
) -> InOrder:
    """The policies of a list's jobs: those of jobs that name one or that need one of their own, and the list's."""

    def own(job: ListedJob) -> Policy:
        of_job = {"deadline_h": listed.deadline_of(job), "decides": listed.decides, "policy": job.policy}
        work = job.work.model_copy(update=of_job)
        if job.policy is not None:
            kind, given = asked_policy(work, DEFAULT)
        else:
            kind, given = (DEFAULT_NAME, {}) if name == DEFAULT else (name, dict(parameters))
        try:
            return policy_with(work, kind, given, spells, models, catalogue)
        except InputError as error:
            raise InputError(f"job {job.name}: {error.problem}", field=error.field) from None

    def shared(jobs: Sequence[ListedJob]) -> Policy:
        found = with_parameters(for_goals(policy_named(name, models), Goals.of_jobs(listed, jobs)), parameters)
        _check_limits(found, listed.job_names, catalogue)
        return found

    joint = name != DEFAULT and _is_joint(policy_named(name, models))
    return _grouped(listed, name, own, shared, joint=joint)


def _grouped(
    listed: JobList,
    name: str,
    own: Callable[[ListedJob], Policy],
    shared: Callable[[Sequence[ListedJob]], Policy],
    *,
    joint: bool,
) -> InOrder:
    """The groups of a list's jobs.

    Args:
        listed: The jobs.
        name: Name of the policies together.
        own: Gives the policy of one job alone.
        shared: Gives the policy of several jobs.
        joint: Whether those that begin together have a policy in common, as one that plans for all at once.
    """
    groups: list[JobGroup] = []
    together: dict[tuple[str, ...], list[ListedJob]] = {}
    for job in listed.listed:
        if joint and job.policy is None:
            together.setdefault(tuple(sorted(job.needs)), []).append(job)
        else:
            work = job.work.model_copy(update={"deadline_h": listed.deadline_of(job)})
            ids = listed.ids_of(job.name)
            groups.append(JobGroup(job.name, own(job), ids, _needed(listed, job), Goals.of_sweep(work)))
    for jobs in together.values():
        ids = tuple(job_id for job in jobs for job_id in listed.ids_of(job.name))
        names = ", ".join(job.name for job in jobs)
        clusters = [number for number, job_id in enumerate(ids) if listed.part_of(job_id)[0].kind == "cluster"]
        policy = WithHead(shared(jobs), tuple(clusters)) if clusters else shared(jobs)
        goals = Goals.of_jobs(listed, jobs)
        groups.append(JobGroup(names, policy, ids, _needed(listed, jobs[0]), goals))
    return InOrder(tuple(sorted(groups, key=lambda group: group.jobs[0])), name)


def _is_joint(policy: Policy) -> bool:
    """Return whether a policy can serve any jobs together: it neither compares trials nor plans for one job."""
    return not isinstance(policy, Ebbtide | SpotTune | Deadline) and not getattr(policy, "one_job", False)


def _needed(listed: JobList, job: ListedJob) -> tuple[tuple[int, ...], ...]:
    return tuple(listed.ids_of(needed) for needed in job.needs)


def _check_names(what: str, field: str, given: Mapping[str, float] | float, known: Collection[str]) -> None:
    """Raise `InputError` for a name that limits nothing: it was misspelt."""
    for name in given if isinstance(given, Mapping) else ():
        if name not in known:
            raise InputError(unknown_name(what, name, known).problem, field=f"{field}.{name}")


def asked_policy(
    sweep: Runnable, name: str, parameters: Mapping[str, Any] | None = None
) -> tuple[str, dict[str, Any]]:
    """The name of the policy that is asked for, and its parameters, those of the sweep's file among them.

    Args:
        sweep: The sweep to run.
        name: A name in the registry, or a file of parameters; `default`: the policy of the sweep's file, or the
            one that suits it.
        parameters: Parameters that are to differ, by name; before all others. Those of the sweep's file hold for
            the policy that it names, those of a file of parameters come last.

    Raises:
        InputError: A file of parameters cannot be read.
    """
    of_file = sweep.policy
    is_own = of_file is not None and (name == DEFAULT or absolute_name(name) == absolute_name(of_file.name))
    if of_file is not None and is_own:
        name = of_file.name
    if name == DEFAULT and sweep.is_list:
        if parameters:
            raise InputError(
                "each job of a list has a policy that suits it; name one policy to give it parameters"
            )
        return DEFAULT, {}
    kind, given = resolved(DEFAULT_NAME if name == DEFAULT else name)
    own = of_file.parameters if of_file is not None and is_own else {}
    return kind, {**given, **own, **(parameters or {})}


def policies_for(
    names: str | Sequence[str],
    sweep: Runnable | None,
    models: ModelBundle | None = None,
    catalogue: Catalogue | None = None,
    goals: Goals | None = None,
) -> list[Policy]:
    """Several policies for the same work, to be compared on it.

    Args:
        names: As for `registry.policies`.
        sweep: The sweep whose theta, deadline, direction and budget they get; None: they keep their defaults.
        models: What was learnt; see `policy_for`.
        catalogue: Known instance types; see `policy_for`.
        goals: Goals of the work where there is no sweep; None: policies keep their defaults.

    Raises:
        InputError: A name is unknown, two policies have the same name, or there is none.
    """
    wanted = names_of(names)

    def alone(name: str) -> Policy:
        kind, given = resolved(name)
        found = policy_named(kind if given else name, models)
        return with_parameters(for_goals(found, goals or Goals()), given, name)

    chosen = [
        alone(name) if sweep is None else policy_for(sweep, name, None, models, None, catalogue) for name in wanted
    ]
    check_names(chosen)
    return chosen


def deadline_remarks(policies: Iterable[Policy], work: Runnable | None, goals: Goals | None = None) -> list[str]:
    """Lines for a user who gave a deadline that a policy ignores, one for each such policy.

    Args:
        policies: The policies that decide.
        work: The work whose deadlines count; None: it has none.
        goals: Goals that were given besides; None: none.
    """
    own = goals is not None and goals.has_deadline
    ignore: dict[str, None] = {}
    for policy in policies:
        for each, parts in _deciding(policy, work):
            if (own or any(part.deadline_h is not None for part in parts)) and not keeps_deadlines(each):
                ignore[each.name] = None
    return [f"{name} takes no account of the deadline" for name in ignore]


def _deciding(policy: Policy, work: Runnable | None) -> Iterator[tuple[Policy, Collection[Runnable]]]:
    """Yield each policy that decides for some jobs, and the work that these are."""
    inner: Any = policy
    while not isinstance(inner, InOrder) and hasattr(inner, "policy"):
        inner = inner.policy
    if not isinstance(inner, InOrder):
        yield policy, () if work is None else (work,)
        return
    for group in inner.groups:
        parts = [] if work is None else [work.part_of(job_id)[0] for job_id in group.jobs]
        yield group.policy, parts if work is None else [*parts, work]


def within_budget(sweep: Runnable, policy: Policy) -> Policy:
    """The policy, limited to the sweep's budget if it has one; with a machine for the head of a cluster.

    For a list of jobs, each begins once those that it needs are done.
    """
    if sweep.is_list and not isinstance(policy, InOrder):
        given = policy
        policy = _grouped(
            sweep,
            given.name,
            lambda job: within_budget(job.work, given),
            lambda _jobs: given,
            joint=_is_joint(given),
        )
    if sweep.kind == "cluster":
        policy = WithHead(policy)
    return policy if sweep.budget_usd is None else WithinBudget(policy, sweep.budget_usd)


def policy_summary(policy: str) -> str:
    """Summary of the policy with this name, in one line; empty if there is none."""
    return _SUMMARIES.get(policy, "")
