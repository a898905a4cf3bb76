"""The policy that a job's file asks for, with its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from ebbtide.jobs.parsing import Frozen


class AskedPolicy(Frozen):
    """A policy by name, `policy: reactive`, or with parameters, `policy: {name: reactive, max_price_ratio: 0.8}`.

    What parameters there are depends on the policy: `ebbtide.policies.parameters` checks them.

    Attributes:
        name: Name of the policy, as `--policy` takes it.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: Annotated[str, Field(min_length=1, examples=["dynamic-pricing-cost"])]

    @model_validator(mode="before")
    @classmethod
    def _may_be_a_name_alone(cls, content: Any) -> Any:
        return {"name": content} if isinstance(content, str) else content

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The parameters that differ from the policy's defaults, by name."""
        return dict(self.model_extra or {})

    def beside(self, file: str | Path) -> AskedPolicy:
        """The same, with the path of a policy's own file from the working directory.

        Args:
            file: The file that asks for it, from whose folder it names other files.
        """
        place, colon, within = self.name.rpartition(":")
        own = Path(file).parent / (place if colon else self.name)
        if not own.is_file():
            return self
        return self.model_copy(update={"name": f"{own}{colon}{within if colon else ''}"})
