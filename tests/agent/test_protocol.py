"""Messages between controller and machines: whatever is said comes back, and nothing else is believed."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.agent.config import Assignment
from ebbtide.agent.protocol import (
    ORDERS,
    REPORTS,
    VERSION,
    BadMessageError,
    Channel,
    Ended,
    Ending,
    Envelope,
    Leave,
    Log,
    Message,
    Noticed,
    Stepped,
    Train,
    Up,
    key_of,
    read_messages,
)

KEY = key_of(b"of the run", "m-1")
ASSIGNMENT = Assignment("t-1", ("python", "x.py", "ü"), 40, "loss", {"A": "b"}, mttr_s=1e9, aside=(3,), attempt=2)

_TEXT = st.text(max_size=20)
_WHOLE = st.integers(0, 1 << 40)
_NUMBER = st.floats(allow_nan=True)
_OF = {
    "str": _TEXT,
    "int": _WHOLE,
    "float": _NUMBER,
    "tuple[str, ...]": st.lists(_TEXT, max_size=3).map(tuple),
    "tuple[int, ...]": st.lists(_WHOLE, max_size=3).map(tuple),
    "int | None": st.none() | _WHOLE,
    "bool": st.booleans(),
    "Ending": st.sampled_from(Ending),
    "Assignment": st.just(ASSIGNMENT),
}
# An exit code, which is negative where a signal ended the program.
_NAMED = {"code": st.none() | st.integers(-255, 255)}
_KINDS = [(kinds, kind) for kinds in (ORDERS, REPORTS) for kind in kinds.values()]


@st.composite
def messages(draw: st.DrawFn) -> tuple[Channel, Message]:
    kinds, kind = draw(st.sampled_from(_KINDS))
    values = {each.name: draw(_NAMED.get(each.name, _OF[str(each.type)])) for each in fields(kind)}
    return Channel("m-1", kinds, KEY), kind(**values)


def through_storage(values: Any) -> Any:
    return read_messages(json.dumps([values]).encode())[0]


def same(one: Message | None, other: Message | None) -> bool:
    # NaN is not equal to itself.
    return repr(one) == repr(other)


@given(messages(), st.integers(1, 1 << 40), st.integers(0, 9))
def test_what_is_sealed_is_read(told: tuple[Channel, Message], count: int, epoch: int) -> None:
    channel, message = told
    found = channel.open(through_storage(channel.seal(Envelope("b", count, epoch, message))))
    assert (found.boot, found.count, found.epoch) == ("b", count, epoch)
    assert same(found.message, message)


@given(messages(), st.data())
def test_nothing_that_was_changed_is_believed(told: tuple[Channel, Message], data: st.DataObject) -> None:
    channel, message = told
    content = bytearray(json.dumps([channel.seal(Envelope("b", 1, 1, message))]).encode())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    try:
        (values,) = read_messages(bytes(content))
        found = channel.open(values)
    except (BadMessageError, ValueError):
        return
    # Such as a letter of an escape in the other case.
    assert same(found.message, message)


def test_messages_of_another_machine_way_or_run_are_not_believed() -> None:
    reports = Channel("m-1", REPORTS, KEY)
    sealed = reports.seal(Envelope("b", 1, 0, Up()))
    for other in (
        replace(reports, machine="m-2"),
        replace(reports, kinds=ORDERS),
        replace(reports, key=key_of(b"of the run", "m-2")),
    ):
        with pytest.raises(BadMessageError, match="not sealed with this machine's key"):
            other.open(sealed)


def test_a_newer_version_is_refused_and_newer_kinds_and_fields_are_left_out() -> None:
    channel = Channel("m-1", REPORTS, KEY)
    sealed = channel.seal(Envelope("b", 1, 0, Log("t", "line")))

    def resealed(**changes: Any) -> dict[str, Any]:
        content = {name: value for name, value in sealed.items() if name != "mac"} | changes
        return content | {"mac": channel._mac(content)}

    with pytest.raises(BadMessageError, match=f"version {VERSION + 1}, and this Ebbtide reads versions up to"):
        channel.open(resealed(version=VERSION + 1))
    assert channel.open(resealed(more=1)).message == Log("t", "line")
    assert channel.open(resealed(kind="sung")).message is None
    for wrong in ({"line": 7}, {"trial": None}, {"count": "1"}, {"boot": 2}, {"line": ["a"]}):
        with pytest.raises(BadMessageError):
            channel.open(resealed(**wrong))


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"{", "is not JSON"), (b"[" * 10**5, "is not JSON"), (b"{}", "is no list"), (b" " * 5_000_000, "bytes")],
)
def test_what_is_no_list_of_messages_is_told(content: bytes, told: str) -> None:
    with pytest.raises(BadMessageError, match=told):
        read_messages(content)


def test_names_of_files_that_are_no_text_come_as_text() -> None:
    """Else the log of the trial and the journal could not be written, and the run would end."""
    channel = Channel("m-1", REPORTS, KEY)
    sealed = channel.seal(Envelope("b", 1, 0, Log("t-1", "\udcff\udcfe is a socket")))
    assert channel.open(through_storage(sealed)).message == Log("t-1", "\\udcff\\udcfe is a socket")


def test_messages_have_their_defaults() -> None:
    assert math.isnan(Stepped("t", 1, 5, 0.0).metric)
    assert Ended("t", 1, Ending.LEFT, 5).code is None
    assert Leave(1).trial == ""
    assert Train(ASSIGNMENT).assignment.attempt == 2
    assert Noticed(5.0).taken_at_s == 5.0


def test_only_an_order_to_share_a_machine_needs_an_agent_that_can() -> None:
    channel = Channel("m-1", ORDERS, KEY)

    def version(order: Train | Leave) -> int:
        return int(channel.seal(Envelope("b", 1, 1, order))["version"])

    half = replace(ASSIGNMENT, share=0.5)
    assert [version(order) for order in (Train(ASSIGNMENT), Leave(1, "t-1", reported=True))] == [1, 1]
    assert [version(Train(half)), version(Train(ASSIGNMENT, ("t-1",)))] == [2, 2]
    assert channel.open(channel.seal(Envelope("b", 1, 1, Train(half, ("t-1",))))).message == Train(half, ("t-1",))


def test_orders_of_a_newer_controller_are_read_and_incomplete_ones_told() -> None:
    channel = Channel("m-1", ORDERS, KEY)
    sealed = channel.seal(Envelope("b", 1, 1, Train(ASSIGNMENT)))

    def opened(**changed: Any) -> Envelope:
        content = {name: value for name, value in sealed.items() if name != "mac"}
        fields_of = {name: value for name, value in (content["assignment"] | changed).items() if value is not None}
        content["assignment"] = fields_of
        return channel.open(content | {"mac": channel._mac(content)})

    assert opened(new_field=1).message == Train(ASSIGNMENT)
    for wrong in ({"arguments": None}, {"aside": 5}):
        with pytest.raises(BadMessageError, match="is no message 'train'"):
            opened(**wrong)


def test_what_is_nested_deeper_than_can_be_read_is_not_sealed() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    channel = Channel("m-1", REPORTS, KEY)
    assert not channel.is_sealed({"mac": "0", "line": deep})
    with pytest.raises(BadMessageError, match="not sealed"):
        channel.open({"mac": "0", "line": deep})
