"""Programs with a head and workers that come and go: Spark applications, programs of Dask."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ebbtide.jobs.common_fields import RunTerms
from ebbtide.jobs.job import Checkpointing, PositiveFloat, Speedup, name_of, words_of
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.sweep import Direction, Sweep

_Words = Annotated[list[str], Field(min_length=1)]


class _OnCluster(RunTerms):
    """Fields common to programs on a cluster.

    Attributes:
        machines: Largest number of workers' machines, which come and go while the program runs. Its head has one
            more, on demand, which works as well.
        steps: Number of steps, if the program reports any; None: their number is not known.
        speedup: Speedup of n machines over one, always or phase by phase; perfect if None.
        steps_per_hour: Measured steps per hour of one machine, by instance type.
        other_steps_per_hour_per_vcpu: Steps per hour and vCPU of other types.
        metric: Name of the metric that the program reports.
        direction: Whether a lower or a higher metric is better.
    """

    framework: ClassVar[Literal["spark", "dask"]]

    steps: Annotated[int, Field(gt=0)] | None = Field(default=None, examples=[100])
    speedup: Speedup | None = Field(default=None, examples=[{"parallel": 0.9}])
    steps_per_hour: dict[str, PositiveFloat] = Field(default_factory=dict, examples=[{"m5.xlarge": 60}])
    other_steps_per_hour_per_vcpu: PositiveFloat | None = Field(default=None, examples=[15])
    metric: Annotated[str, Field(min_length=1)] | None = Field(default=None, examples=["loss"])
    direction: Direction = Field(default=Direction.MINIMIZE, examples=["minimize"])

    def sweep(self, file: str | Path | None = None) -> Sweep:
        """The program as what live runs run: a sweep of one job with a framework.

        Raises:
            InputError: The words are malformed, or two fields contradict each other.
        """
        words = getattr(self, self.framework)
        content = self.model_dump(mode="json", exclude={self.framework, "steps", "name"})
        content |= {
            "command": words,
            "framework": self.framework,
            "max_trial_steps": self.steps,
            "name": self.name or name_of(words_of(words)),
            # What is computed is kept while a machine leaves, or computed again.
            "checkpoint": Checkpointing(save_s=0.0, restore_s=0.0).model_dump(mode="json"),
        }
        return validated(Sweep, content, file)


class SparkApplication(_OnCluster):
    """A Spark application as users write it in YAML.

    Attributes:
        spark: What stands behind `spark-submit`: its options if any, the application, and its arguments. Master
            and network are given.
    """

    framework = "spark"

    spark: str | _Words = Field(examples=["app.py --rows 1000000"])


class DaskProgram(_OnCluster):
    """A program that uses Dask, as users write it in YAML.

    Attributes:
        dask: What stands behind `python`: the program's file, and its arguments. `distributed.Client()` in it,
            without arguments, is one of the cluster's.
    """

    framework = "dask"

    dask: str | _Words = Field(examples=["program.py --rows 1000000"])
