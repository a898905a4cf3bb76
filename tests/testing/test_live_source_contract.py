"""The contract of live sources refuses sources that break it, each by the test that says so."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import CloudError
from ebbtide.market.markets import Market
from ebbtide.market.signals import Observation, Signal, SignalKind, price_rows
from ebbtide.market.sources.web import Web
from ebbtide.testing.contracts.live_sources import LiveSourceContract
from ebbtide.testing.recorded_answers import Answer

HERE = Market("aws", "us-east-1", "us-east-1a", "g5.xlarge")
SECRET = LiveSourceContract.secret


class Good:
    name, every_s = "good", 0.0

    def __init__(self, url: str) -> None:
        headers = {"Authorization": f"Bearer {SECRET}"}
        self.web = Web(url, "the service", lambda: headers, attempts=3, first_wait_s=0.001)

    def observe(self, _since_s: Mapping[str, float], now_s: float) -> Observation:
        content = self.web.get("/now")
        try:
            return self.told(float(content["usd"]), float(content["chance"]), now_s)
        except (KeyError, TypeError, ValueError) as error:
            raise CloudError(f"the service answered something unknown: {error!r}") from None

    def told(self, usd: float, chance: float, now_s: float) -> Observation:
        return Observation(
            price_rows([(now_s, HERE, usd)]),
            [Signal(now_s, SignalKind.AVAILABILITY, HERE, chance)],
            {"us-east-1": "aws"},
        )


class Shouting(Good):
    name = "GOOD source"


class Silent(Good):
    def told(self, _usd: float, _chance: float, _now_s: float) -> Observation:
        return Observation()


class OfTheFuture(Good):
    def told(self, _usd: float, chance: float, now_s: float) -> Observation:
        return Observation(signals=[Signal(now_s * 1000.0, SignalKind.AVAILABILITY, HERE, chance)])


class Repeating(Good):
    def told(self, _usd: float, chance: float, now_s: float) -> Observation:
        return Observation(signals=[Signal(now_s, SignalKind.AVAILABILITY, HERE, chance)] * 2)


class Restless(Good):
    def told(self, _usd: float, _chance: float, now_s: float) -> Observation:
        return Observation(signals=[Signal(now_s, SignalKind.CAPACITY, HERE, now_s % 1000.0)])


class Careless(Good):
    def observe(self, _since_s: Mapping[str, float], now_s: float) -> Observation:
        content = self.web.get("/now")
        return self.told(float(content["usd"]), float(content["chance"]), now_s)


class Guessing(Good):
    """Takes an answer that it does not understand for a certain one."""

    def observe(self, _since_s: Mapping[str, float], now_s: float) -> Observation:
        content: Any = self.web.get("/now")
        known = content if isinstance(content, dict) else {}
        return self.told(float(known.get("usd", 0.1)), float(known.get("chance", 1.0)), now_s)


class Hiding(Good):
    def observe(self, _since_s: Mapping[str, float], now_s: float) -> Observation:
        try:
            return super().observe(_since_s, now_s)
        except CloudError:
            return Observation()


class Impatient(Good):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.web = Web(url, "the service", attempts=1)


class Telling(Good):
    def observe(self, _since_s: Mapping[str, float], now_s: float) -> Observation:
        try:
            return super().observe(_since_s, now_s)
        except CloudError as error:
            raise CloudError(f"with {SECRET}: {error}") from None


def checked(source: type[Good]) -> LiveSourceContract:
    class Checked(LiveSourceContract):
        def answers(self) -> Mapping[str, Sequence[Answer]]:
            return {"GET /now": ['{"usd": 0.5, "chance": 0.9}']}

        def make_source(self, url: str) -> Good:
            return source(url)

    return Checked()


def run(contract: LiveSourceContract, check: str, folder: Path) -> None:
    test = getattr(contract, f"test_{check}")
    test(folder) if inspect.signature(test).parameters else test()


def test_a_good_source_passes(tmp_path: Path) -> None:
    for name in dir(LiveSourceContract):
        if name.startswith("test_"):
            (tmp_path / name).mkdir()
            run(checked(Good), name.removeprefix("test_"), tmp_path / name)


@pytest.mark.parametrize(
    ("source", "check", "problem"),
    [
        (Shouting, "it_has_a_name_and_an_interval", "its name is 'GOOD source'"),
        (Silent, "it_tells_prices_in_the_schema_and_signals_in_range", "neither prices nor signals"),
        (OfTheFuture, "it_tells_prices_in_the_schema_and_signals_in_range", "is of a time .* that is none"),
        (
            Repeating,
            "it_tells_prices_in_the_schema_and_signals_in_range",
            "two signals of one kind, market and time",
        ),
        (Restless, "what_is_told_twice_is_stored_once", "what was told again was stored again"),
        (Careless, "damaged_answers_are_told_or_tell_nothing", "raised TypeError: .*; CloudError is right"),
        (Guessing, "damaged_answers_are_told_or_tell_nothing", "it made 1 prices, 1 signals"),
        (Hiding, "a_refusal_is_told", "a refusal with 400 gave 0 signals; CloudError is right"),
        (Hiding, "no_answer_is_told", "a service that does not answer gave 0 signals"),
        (Hiding, "its_failures_do_not_keep_others_from_answering", "one of them refused, the problems are"),
        (Impatient, "a_busy_service_is_asked_again", "later"),
        (Telling, "a_refusal_is_told", "an error shows the credentials"),
    ],
)
def test_a_source_that_breaks_it_is_refused(source: type[Good], check: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, CloudError), match=problem):
        run(checked(source), check, tmp_path)


def test_what_a_test_class_needs_is_told() -> None:
    with pytest.raises(NotImplementedError, match="needs answers"):
        LiveSourceContract().answers()
    with pytest.raises(NotImplementedError, match="needs make_source"):
        LiveSourceContract().make_source("http://127.0.0.1:9")
