"""Settings of a sweep drawn at random."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from ebbtide.jobs.job import PositiveFloat
from ebbtide.jobs.parsing import Frozen

Value = bool | int | float | str
_Values = Annotated[list[Value], Field(min_length=1)]


# Larger bounds are mistakes, and their differences may not fit into a number.
_MOST = 1e15


class Drawn(Frozen):
    """The distribution of one parameter; exactly one of the fields is given.

    Attributes:
        choice: Values that are drawn with equal probability.
        uniform: Bounds of a uniform distribution, (low, high).
        log_uniform: Bounds of a distribution that is uniform in the logarithm, (low, high).
        integers: Bounds of a uniform integer, (low, high), both included.
    """

    choice: _Values | None = None
    uniform: tuple[float, float] | None = None
    log_uniform: tuple[PositiveFloat, PositiveFloat] | None = None
    integers: tuple[int, int] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Drawn:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("needs exactly one of choice, uniform, log_uniform, integers")
        bounds = getattr(self, given[0])
        if given[0] != "choice" and not bounds[0] < bounds[1]:
            raise ValueError(f"{given[0]} needs a lower and a higher bound, not {bounds[0]} and {bounds[1]}")
        if given[0] != "choice" and max(map(abs, bounds)) > _MOST:
            raise ValueError(f"{given[0]} needs bounds between -{_MOST:g} and {_MOST:g}")
        return self

    def value(self, random: np.random.Generator) -> Value:
        """Draw one value."""
        if self.choice is not None:
            return self.choice[int(random.integers(len(self.choice)))]
        if self.integers is not None:
            return int(random.integers(self.integers[0], self.integers[1] + 1))
        if self.uniform is not None:
            return float(random.uniform(*self.uniform))
        assert self.log_uniform is not None
        low, high = self.log_uniform
        return math.exp(random.uniform(math.log(low), math.log(high)))


class RandomSearch(Frozen):
    """Settings drawn at random.

    Attributes:
        samples: Number of settings to draw.
        seed: Random seed; the same seed draws the same settings.
        parameters: Distribution of each parameter, by name.
    """

    samples: Annotated[int, Field(ge=1, le=10_000)]
    seed: int = 0
    parameters: Annotated[dict[str, Drawn], Field(min_length=1)]
