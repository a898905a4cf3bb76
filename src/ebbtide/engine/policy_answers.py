"""Answers of policies, checked before anything is done; an error names policy, time and market."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Sequence, Set
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from ebbtide.base.utc import iso
from ebbtide.errors import CloudError, InputError, PolicyError
from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import (
    Action,
    Assign,
    GiveUp,
    Hold,
    Release,
    Request,
    Save,
    Stop,
    WakeAt,
    WakeAtStep,
)
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.api.view import View

# Machines open at once. A larger count is a mistake.
MAX_MACHINES = 10_000

_ACTIONS = Request | Release | Assign | Save | Stop | Hold | GiveUp | WakeAt | WakeAtStep

_ANSWERS = "decide answers with actions in a list, or yields them"


def answers_of(policy: Policy, view: View) -> Iterator[Action]:
    """The actions of a policy, one by one, each as it is decided.

    Raises:
        PolicyError: The policy raised an exception, which is the cause, or answered with something else.
    """
    try:
        answer: Any = policy.decide(view)
        if answer is None:
            return
        if isinstance(answer, _ACTIONS):
            raise mistake(policy, view, f"decide answered {type(answer).__name__} itself; {_ANSWERS}")
        if isinstance(answer, (str, bytes)) or not hasattr(answer, "__iter__"):
            raise mistake(policy, view, f"decide answered {_shown(answer)}, which are no actions; {_ANSWERS}")
        yield from answer
    except (InputError, PolicyError, CloudError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise mistake(policy, view, _raised(error)) from error


def mistake(policy: Policy, view: View, problem: str, about: str = "") -> PolicyError:
    """The error for what is wrong with a policy's answer at this moment."""
    return PolicyError(problem, policy=str(policy.name), time=_time(view.now_s), about=about)


def problem_with(action: Action, *, jobs: int, leases: int, open_machines: int, began_s: float) -> str:
    """Find the problem with an action by itself; empty: there is none.

    Args:
        action: Answer of a policy.
        jobs: Number of jobs; ids count from 0.
        leases: Number of leases so far; ids count from 0.
        open_machines: Number of machines that are rented or requested.
        began_s: Start of the run, seconds since 1970.
    """
    match action:
        case Request():
            return _problem_with_request(action, jobs, open_machines)
        case Release(lease_id, save):
            return _not_an_id(lease_id, leases, "lease") or _not_a_bool("save", save)
        case Assign(job, lease_ids):
            problem = _not_an_id(job, jobs, "job")
            if problem:
                return problem
            if isinstance(lease_ids, str) or not isinstance(lease_ids, (Sequence, Set)):
                return f"leases is {_shown(lease_ids)}; it is a list of lease ids"
            problem = next(filter(None, (_not_an_id(lease_id, leases, "lease") for lease_id in lease_ids)), "")
            twice = next((lease_id for lease_id in lease_ids if list(lease_ids).count(lease_id) > 1), None)
            return problem or ("" if twice is None else f"lease {twice} is named twice; a job runs on it once")
        case Save(job) | Stop(job) | Hold(job):
            return _not_an_id(job, jobs, "job")
        case GiveUp(reason):
            return "" if isinstance(reason, str) and reason else "reason says in words why the run is given up"
        case WakeAt(time_s):
            return _problem_with_time(time_s, began_s)
        case WakeAtStep(job, step):
            problem = _not_an_id(job, jobs, "job")
            return problem or ("" if _is_number(step) else f"step is {_shown(step)}; it is a number of steps")
        case _:
            return f"it is no action; actions are {', '.join(kind.__name__ for kind in _ACTIONS.__args__)}"


def settled(action: Action) -> Action:
    """An action whose leases are a tuple: what a policy hands over cannot change after it was checked."""
    if not isinstance(action, Assign) or isinstance(action.leases, str):
        return action
    return Assign(action.job, tuple(action.leases)) if isinstance(action.leases, (Sequence, Set)) else action


def about_of(action: Action) -> str:
    """The market or lease that an action is about, in words."""
    match action:
        case Request(market=Market() as market):
            return f"market {market}"
        case Release(lease_id):
            return f"lease {_shown(lease_id)}"
        case _:
            return ""


def described(action: object) -> str:
    """An action by its kind, what is wrong with it being told beside it; what is none as the policy wrote it."""
    return type(action).__name__ if isinstance(action, _ACTIONS) else _shown(action, 160)


def _problem_with_request(request: Request, jobs: int, open_machines: int) -> str:
    if not isinstance(request.market, Market):
        return f"market is {_shown(request.market)}; it is a Market, such as one of view.markets"
    price = request.max_price_usd_per_hour
    if not _is_number(price):
        return f"max_price_usd_per_hour is {_shown(price)}; it is a number of USD, or math.inf for any price"
    if price < 0:
        return f"max_price_usd_per_hour is {price:g}; it cannot be negative"
    if problem := _not_a_bool("on_demand", request.on_demand) or _not_a_bool("keep", request.keep):
        return problem
    if request.job is not None and (problem := _not_an_id(request.job, jobs, "job")):
        return problem
    count = request.count
    if not isinstance(count, Integral) or isinstance(count, bool) or count < 1:
        return f"count is {_shown(count)}; it is a whole number of machines, at least 1"
    if open_machines + count > MAX_MACHINES:
        return (
            f"count is {int(count):,} and {open_machines:,} machines are open; at most {MAX_MACHINES:,} may be "
            "open at once"
        )
    return ""


def _problem_with_time(time_s: float, began_s: float) -> str:
    if not _is_number(time_s):
        return f"time_s is {_shown(time_s)}; it is seconds since 1970"
    if time_s < began_s:
        return (
            f"time_s is {time_s:g}, which is before the run began at {began_s:g}; it is seconds since 1970, "
            "such as view.now_s + 3600"
        )
    return ""


def _not_a_bool(name: str, value: object) -> str:
    return "" if isinstance(value, bool | np.bool_) else f"{name} is {_shown(value)}; it is True or False"


def _not_an_id(found: object, count: int, what: str) -> str:
    if isinstance(found, Integral) and not isinstance(found, bool) and 0 <= int(found) < count:
        return ""
    there_are = f"there is only {what} 0" if count == 1 else f"{what}s are 0 to {count - 1}"
    if not count:
        there_are = f"there is no {what} yet"
    return f"{_shown(found)} is no {what}; {there_are}"


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)


def _raised(error: BaseException) -> str:
    """An exception of a policy, and the line of it that raised or called what raised."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    where = f" ({Path(frames[0].filename).name}, line {frames[0].lineno})" if frames else ""
    return f"it raised {type(error).__name__}: {str(error)[:300] or 'without a message'}{where}"


def _shown(value: object, most: int = 80) -> str:
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}..."


def _time(time_s: float) -> str:
    try:
        return iso(time_s)
    except (ValueError, OverflowError, OSError):
        return f"{time_s:g} s"
