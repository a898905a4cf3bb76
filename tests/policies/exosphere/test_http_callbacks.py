"""Up-calls to a program of the user's own by HTTP: what it is told, what it may answer, and what is not believed."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.jobs.job import Coupling, Job
from ebbtide.market.billing import billing_preset
from ebbtide.market.generator import generate_auction_prices
from ebbtide.policies.exosphere.master import ExoSphere
from ebbtide.policies.parameters import with_parameters
from ebbtide.policies.registry import policy as policy_named
from ebbtide.replay.scenario import Scenario

PRICES = generate_auction_prices(days=12, seed=2)
START_S = PRICES.start_s + 5 * 86_400.0
JOB = Job(
    name="app",
    steps=1500,
    other_steps_per_hour_per_vcpu=50,
    machines=4,
    coupling=Coupling.INDEPENDENT,
    checkpoint={"save_s": 10, "restore_s": 20},  # type: ignore[arg-type]
)

Answer = Callable[[dict[str, Any]], Any]


class Program:
    """A program that is called, and what it was told."""

    def __init__(self, answer: Answer) -> None:
        self.told: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                call = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                self.told.append(call)
                answered = answer(call)
                content = answered if isinstance(answered, bytes) else json.dumps(answered).encode()
                handler.send_response(204 if answered is None else 200)
                handler.send_header("Content-Length", "0" if answered is None else str(len(content)))
                handler.end_headers()
                if answered is not None:
                    handler.wfile.write(content)

            def log_message(handler, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def program(answer: Answer) -> Iterator[Program]:
    found = Program(answer)
    try:
        yield found
    finally:
        found.close()


def replayed(job: Job = JOB, **fields: Any) -> Outcome:
    # The longest that it waits, for answers that come on a busy machine.
    return Scenario((job,), PRICES, billing_preset("ec2-second")).run(
        ExoSphere(alpha=1.0, up_calls_s=30.0, **fields), START_S, record=True
    )


def test_a_program_that_leaves_all_to_the_application_changes_nothing() -> None:
    alone = replayed()
    with program(lambda _: None) as silent:
        beside = replayed(up_calls=silent.url)
    with program(lambda _: {"calls": None}) as polite:
        again = replayed(up_calls=polite.url)
    assert [moment.detail for moment in beside.timeline] == [moment.detail for moment in alone.timeline]
    assert beside.cost_usd == again.cost_usd == alone.cost_usd
    first = silent.told[0]
    assert (first["call"], first["job"], first["servers"]) == ("begin", "app", [])
    kinds = {call["call"] for call in silent.told}
    assert {"begin", "portfolio-mttr", "due"} <= kinds
    later = next(call for call in silent.told if call["servers"])
    assert {"server", "market", "vcpus", "memory_gib", "usd_per_hour", "bid_usd_per_hour", "is_leaving"} == set(
        later["servers"][0]
    )


def test_its_answers_are_done() -> None:
    def answer(call: dict[str, Any]) -> Any:
        if call["call"] == "begin":
            return {"calls": [{"call": "portfolio", "vcpus": 2, "alpha": 0.5}]}
        if call["call"] == "portfolio-mttr" and call["share_done"] > 0.3:
            return {"calls": [{"call": "resize", "vcpus": 4}, {"call": "checkpoint"}]}
        return {"calls": []}

    with program(answer) as told:
        outcome = replayed(up_calls=told.url)
    assert outcome.finished
    wanted = {call["wanted"]["vcpus"] for call in told.told}
    assert {0.0, 2.0, 4.0} <= wanted
    assert outcome.checkpoints > 0


def test_servers_are_released_by_their_numbers() -> None:
    def answer(call: dict[str, Any]) -> Any:
        steady = [server["server"] for server in call["servers"] if not server["is_leaving"]]
        if call["call"] == "portfolio-mttr" and len(steady) > 2:
            return {"calls": [{"call": "release", "servers": steady[:1]}]}
        return None

    with program(answer) as told:
        outcome = replayed(up_calls=told.url)
    assert outcome.finished
    assert any(len(call["servers"]) <= 2 for call in told.told[5:])


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"{torn", "is not understood"),
        ({"calls": [{"call": "buy", "vcpus": 3}]}, "is not understood: calls.0"),
        ({"calls": [{"call": "resize", "vcpus": -1}]}, "is not understood: calls.0.resize.vcpus"),
        ({"calls": [{"call": "resize", "vcpus": 1e8}]}, "asks for more than the"),
        ({"calls": [{"call": "release", "servers": [77]}]}, "releases server 77, which is none of the cluster's"),
        ({"calls": [{"call": "call-again", "time_s": "NaN"}]}, "is not understood"),
        ({"calls": [{"call": "portfolio", "vcpus": 0}]}, "is not possible: resources"),
        ({"calls": [{"call": "checkpoint"}] * 2000}, "is not understood: calls"),
        (b"[" * 100_000, "is not understood"),
        (b" " + b"1" * (2 << 20), "more than"),
    ],
)
def test_what_is_wrong_is_told_and_the_application_answers(
    answer: Any, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    alone = replayed()
    with program(lambda _: answer) as told:
        outcome = replayed(up_calls=told.url)
    assert outcome.cost_usd == alone.cost_usd
    assert problem in caplog.text
    assert "its application answers" in caplog.text


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"begin": [{"call": "portfolio", "vcpus": 2, "instance_types": ["nope"]}]}, "names instance type 'nope'"),
        ({"portfolio-mttr": "twice"}, "releases a server twice"),
    ],
)
def test_names_and_numbers_are_checked(
    answers: dict[str, Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(call: dict[str, Any]) -> Any:
        found = answers.get(call["call"])
        if found == "twice" and call["servers"]:
            number = call["servers"][0]["server"]
            return {"calls": [{"call": "release", "servers": [number, number]}]}
        return {"calls": found} if isinstance(found, list) else None

    with program(answer) as told:
        assert replayed(up_calls=told.url).cost_usd == replayed().cost_usd
    assert problem in caplog.text


def test_one_that_answers_each_report_with_a_portfolio_is_answered_once_a_decision() -> None:
    def answer(call: dict[str, Any]) -> Any:
        if call["call"] == "portfolio-mttr":
            return {"calls": [{"call": "portfolio", "vcpus": 2}]}
        return None

    with program(answer) as told:
        assert replayed(up_calls=told.url).finished
    at = [call["now_s"] for call in told.told if call["call"] == "portfolio-mttr"]
    assert max(at.count(time_s) for time_s in set(at)) <= 2


def test_one_that_drips_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    served: list[int] = []
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            for letter in b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b" " * 1000:
                connection.send(bytes([letter]))
                if over.wait(0.05):
                    return

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                served.append(1)
                threading.Thread(target=drip, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    short = Scenario((JOB.model_copy(update={"steps": 50}),), PRICES, billing_preset("ec2-second"))
    try:
        policy = ExoSphere(up_calls=f"http://127.0.0.1:{server.getsockname()[1]}/", up_calls_s=0.3)
        outcome = short.run(policy, START_S)
    finally:
        over.set()
        server.close()
    assert outcome.finished
    # It is asked now and then, not at each call.
    assert 0 < len(served) <= (outcome.end_s - START_S) / 600.0 + 2
    assert "no answer to begin: it takes longer than 0.3 s; it is asked again in 10 minutes" in caplog.text


def test_begin_needs_a_portfolio(caplog: pytest.LogCaptureFixture) -> None:
    with program(lambda call: {"calls": []} if call["call"] == "begin" else None) as told:
        assert replayed(up_calls=told.url).cost_usd == replayed().cost_usd
    assert "begin needs a portfolio among its calls" in caplog.text


def test_one_that_is_not_there_or_too_slow_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert replayed(up_calls="http://127.0.0.1:9/").finished
    assert "no answer to begin" in caplog.text
    short = Scenario((JOB.model_copy(update={"steps": 50}),), PRICES, billing_preset("ec2-second"))
    over = threading.Event()
    with program(lambda _: over.wait()) as slow:
        try:
            outcome = short.run(ExoSphere(up_calls=slow.url, up_calls_s=0.1), START_S)
        finally:
            over.set()
    assert outcome.finished
    # Not at each call: each holds up all jobs.
    assert len(slow.told) <= (outcome.end_s - START_S) / 600.0 + 2


def test_one_that_asks_to_be_called_again_at_once_is_called_later() -> None:
    def answer(call: dict[str, Any]) -> Any:
        if call["call"] == "due":
            return {"calls": [{"call": "call-again", "time_s": call["now_s"]}]}
        return None

    with program(answer) as told:
        outcome = replayed(JOB.model_copy(update={"steps": 200}), up_calls=told.url)
    assert outcome.finished
    calls = sum(call["call"] == "due" for call in told.told)
    # The application asks every few minutes besides.
    assert calls <= (outcome.end_s - START_S) / 10.0 + (outcome.end_s - START_S) / 300.0 + 10.0


def test_the_address_is_checked_at_the_door() -> None:
    for wrong in ("127.0.0.1:80", "file:///etc/passwd", "http://me:secret@127.0.0.1/", "http:///"):
        with pytest.raises(InputError, match=r"up_calls: is '.*an address is needed"):
            with_parameters(policy_named("exosphere"), {"up_calls": wrong})
    with pytest.raises(InputError, match="up_calls_s"):
        ExoSphere(up_calls="http://127.0.0.1:1/", up_calls_s=100.0)
