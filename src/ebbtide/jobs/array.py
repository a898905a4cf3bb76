"""Arrays: one command over a list or a range of tasks, which need not each other; each result is kept once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from ebbtide.jobs.common_fields import RunTerms
from ebbtide.jobs.job import PositiveFloat, name_of, words_of
from ebbtide.jobs.parsing import Frozen, validated
from ebbtide.jobs.random_search import Value
from ebbtide.jobs.sweep import Sweep

# More are refused: each is a result of its own in storage.
MOST_TASKS = 1_000_000

_Arguments = Annotated[list[str], Field(min_length=1)]


class TaskRange(Frozen):
    """Tasks whose values are whole numbers.

    Attributes:
        first: Value of the first task.
        last: The values go no further; it is one of them if the steps lead there.
        step: Difference between one value and the next.
    """

    first: int = Field(default=0, examples=[1])
    last: int = Field(examples=[2000])
    step: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _has_any(self) -> TaskRange:
        if self.last < self.first:
            raise ValueError(f"last {self.last} is before first {self.first}")
        number = (self.last - self.first) // self.step + 1
        if number > MOST_TASKS:
            raise ValueError(f"has {number:,} tasks; {MOST_TASKS:,} at most")
        return self

    @property
    def values(self) -> Sequence[int]:
        """The values of the tasks."""
        return range(self.first, self.last + 1, self.step)


def _checked_tasks(tasks: Any) -> Any:
    if isinstance(tasks, TaskRange) or (_is_whole(tasks) and 1 <= tasks <= MOST_TASKS):
        return tasks
    if isinstance(tasks, Mapping):
        # Anything else is not meant as a range, of which what is wrong would be told field by field.
        if "last" in tasks and set(tasks) <= set(TaskRange.model_fields) and all(map(_is_whole, tasks.values())):
            return TaskRange.model_validate(tasks)
    elif isinstance(tasks, list | tuple) and tasks and all(isinstance(value, Value) for value in tasks):
        return tasks
    raise ValueError(
        f"is {tasks!r:.80}; a number from 1 to {MOST_TASKS:,} is needed, a range as "
        "{first: 1, last: 2000, step: 1}, or a list of plain values"
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# As a file has them: their number, for values from 0 on, or a range, or the values themselves.
Tasks = Annotated[int | TaskRange | list[Value], BeforeValidator(_checked_tasks)]


class TaskArray(RunTerms):
    """An array as users write it in YAML.

    Attributes:
        command: What does one task: a command line, or a list of its arguments; never given to a shell. `{task}`
            in it is the value of the task, `{result_dir}` the folder whose files are its result.
        tasks: How many tasks there are, with the values 0, 1, 2...; or a range, `{first: 1, last: 2000}`; or a
            list of values.
        machines: How many machines do tasks at the same time, at most.
        cpus_per_task: Number of vCPUs of each task: a machine does as many tasks at a time as it has room for.
        steps_per_hour: Measured tasks per hour of one machine, by instance type; if this and the next are empty,
            the speed is measured during the run.
        other_steps_per_hour_per_vcpu: Tasks per hour and vCPU of other types.
    """

    command: str | _Arguments = Field(examples=["python score.py --part {task} --out {result_dir}"])
    tasks: Tasks = Field(examples=[2000])
    cpus_per_task: Annotated[int, Field(ge=1)] = Field(default=1, examples=[1])
    steps_per_hour: dict[str, PositiveFloat] = Field(default_factory=dict, examples=[{"c5.xlarge": 480}])
    other_steps_per_hour_per_vcpu: PositiveFloat | None = Field(default=None, examples=[120])

    @property
    def values(self) -> Sequence[Value]:
        """The value of each task."""
        if isinstance(self.tasks, int):
            return range(self.tasks)
        return self.tasks.values if isinstance(self.tasks, TaskRange) else self.tasks

    def sweep(self, file: str | Path | None = None) -> Sweep:
        """The array as what live runs run: a sweep of one job, with a step for each task.

        Raises:
            InputError: The command is malformed, or two fields contradict each other.
        """
        content = self.model_dump(mode="json", exclude={"tasks", "name"})
        content |= {
            "tasks": [str(value) for value in self.values],
            "max_trial_steps": len(self.values),
            # A result is stored when its task is done; a task that is cut short begins again.
            "checkpoint": {"save_s": 0, "restore_s": 0},
            "name": self.name or name_of(words_of(self.command)),
        }
        return validated(Sweep, content, file)
