"""A cloud in parts, such as regions: a part that does not answer does not hold up the others."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ebbtide.clouds.cloud import Instance
from ebbtide.clouds.log_once import RepeatedWarnings
from ebbtide.errors import CloudError, EbbtideError

T = TypeVar("T")


class PartlySilentError(CloudError):
    """Some parts of a cloud have never answered, and may have machines that nobody knows of; others answer.

    Attributes:
        found: The machines of the parts that answer, or have answered before.
    """

    def __init__(self, problem: str, found: Sequence[Instance]) -> None:
        super().__init__(problem)
        self.found = found


class ListedParts:
    """Keeps the machines of each part from its last listing.

    Args:
        logger: Gets a warning of each part that does not answer.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._warnings = RepeatedWarnings(logger)
        self._listed: dict[str, list[Instance]] = {}
        self._part_of: dict[str, str] = {}
        # Parts of which nothing was heard at the last listing.
        self.silent = frozenset[str]()

    def part_of(self, token: str) -> str | None:
        """The part in which a machine was last listed; None: it never was."""
        return self._part_of.get(token)

    def listed(self, parts: Mapping[str, Callable[[], Sequence[Instance]]], now_s: float) -> list[Instance]:
        """List the machines of all parts; for a part that does not answer, those of its last answer.

        Args:
            parts: By name, the function that lists a part's machines.
            now_s: The time, seconds since 1970.

        Raises:
            PartlySilentError: A part has never answered, and so may have unknown machines; others answer.
            CloudError: No part answers.
        """
        silent: list[CloudError] = []
        unheard = set[str]()
        partly: dict[str, Sequence[Instance]] = {}
        for name, look in parts.items():
            try:
                found = look()
            except CloudError as error:
                if isinstance(error, PartlySilentError):
                    partly[name] = error.found
                    self._part_of |= {one.token: name for one in error.found}
                else:
                    unheard.add(name)
                self._warnings.warn(name, f"{error}; its machines are taken to be as before")
                silent.append(error)
                continue
            self._warnings.forget(name)
            self._listed[name] = [
                replace(one, listed_s=now_s) if math.isnan(one.listed_s) else one for one in found
            ]
            self._part_of |= {one.token: name for one in found}
        self.silent = frozenset(unheard)
        if len(silent) == len(parts) and not partly:
            raise silent[0]
        listed = [one for name in parts for one in partly.get(name, self._listed.get(name, ()))]
        if any(name not in self._listed for name in parts):
            raise PartlySilentError(str(silent[0]), listed)
        return listed


def first_found(asks: Iterable[Callable[[], T | None]]) -> T | None:
    """Ask parts in order until one returns a result; None: no part has one.

    Raises:
        CloudError: No part has a result, and at least one did not answer.
    """
    silent: CloudError | None = None
    for ask in asks:
        try:
            found = ask()
        except CloudError as error:
            silent = error
            continue
        if found is not None:
            return found
    if silent is not None:
        raise silent
    return None


def all_ended(ends: Iterable[Callable[[], Mapping[str, str]]]) -> dict[str, str]:
    """End the machines of all parts; returns by token why each cannot be ended (empty: its end was requested).

    Raises:
        CloudError: A part does not answer, or lacks credentials; the end was still requested in the others, and
            machines of theirs that cannot be ended are named.
        InputError: A part's credentials are missing, and the others have no machines.
        Exception: A defect in asking a part; the end was still requested in the others.
    """
    left: dict[str, str] = {}
    silent: list[Exception] = []
    for end in ends:
        try:
            left |= end()
        except Exception as error:
            # Machines of the other parts cost money, whatever is wrong with this one.
            silent.append(error)
    if left and silent and all(isinstance(error, EbbtideError) for error in silent):
        refused = [f"{token} cannot be ended: {why}" for token, why in left.items() if why]
        raise CloudError("; ".join([*map(str, silent), *refused])) from silent[0]
    if silent:
        raise silent[0]
    return left
