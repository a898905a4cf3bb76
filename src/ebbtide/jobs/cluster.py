"""Programs with a head and workers that come and go: Spark applications, programs of Dask."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ebbtide.jobs.common_fields import Direction, RunTerms
from ebbtide.jobs.job import MOST, Checkpointing, Coupling, PositiveFloat, Speedup, name_of, words_of
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.single_job import Arguments, CheckpointFolder, ProgressPattern, SingleJob


class Cluster(SingleJob):
    """A program on a cluster: its head has one machine, and its workers come and go.

    Attributes:
        command: What stands behind the framework's own command, or behind `python`.
        framework: Name of the framework whose head runs the command and has workers on other machines.
        max_trial_steps: Number of steps; None: their number is not known.
        speedup: Speedup of n machines over one, always or phase by phase; perfect if None.
        checkpoint: What it costs when a machine is added.
        metric: Name of the metric that the program reports.
        direction: Whether a lower or a higher metric is better.
        checkpoints: The folder into which the program on the head writes checkpoints; None: into none.
        progress: A regular expression that finds progress in a line that the program prints.
    """

    kind: ClassVar[Literal["cluster"]] = "cluster"
    called: ClassVar[str] = "a cluster"
    theta: ClassVar[None] = None
    mcnt: ClassVar[None] = None
    entry_point: ClassVar[None] = None

    command: str | Arguments
    framework: Literal["spark", "dask"]
    max_trial_steps: Annotated[int, Field(gt=0, le=MOST)] | None = None
    speedup: Speedup | None = None
    # What is computed is kept while a machine leaves, or computed again.
    checkpoint: Checkpointing = Checkpointing(save_s=0.0, restore_s=0.0)
    metric: Annotated[str, Field(min_length=1)] | None = None
    direction: Direction = Direction.MINIMIZE
    checkpoints: CheckpointFolder | None = None
    progress: ProgressPattern | None = None

    @property
    def _command_field(self) -> str:
        return self.framework

    @property
    def steps(self) -> int | None:
        """Number of steps; None: their number is not known."""
        return self.max_trial_steps

    @property
    def in_words(self) -> str:
        """Name of the framework in words."""
        return f"a {self.framework.capitalize()} application"

    @property
    def ranks(self) -> int:
        """Number of machines that save: the head alone does."""
        return 1

    def programs(self) -> Iterable[tuple[tuple[str, ...], str]]:
        """The Python program, if there is one; options of the framework may come first."""
        words = self.arguments(self.trials()[0])
        found = (word for word in words if word.endswith(".py") and "://" not in word)
        return [(("python", program), self.framework) for program in found][:1]

    def _fields_of_job(self) -> dict[str, Any]:
        return {
            "checkpoint": self.checkpoint,
            "coupling": Coupling.INDEPENDENT,
            "framework": self.framework,
            "speedup": self.speedup,
        }


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

    def work(self, file: str | Path | None = None) -> Cluster:
        """The program as what runs run.

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
        }
        return validated(Cluster, content, file)


class SparkApplication(_OnCluster):
    """A Spark application as users write it in YAML.

    Attributes:
        spark: What stands behind `spark-submit`: its options if any, the application, and its arguments. Master
            and network are given.
    """

    framework = "spark"

    spark: str | Arguments = Field(examples=["app.py --rows 1000000"])


class DaskProgram(_OnCluster):
    """A program that uses Dask, as users write it in YAML.

    Attributes:
        dask: What stands behind `python`: the program's file, and its arguments. `distributed.Client()` in it,
            without arguments, is one of the cluster's.
    """

    framework = "dask"

    dask: str | Arguments = Field(examples=["program.py --rows 1000000"])
