"""Matrix programs: workflows of tiled products that a cookbook steers, on machines that come and go."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.jobs.cluster import Cluster
from ebbtide.jobs.common_fields import RunTerms
from ebbtide.jobs.job import Checkpointing, NonNegativeFloat, PositiveFloat
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.tiled.named import program_of
from ebbtide.jobs.tiled.program import TiledProgram, speedup_of

# Runs the program on the head's machine.
DRIVER = "ebbtide.agent.tiled.driver"

# A task takes so many steps: those of a second each, while it is not known how long any takes.
_STEPS_PER_S = 1000


class MatrixProgram(RunTerms):
    """A matrix program as users write it in YAML.

    Attributes:
        program: `rsvd` or `gnmf`, or a class of your own, `FILE.py:CLASS`.
        parameters: What the program is called with: sizes of its matrices.
        machines: How many machines its workers have, at most; they come and go while it runs. Its head has one
            more, on demand, which works as well.
        task_s: Measured seconds of a task by instance type: a number for all jobs of the program, or one for each
            by its name. A run leaves them in `task-times.json`. Policies that plan for a deadline need them.
        start_s: Seconds that a machine which is added needs until it does tasks.
    """

    program: Annotated[str, Field(min_length=1)] = Field(examples=["rsvd"])
    parameters: dict[str, Any] = Field(default_factory=dict, examples=[{"rows": 8, "columns": 8, "tile": 512}])
    task_s: dict[str, PositiveFloat | dict[str, PositiveFloat]] = Field(
        default_factory=dict, examples=[{"c5.xlarge": 12}]
    )
    start_s: NonNegativeFloat = Field(default=0.0, examples=[60])

    def work(self, file: str | Path | None = None) -> Cluster:
        """The program as what runs run, a program of Dask.

        Its steps are milliseconds of a task on the first instance type of `task_s`.

        Raises:
            InputError: The program is unknown or refuses its parameters, or a job has no time.
        """
        try:
            parameters = json.dumps(self.parameters)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"can be numbers, text, lists and mappings: {error}", file=file, field="parameters"
            ) from None
        program = program_of(self.program, self.parameters, file)
        times = {kind: self._times(program, kind, file) for kind in self.task_s}
        first = next(iter(times.values()), None)
        counts = {job.name: len(job.tasks) for job in program.jobs}
        steps = {name: max(round(_STEPS_PER_S * (first[name] if first else 1.0)), 1) for name in counts}
        total = sum(count * steps[name] for name, count in counts.items())
        rates = {
            kind: total / sum(count * of_kind[name] for name, count in counts.items()) * HOUR_S
            for kind, of_kind in times.items()
        }
        most = self.machines if isinstance(self.machines, int) else self.machines.max
        told = {"program": self.program, "parameters": json.loads(parameters), "steps": steps}
        fields = {"name", "program", "parameters", "task_s", "start_s"}
        content = self.model_dump(mode="json", exclude=fields) | {
            "command": ["-m", DRIVER, _without_placeholders(json.dumps(told))],
            "framework": "dask",
            "max_trial_steps": total,
            "steps_per_hour": rates,
            # The head works as well.
            "speedup": speedup_of(program, most + 1, first).model_dump(mode="json"),
            "name": self.name or program.name,
            "checkpoint": Checkpointing(save_s=0.0, restore_s=self.start_s).model_dump(mode="json"),
        }
        return validated(Cluster, content, file)

    def _times(self, program: TiledProgram, kind: str, file: str | Path | None) -> Mapping[str, float]:
        """Seconds of a task on machines of a type, by name of its job."""
        given, names = self.task_s[kind], [job.name for job in program.jobs]
        if not isinstance(given, dict):
            return dict.fromkeys(names, given)
        missing = [name for name in names if name not in given]
        if missing or len(given) > len(names):
            what = f"has no time of {missing[0]!r}" if missing else "has times of other jobs"
            raise InputError(f"{what}; the jobs are {', '.join(names)}", file=file, field=f"task_s.{kind}")
        return given


def _without_placeholders(text: str) -> str:
    """Text as it stands in a command, in which a name between braces would be filled in."""
    return text.replace("{", "{{").replace("}", "}}")
