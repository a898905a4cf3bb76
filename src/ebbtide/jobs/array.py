"""Arrays: one command over a list or a range of tasks, which need not each other; each result is kept once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from ebbtide.errors import InputError
from ebbtide.jobs.common_fields import Direction
from ebbtide.jobs.job import Checkpointing, Coupling, name_of, words_of
from ebbtide.jobs.parsing import Frozen
from ebbtide.jobs.random_search import Value
from ebbtide.jobs.single_job import Arguments, SingleJob
from ebbtide.market.catalogue import InstanceType

# More are refused: each is a result of its own in storage.
MOST_TASKS = 1_000_000


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


def _values_of(tasks: Any) -> tuple[str, ...]:
    """Values of the tasks that a file has: their number, for values from 0 on, or a range, or the values."""
    values: Sequence[Any] = ()
    if _is_whole(tasks) and 1 <= tasks <= MOST_TASKS:
        values = range(tasks)
    elif isinstance(tasks, Mapping):
        # Anything else is not meant as a range, of which what is wrong would be told field by field.
        if "last" in tasks and set(tasks) <= set(TaskRange.model_fields) and all(map(_is_whole, tasks.values())):
            values = TaskRange.model_validate(tasks).values
    elif isinstance(tasks, list | tuple) and all(isinstance(value, Value) for value in tasks):
        values = tasks
    if not values:
        raise ValueError(
            f"is {tasks!r:.80}; a number from 1 to {MOST_TASKS:,} is needed, a range as "
            "{first: 1, last: 2000, step: 1}, or a list of plain values"
        )
    return tuple(map(str, values))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class Array(SingleJob):
    """An array: one job with a step for each task. A result is stored when its task is done.

    Attributes:
        command: What does one task: a command line, or a list of its arguments; never given to a shell. `{task}`
            in it is the value of the task, `{result_dir}` the folder whose files are its result.
        tasks: The value of each task. A file may have their number instead, for the values 0, 1, 2...; or a range,
            `{first: 1, last: 2000}`.
        machines: How many machines do tasks at the same time, at most.
        cpus_per_task: Number of vCPUs of each task: a machine does as many tasks at a time as it has room for.
        steps_per_hour: Measured tasks per hour of one machine, by instance type; if this and the next are empty,
            the speed is measured during the run.
        other_steps_per_hour_per_vcpu: Tasks per hour and vCPU of other types.
    """

    kind: ClassVar[Literal["array"]] = "array"
    placeholders: ClassVar[tuple[str, ...]] = ("task", "result_dir")
    called: ClassVar[str] = "an array"
    # A task that is cut short begins again.
    checkpoint: ClassVar[Checkpointing] = Checkpointing(save_s=0.0, restore_s=0.0)
    checkpoints: ClassVar[None] = None
    progress: ClassVar[None] = None
    metric: ClassVar[None] = None
    direction: ClassVar[Direction] = Direction.MINIMIZE
    theta: ClassVar[None] = None
    mcnt: ClassVar[None] = None
    entry_point: ClassVar[None] = None

    command: str | Arguments = Field(examples=["python score.py --part {task} --out {result_dir}"])
    tasks: Annotated[tuple[str, ...], BeforeValidator(_values_of)] = Field(examples=[2000])
    cpus_per_task: Annotated[int, Field(ge=1)] = Field(default=1, examples=[1])

    @model_validator(mode="before")
    @classmethod
    def _named_by_its_program(cls, content: Any) -> Any:
        if isinstance(content, Mapping) and content.get("name") is None:
            return {**content, "name": name_of(words_of(content.get("command")))}
        return content

    def _check_kind(self) -> None:
        if any("\0" in task for task in self.tasks):
            raise ValueError("a task has a NUL character, which no program can be given")

    def _values_there(self, parameters: Sequence[str]) -> str:  # noqa: ARG002
        return f"an array has {' and '.join(f'{{{name}}}' for name in self.placeholders)}"

    def _check_room(self, machines: Iterable[InstanceType], of_what: str, file: str | Path | None = None) -> None:
        most = max((machine.vcpus for machine in machines), default=self.cpus_per_task)
        if self.cpus_per_task > most:
            raise InputError(
                f"is {self.cpus_per_task:,}; no {of_what} has more than {most} vCPUs",
                file=file,
                field="cpus_per_task",
            )

    @property
    def steps(self) -> int:
        """Number of tasks."""
        return len(self.tasks)

    @property
    def in_words(self) -> str:
        """Number of tasks in words."""
        return f"{len(self.tasks):,} tasks"

    @property
    def ranks(self) -> int:
        """Number of ids that save: results are stored under that of the array, whichever machine has them."""
        return 1

    def _fields_of_job(self) -> dict[str, Any]:
        return {
            "checkpoint": self.checkpoint,
            "coupling": Coupling.INDEPENDENT,
            "cpus_per_task": self.cpus_per_task,
        }
