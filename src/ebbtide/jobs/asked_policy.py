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
        if isinstance(content, AskedPolicy):
            return content
        if not isinstance(content, str | Mapping):
            raise ValueError(
                f"is {content!r:.80}; a policy's name is needed, or a mapping with name and parameters"
            )
        return {"name": content} if isinstance(content, str) else content

    @model_validator(mode="after")
    def _is_plain(self) -> AskedPolicy:
        for name, value in self.parameters.items():
            if not _is_plain(value):
                raise ValueError(f"{name} is {value!r:.80}; numbers, text, lists and mappings are parameters")
        return self

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
        try:
            is_there = own.is_file()
        except (OSError, ValueError):  # no path has such a name
            is_there = False
        if not is_there:
            return self
        return self.model_copy(update={"name": f"{own}{colon}{within if colon else ''}"})


def _is_plain(value: Any) -> bool:
    """Return whether JSON can hold a value, unlike the dates and bytes of YAML."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str | int | float) and _is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, bool | int | float | str)
