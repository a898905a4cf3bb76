"""A cloud in parts: one that does not answer holds up no other, and is never taken to be empty."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.runs.sweeps import A, G, flapping, steady

import ebbtide as eb
from ebbtide.clouds.cloud import Instance, MachineRequest
from ebbtide.clouds.parts import ListedParts, PartlySilentError, all_ended, first_found
from ebbtide.clouds.several import SeveralClouds
from ebbtide.errors import CloudError, InputError
from ebbtide.market.leases import LeaseState

LOGGER = logging.getLogger("ebbtide.tests")


def machine(token: str) -> Instance:
    return Instance(token, LeaseState.RUNNING, 1.0, 1.0, math.nan)


def silent() -> Any:
    raise CloudError("it does not answer")


def test_machines_of_a_silent_part_are_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    parts = ListedParts(LOGGER)
    looks: dict[str, Callable[[], list[Instance]]] = {"a": lambda: [machine("1")], "b": lambda: [machine("2")]}
    with pytest.raises(PartlySilentError, match="does not answer") as partly:
        # It may have machines that nobody knows of.
        parts.listed({**looks, "b": silent}, 5.0)
    assert [one.token for one in partly.value.found] == ["1"]
    assert [one.token for one in parts.listed(looks, 10.0)] == ["1", "2"]
    assert (parts.part_of("2"), parts.part_of("3")) == ("b", None)
    found = {one.token: one.listed_s for one in parts.listed({**looks, "b": silent}, 20.0)}
    assert found == {"1": 20.0, "2": 10.0}
    assert "its machines are taken to be as before" in caplog.text
    with pytest.raises(CloudError, match="does not answer"):
        parts.listed(dict.fromkeys(looks, silent), 30.0)


def test_a_part_in_parts_of_which_some_never_answered_gives_what_the_others_listed() -> None:
    """As a cloud with a region that is away since the run was resumed."""
    inner, outer = ListedParts(LOGGER), ListedParts(LOGGER)
    looks: dict[str, Callable[[], list[Instance]]] = {"east": lambda: [machine("1")], "west": silent}

    def aws() -> list[Instance]:
        return inner.listed(looks, 5.0)

    for clouds in ({"aws": aws}, {"aws": aws, "gcp": lambda: [machine("2")]}, {"aws": aws, "gcp": silent}):
        with pytest.raises(PartlySilentError) as partly:
            outer.listed(clouds, 5.0)
        assert [one.token for one in partly.value.found][:1] == ["1"]
    looks["west"] = lambda: [machine("3")]
    assert [one.token for one in outer.listed({"aws": aws}, 6.0)] == ["1", "3"]


def test_of_parts_that_are_asked_in_order_the_first_answer_counts() -> None:
    assert first_found([lambda: None, lambda: 2.0, silent]) == 2.0
    assert first_found([lambda: None]) is None
    assert first_found([silent, lambda: 2.0]) == 2.0
    with pytest.raises(CloudError):
        first_found([silent, lambda: None])


def test_an_end_that_is_asked_of_all_reaches_those_that_answer() -> None:
    reached: list[str] = []

    def end(name: str) -> dict[str, str]:
        reached.append(name)
        return {name: ""}

    with pytest.raises(CloudError):
        all_ended([lambda: end("a"), silent, lambda: end("c")])
    assert reached == ["a", "c"]

    def refused() -> dict[str, str]:
        raise InputError("there are no Google credentials")

    with pytest.raises(InputError):
        all_ended([refused, dict])
    # Theirs are to be asked for again, and those that cannot be ended named.
    said = "there are no Google credentials; it does not answer; e cannot be ended: it is protected"
    with pytest.raises(CloudError, match=said):
        all_ended([refused, lambda: end("d"), silent, lambda: {"e": "it is protected"}])
    assert reached == ["a", "c", "d"]
    assert all_ended([lambda: end("a"), lambda: end("b")]) == {"a": "", "b": ""}


@dataclass
class Simple:
    """A cloud whose machines are a list."""

    history: eb.PriceHistory
    machines: list[Instance] = field(default_factory=list)
    is_away: bool = False
    now_s: float = 0.0
    is_over: bool = False

    @property
    def markets(self) -> tuple[eb.Market, ...]:
        return self.history.markets

    def prices(self, market: eb.Market) -> Any:
        return self.history[market]

    def time_of(self, epoch_s: float) -> float:
        return epoch_s

    def launch(self, wanted: MachineRequest) -> None:
        self.machines.append(machine(wanted.token))

    def terminate(self, token: str) -> float | None:
        if self.is_away:
            silent()
        return 3.0 if token in {one.token for one in self.machines} else None

    def instances(self) -> list[Instance]:
        if self.is_away:
            silent()
        return self.machines

    def end_all(self) -> dict[str, str]:
        return {one.token: "" for one in self.instances()}


def test_a_defect_in_one_part_keeps_no_machine_of_another() -> None:
    """Before, an answer that boto3 could not parse left the machines of other regions running."""
    ended: list[str] = []

    def broken() -> dict[str, str]:
        raise KeyError("Reservations")

    def ends() -> dict[str, str]:
        ended.append("2")
        return {"2": ""}

    with pytest.raises(KeyError):
        all_ended([broken, ends])
    assert ended == ["2"]


def test_each_market_is_rented_in_its_own_cloud() -> None:
    aws, gcp = Simple(flapping()), Simple(steady())
    both = SeveralClouds({"aws": aws, "gcp": gcp})
    assert set(both.markets) == {*aws.markets, *gcp.markets}
    assert both.prices(G) == gcp.prices(G)
    for token, market in (("1", A), ("2", G)):
        both.launch(MachineRequest(token, market, math.inf, False, {}))
    assert ([one.token for one in aws.machines], [one.token for one in gcp.machines]) == (["1"], ["2"])
    assert {one.token for one in both.instances()} == {"1", "2"}
    # Its own cloud is asked first, whatever the other does.
    aws.is_away = True
    assert both.terminate("2") == 3.0
    with pytest.raises(CloudError):
        both.terminate("3")
    assert {one.token for one in both.instances()} == {"1", "2"}
    with pytest.raises(CloudError):
        both.end_all()
    with pytest.raises(InputError, match="unknown cloud of this run 'azure'.*known: aws, gcp"):
        both.launch(MachineRequest("4", eb.Market("azure", "r", "z", "t"), math.inf, False, {}))
