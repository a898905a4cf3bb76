"""A user's single training: a command with what is known about it. It runs as a sweep of one trial."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from ebbtide.errors import InputError
from ebbtide.jobs.common_fields import Direction, RunTerms
from ebbtide.jobs.job import UNKNOWN_STEPS, Checkpointing, Coupling, Job, PositiveFloat, Speedup, name_of, words_of
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.single_job import Arguments, ProgressPattern
from ebbtide.jobs.sweep import Sweep


class SingleTraining(RunTerms):
    """A job as users write it in YAML; only `command` is needed to run it.

    Attributes:
        command: A command line, or a list of its arguments; never given to a shell. `{checkpoint_dir}` in it is
            the folder for checkpoints, and `{max_steps}` the number of steps.
        steps: Number of training steps; None: it ends when its program does.
        machines: How many machines it has: all of them or none (`4`), or as many as there are
            (`{min: 2, max: 8}`); they train as one.
        speedup: Of n machines over one; perfect if None.
        steps_per_hour: Measured steps per hour by instance type; if this and the next are empty, the speed is
            measured during the run.
        other_steps_per_hour_per_vcpu: Steps per hour and vCPU of other types.
        checkpoint: What saving costs; null: it cannot be checkpointed.
        checkpoints: The folder, relative to where the program runs, into which it writes its checkpoints itself
            and from which it resumes; None: it uses `{checkpoint_dir}`.
        progress: A regular expression that finds progress in a line that the program prints, by a group `step` and
            perhaps `total` and `metric`; None: known formats are recognised.
        metric: Name of the metric that it reports.
        direction: Whether a lower or a higher metric is better.
    """

    command: str | Arguments | None = Field(default=None, examples=["python train.py --epochs 10"])
    steps: Annotated[int, Field(gt=0)] | None = Field(default=None, examples=[24_000])
    speedup: Speedup | None = Field(default=None, examples=[{"parallel": 0.9}])
    steps_per_hour: dict[str, PositiveFloat] = Field(default_factory=dict, examples=[{"g4dn.xlarge": 44_280}])
    other_steps_per_hour_per_vcpu: PositiveFloat | None = Field(default=None, examples=[220])
    checkpoint: Checkpointing | None = Field(default=Checkpointing(), examples=[{"save_s": 20, "restore_s": 45}])
    checkpoints: str | None = Field(default=None, examples=["checkpoints"])
    progress: ProgressPattern | None = Field(default=None, examples=[r"it (?P<step>\d+) of (?P<total>\d+)"])
    metric: Annotated[str, Field(min_length=1)] | None = Field(default=None, examples=["validation_loss"])
    direction: Direction = Field(default=Direction.MINIMIZE, examples=["minimize"])

    def work(self, file: str | Path | None = None) -> Sweep:
        """The training as a sweep of one trial.

        Raises:
            InputError: The command is malformed, or two fields contradict each other.
        """
        content = self.model_dump(mode="json", exclude={"steps", "name"})
        content |= {"max_trial_steps": self.steps, "name": self.name or name_of(words_of(self.command))}
        return validated(Sweep, content, file)


def sweep_of(job: Job) -> Sweep:
    """A job with a command as a sweep of one trial, which is what live runs run.

    Raises:
        InputError: The job has no command, or asks for what only replays know: machines that work alone, a part
            of each of several, a dataset.
    """
    if job.command is None:
        raise InputError(
            f"job {job.name} has nothing to run: give it a command, `command: python train.py`", field="command"
        )
    if job.coupling is not Coupling.GANG:
        raise InputError(f"job {job.name} wants machines that work alone: `ebbtide compare` replays it")
    if job.dataset is not None:
        raise InputError(f"dataset of job {job.name} is for replays")
    shared = {name: getattr(job, name) for name in SingleTraining.model_fields if name in Job.model_fields}
    steps = None if job.steps >= UNKNOWN_STEPS else job.steps
    return SingleTraining(**shared | {"steps": steps}).work()


def literal(argument: str) -> str:
    """An argument with its braces escaped, except those of `{checkpoint_dir}` and `{max_steps}`."""
    escaped = argument.replace("{", "{{").replace("}", "}}")
    for name in ("checkpoint_dir", "max_steps"):
        escaped = escaped.replace(f"{{{{{name}}}}}", f"{{{name}}}")
    return escaped


def folder_below(checkpoints: Path, working: Path) -> str:
    """The folder of checkpoints relative to the working directory.

    Raises:
        InputError: The folder is not below the working directory, so that other machines would not have it.
    """
    # Links are not resolved: the program uses this name.
    path = checkpoints if checkpoints.is_absolute() else working / checkpoints
    try:
        relative = path.relative_to(working)
    except ValueError:
        relative = Path()
    if not relative.parts or ".." in relative.parts:
        raise InputError(f"--checkpoints {checkpoints} is no folder below {working}, in which the program runs")
    return relative.as_posix()
