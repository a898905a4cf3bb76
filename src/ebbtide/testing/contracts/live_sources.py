"""Contract tests of live sources: prices in the schema, signals in range, one-line error messages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ebbtide.errors import CloudError, InputError
from ebbtide.market.monitor import Monitor
from ebbtide.market.price_store import PriceStore
from ebbtide.market.signals import LiveSource, Observation, SignalKind
from ebbtide.market.sources.validation import cleaned
from ebbtide.testing.recorded_answers import Answer, served

_DAY_S = 86_400.0
_MOST_CHARACTERS = 1_000
_DAMAGED = ("", "<html>", "[]", "{}", "null", '{"unknown": [{"a": 1}]}', "[1, 2]", '"text"')


class LiveSourceContract:
    """Tests of a live source on recorded answers. Inherit from this class in one whose name begins with `Test`:

        from ebbtide.testing import LiveSourceContract

        class TestMine(LiveSourceContract):
            def answers(self):
                return {"GET /prices": [Path("prices.json").read_text()]}

            def make_source(self, url):
                return MySource(url, headers={"Authorization": f"Bearer {self.secret}"})

    Attributes:
        secret: The credentials that the source must send; no error message may show them.
    """

    secret = "not-to-be-shown"

    def answers(self) -> Mapping[str, Sequence[Answer]]:
        """Return answers of the service, by method and path, such as `GET /prices`.

        An answer is a text, or a status with a text. Several answers are sent in turn, and the last is repeated.
        HOST in a text stands for the server's address.
        """
        raise NotImplementedError("a test class of LiveSourceContract needs answers(self)")

    def make_source(self, url: str) -> LiveSource:
        """Make a source for the service at this address, which retries after some milliseconds.

        Args:
            url: Address of the recorded service, on 127.0.0.1.
        """
        raise NotImplementedError("a test class of LiveSourceContract needs make_source(self, url)")

    def test_it_has_a_name_and_an_interval(self) -> None:
        source = self.make_source("http://127.0.0.1:9")
        is_plain = source.name and source.name == source.name.lower() and not set(source.name) & set(" _/")
        assert is_plain, f"its name is {source.name!r}; small letters, digits and hyphens are right"
        assert source.every_s >= 0.0, f"every_s is {source.every_s}; it is a time in seconds"

    def test_it_tells_prices_in_the_schema_and_signals_in_range(self) -> None:
        found = self._observed()
        assert len(found.prices) or found.signals, "it tells neither prices nor signals"
        if len(found.prices):
            frame, _ = cleaned(found.prices, "source")
            assert len(frame) == len(found.prices), "it tells two prices of one market and time"
            clouds = set(frame["cloud"].astype(str))
            assert set(found.places.values()) <= clouds, "its places are of clouds of which it tells no price"
        now_s = time.time()
        for signal in found.signals:
            assert isinstance(signal.kind, SignalKind), f"{signal.kind!r} is no kind of signal"
            problem = f"{signal.kind} of {signal.market} is of a time {signal.time_s:.0f} that is none"
            assert 0.0 < signal.time_s <= now_s + _DAY_S, problem
        keys = [(signal.kind, signal.market, signal.time_s) for signal in found.signals]
        assert len(keys) == len(set(keys)), "it tells two signals of one kind, market and time"

    def test_what_is_told_twice_is_stored_once(self, tmp_path: Path) -> None:
        store, now_s = PriceStore(tmp_path / "prices.db"), time.time()
        looks = []
        for place in range(2):
            with served(self.answers()) as answers:
                source = self.make_source(answers.url)
                monitor = Monitor([source], store, clock=partial(float, now_s + place))
                looks.append(monitor.look())
        first, second = looks
        assert not first.problems, first.problem
        assert first.changes + first.signals > 0, "nothing of what it told was stored"
        assert (second.changes, second.signals) == (0, 0), "what was told again was stored again"
        stored = sum(len(signals) for signals in store.signals().values())
        assert stored == first.signals, f"{stored} signals are stored of {first.signals}"

    def test_a_refusal_is_told(self) -> None:
        for status in (400, 401, 403, 404):
            self._check_told({path: [(status, "refused")] for path in self.answers()}, f"a refusal with {status}")

    def test_a_busy_service_is_asked_again(self) -> None:
        busy = {path: [(503, "later"), *answers] for path, answers in self.answers().items()}
        with served(busy) as answers:
            found = self.make_source(answers.url).observe({}, time.time())
        assert len(found.prices) or found.signals, "after one answer that the service is busy it told nothing"
        self._check_told({path: [(503, "later")] for path in self.answers()}, "a service that stays busy")

    def test_no_answer_is_told(self) -> None:
        with served(self.answers()) as answers:
            source = self.make_source(answers.url)
        self._check_error(source, "a service that does not answer")

    def test_damaged_answers_are_told_or_tell_nothing(self) -> None:
        for text in _DAMAGED:
            with served({path: [text] for path in self.answers()}) as answers:
                source = self.make_source(answers.url)
                try:
                    found = source.observe({}, time.time())
                except (CloudError, InputError) as error:
                    self._check_line(str(error))
                except Exception as error:
                    told = f"{type(error).__name__}: {error}"
                    raise AssertionError(f"the answer {text!r} raised {told}; CloudError is right") from error
                else:
                    problem = (
                        f"of the answer {text!r} it made {len(found.prices)} prices, {len(found.signals)} signals"
                    )
                    assert not len(found.prices), problem
                    assert not found.signals, problem

    def test_its_failures_do_not_keep_others_from_answering(self, tmp_path: Path) -> None:
        with served(self.answers()) as good, served({path: [(403, "no")] for path in self.answers()}) as bad:
            refused = _Named(self.make_source(bad.url), "refused")
            look = Monitor([refused, self.make_source(good.url)], PriceStore(tmp_path / "prices.db")).look()
        assert list(look.problems) == ["refused"], f"of two, one of them refused, the problems are {look.problems}"
        assert look.changes + look.signals > 0, "the source that was answered told nothing"

    def _observed(self) -> Observation:
        with served(self.answers()) as answers:
            return self.make_source(answers.url).observe({}, time.time())

    def _check_told(self, routes: Mapping[str, Sequence[Answer]], about: str) -> None:
        with served(routes) as answers:
            self._check_error(self.make_source(answers.url), about)

    def _check_error(self, source: LiveSource, about: str) -> None:
        try:
            found = source.observe({}, time.time())
        except (CloudError, InputError) as error:
            self._check_line(str(error))
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            raise AssertionError(f"{about} raised {told}; CloudError is right") from error
        else:
            raise AssertionError(f"{about} gave {len(found.signals)} signals; CloudError is right")

    def _check_line(self, text: str) -> None:
        assert text, "an error has no message"
        assert "\n" not in text, f"an error is told in one line, not as {text!r}"
        assert len(text) <= _MOST_CHARACTERS, f"an error of {len(text)} characters is too long to be read"
        assert self.secret not in text, "an error shows the credentials"


class _Named:
    """A source under another name."""

    def __init__(self, source: LiveSource, name: str) -> None:
        self._source, self.name, self.every_s = source, name, source.every_s

    def observe(self, since_s: Mapping[str, float], now_s: float) -> Observation:
        return self._source.observe(since_s, now_s)
