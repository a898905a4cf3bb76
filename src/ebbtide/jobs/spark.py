"""Spark applications: a user's program through spark-submit, on machines that come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ebbtide.jobs.asked_policy import AskedPolicy
from ebbtide.jobs.job import Checkpointing, PositiveFloat, name_of, words_of
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.resources import MachineCount, Resources
from ebbtide.jobs.sweep import Decides, Direction, MarketFilter, Sweep

_Words = Annotated[list[str], Field(min_length=1)]


class SparkApplication(Resources):
    """A Spark application as users write it in YAML.

    Attributes:
        name: Name in tables and tags; by default that of the application.
        spark: What stands behind `spark-submit`: its options if any, the application, and its arguments. Master
            and network are given.
        machines: How many machines its workers have, at most; they come and go while it runs. Its driver and
            master have one more, on demand, which works as well.
        steps: Number of steps, if the application reports any; None: it ends when it ends.
        speedup: Of n machines over one; perfect if None.
        steps_per_hour: Measured steps per hour of one machine, by instance type.
        other_steps_per_hour_per_vcpu: Steps per hour and vCPU of other types.
        metric: Name of the metric that it reports.
        direction: Whether a lower or a higher metric is better.
        markets: Where machines may be rented.
        budget_usd: The most that may be spent, USD.
        deadline_h: Hours from the start by which it should be done.
        decides: Whether price or capacity decides when machines are revoked.
        billing: Name of the billing preset of spot leases.
        policy: The policy that decides, by name, or with parameters; None: the one that suits.
    """

    name: Annotated[str, Field(min_length=1)] | None = Field(default=None, examples=["my-application"])
    spark: str | _Words = Field(examples=["app.py --rows 1000000"])
    machines: MachineCount = Field(default=1, examples=[4])
    steps: Annotated[int, Field(gt=0)] | None = Field(default=None, examples=[100])
    steps_per_hour: dict[str, PositiveFloat] = Field(default_factory=dict, examples=[{"m5.xlarge": 60}])
    other_steps_per_hour_per_vcpu: PositiveFloat | None = Field(default=None, examples=[15])
    metric: Annotated[str, Field(min_length=1)] | None = Field(default=None, examples=["loss"])
    direction: Direction = Field(default=Direction.MINIMIZE, examples=["minimize"])
    markets: MarketFilter = Field(default=MarketFilter(), examples=[{"regions": ["us-east-1"]}])
    budget_usd: PositiveFloat | None = Field(default=None, examples=[20])
    deadline_h: PositiveFloat | None = Field(default=None, examples=[12])
    decides: Decides = Field(default=Decides.PRICE, examples=["price"])
    billing: str = Field(default="ec2-second", examples=["ec2-second"])
    policy: AskedPolicy | None = Field(default=None, examples=["reactive"])

    @classmethod
    def parse(cls, content: dict[str, Any], file: str | Path | None = None) -> SparkApplication:
        """An application from plain values; errors name `file` and the field.

        Raises:
            InputError: Fields are unknown or out of range; all of them are listed.
        """
        return validated(cls, content, file)

    def sweep(self, file: str | Path | None = None) -> Sweep:
        """The application as what live runs run: a sweep of one job with a framework.

        Raises:
            InputError: The words are malformed, or two fields contradict each other.
        """
        content = self.model_dump(mode="json", exclude={"spark", "steps", "name"})
        content |= {
            "command": self.spark,
            "framework": "spark",
            "max_trial_steps": self.steps,
            "name": self.name or name_of(words_of(self.spark)),
            # Spark keeps what is computed while a machine leaves, or computes it again.
            "checkpoint": Checkpointing(save_s=0.0, restore_s=0.0).model_dump(mode="json"),
        }
        return validated(Sweep, content, file)
