"""The kinds of jobs that live runs support, each as a user's file would define it, with its tapes.

Machines that train as one are in one region, where they reach each other, and of one size, since ExoSphere rents
cores. Their types differ in speed: between equal ones, the rounding of measured speeds would decide. Tasks of an
array take minutes, each with its own process and result; a replay counts whole tasks as a live run does, so they
need not be short. There is a cluster of each framework that `Sweep` supports.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from tests.harness.parity.tapes import (
    BILLINGS,
    PER_HOUR_PER_VCPU,
    Tape,
    scenario_with,
    tapes,
    tapes_of_one_region,
    trials_with_curves,
)

from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.array import Array
from ebbtide.jobs.cluster import Cluster
from ebbtide.jobs.job import Job
from ebbtide.jobs.job_list import JobList, ListedJob, OneJob, Runnable, kind_of_saved, split_by_kind
from ebbtide.replay.scenario import Scenario

# Hours that a job takes on each machine of four cores. This value and the next ensure that no reported step is
# done at the exact moment of a refused request or a wake-up, some tens of seconds after the start. At such a
# moment a live run gets the step's report, which a replay lacks, and is woken before it hears of a machine.
_HOURS = 5.0317
# Factor by which trials are longer than in `make parity`.
_LONGER = 2.96
# Arrays and clusters have work for two machines and run on three, since some policies rent a single small one.
_WORK, _MACHINES = 2, 3
_TASKS_PER_HOUR_PER_VCPU = 7.0
# Jobs of a list are shorter, since they run one after the other.
_LIST_HOURS = 1.7317
_SPEEDS = {"c3.xlarge": 1.0, "m3.xlarge": 0.91, "r3.xlarge": 0.96}
_CHECKPOINT = {"save_s": 20.0, "restore_s": 40.0, "size_bytes": 2_000_000_000, "by_region": True}


@dataclass(frozen=True)
class Kind:
    """A kind of job, with the work to run.

    Attributes:
        name: Name of the kind in the report.
        sweep: Sweep or list of jobs for a live run.
        jobs: Its jobs.
        curves: Learning curve of each job; empty: no job reports a metric.
        is_of_one_region: Whether its machines must reach each other.
    """

    name: str
    sweep: Runnable
    jobs: tuple[Job, ...]
    curves: tuple[Curve | None, ...] = ()
    is_of_one_region: bool = False

    @property
    def tapes(self) -> tuple[tuple[Tape, str], ...]:
        """Tapes on which the kind is run, each with the name of a billing preset."""
        used = _of_one_region() if self.is_of_one_region else _of_all()[1:]
        return tuple(zip(used, BILLINGS, strict=True))

    def scenario(self, tape: Tape, billing: str) -> Scenario:
        """Make the scenario of its jobs on a tape, with a billing preset."""
        return scenario_with(self.jobs, tape, billing, self.curves)


def kinds() -> tuple[Kind, ...]:
    """Make all kinds of jobs: one training, sweeps, gangs, an array, a list of jobs, and clusters."""
    trials, curves = trials_with_curves(_LONGER)
    sweep: dict[str, Any] = {"command": "train {x}", "grid": {"x": [0, 1, 2, 3]}, "metric": "loss"}
    halves = tuple(trial.model_copy(update={"share": 0.5}) for trial in trials)
    array = Array.parse(
        {
            "command": "estimate {task}",
            "tasks": round(_HOURS * _WORK * 4.0 * _TASKS_PER_HOUR_PER_VCPU),
            "machines": _MACHINES,
            "other_steps_per_hour_per_vcpu": _TASKS_PER_HOUR_PER_VCPU,
        }
    )
    speeds = {name: share * 4.0 * PER_HOUR_PER_VCPU for name, share in _SPEEDS.items()}
    as_one: dict[str, Any] = {
        "is_of_one_region": True,
        "steps_per_hour": speeds,
        "other_steps_per_hour_per_vcpu": None,
    }
    return (
        _kind("single", 2),
        Kind("sweep", _sweep("sweep", 1, **sweep), trials, curves),
        Kind("shared", _sweep("shared", 1, **sweep, share=0.5), halves, curves),
        _kind("gang", 4, machines=4, **as_one),
        _kind("elastic", 4, machines={"min": 1, "max": 4}, **as_one),
        Kind("array", array, array.jobs()),
        _in_order(),
        *(
            _kind(name, _WORK, machines=_MACHINES, framework=name, checkpoint={"save_s": 0, "restore_s": 0})
            for name in frameworks()
        ),
    )


def _in_order() -> Kind:
    """Make a list: two trainings side by side, an array and a cluster after one each, a training after both."""
    steps = round(_LIST_HOURS * 4.0 * PER_HOUR_PER_VCPU)
    rate = 3.0 * _TASKS_PER_HOUR_PER_VCPU
    tasks = round(_LIST_HOURS * 4.0 * rate)
    array: dict[str, Any] = {
        "tasks": [str(number) for number in range(tasks)],
        "command": "estimate {task}",
        "machines": _MACHINES,
        "other_steps_per_hour_per_vcpu": rate,
    }
    cluster = {"framework": "dask", "machines": _MACHINES, "checkpoint": {"save_s": 0, "restore_s": 0}}
    parts: dict[str, dict[str, Any]] = {
        "first": {"max_trial_steps": steps},
        "side": {"max_trial_steps": round(1.3 * steps)},
        "array": array,
        "cluster": {"max_trial_steps": steps, **cluster},
        "last": {"max_trial_steps": steps},
    }
    needs = {"array": ("first",), "cluster": ("side",), "last": ("array", "cluster")}
    listed = tuple(
        ListedJob(work=_sweep(name, 1, **content), needs=needs.get(name, ())) for name, content in parts.items()
    )
    # The deadline, for policies that plan for one, is twice the duration of all jobs one after the other.
    work = JobList(name="list", listed=listed, deadline_h=2.0 * len(parts) * _LIST_HOURS)
    return Kind("list", work, work.jobs())


def frameworks() -> tuple[str, ...]:
    """Return names of the frameworks that run a command on several machines."""
    named = get_args(Cluster.model_fields["framework"].annotation)
    return tuple(name for each in (named or ()) for name in get_args(each) or (each,) if isinstance(name, str))


def _kind(name: str, count: int, *, is_of_one_region: bool = False, **content: Any) -> Kind:
    sweep = _sweep(name, count, **content)
    return Kind(name, sweep, sweep.jobs(), is_of_one_region=is_of_one_region)


def _sweep(name: str, count: int, **content: Any) -> OneJob:
    """Parse a job of any kind with work for `count` machines, as from a file."""
    own = {
        "name": name,
        "command": "train",
        "max_trial_steps": round(_HOURS * count * 4.0 * PER_HOUR_PER_VCPU),
        "other_steps_per_hour_per_vcpu": PER_HOUR_PER_VCPU,
        "checkpoint": _CHECKPOINT,
    }
    return kind_of_saved(content).parse(split_by_kind({**own, **content}))


_of_all = cache(tapes)
_of_one_region = cache(tapes_of_one_region)
