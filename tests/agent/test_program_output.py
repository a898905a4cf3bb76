"""A program that prints without end: little waits, what counts is read, and what is left out is counted."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from tests.agent.test_training import StillRuntime, begun

from ebbtide.agent.messages import MessageLog
from ebbtide.agent.outbox import Outbox
from ebbtide.agent.program_output import DroppedLines, LineReader, Printed, ProgramOutput, Thinning
from ebbtide.agent.protocol import REPORTS, Channel, Envelope, Log, Message, Stepped
from ebbtide.agent.training import TrainingRun
from ebbtide.base.runtime import Flag
from ebbtide.storage.objects import FolderStore, numbers_below

CHANNEL = Channel("run-m0", REPORTS, bytes(32))


def filled(lines: Iterable[Printed]) -> ProgramOutput:
    output = ProgramOutput(lambda: None)
    for line in lines:
        output.put(line)
    return output


def words(count: int) -> list[str]:
    """Lines of which no two have one shape."""
    drawn = random.Random(1)
    return ["".join(drawn.choices("abcdefgh ", k=60)) for _ in range(count)]


def left_out(printed: Iterable[Printed]) -> int:
    return sum(each.lines for each in printed if isinstance(each, DroppedLines))


def test_of_a_flood_little_waits_and_the_rest_is_counted() -> None:
    taken = list(filled([*words(20_000), None]).take())
    assert taken[-1] is None
    lines = [each for each in taken if isinstance(each, str)]
    assert len(lines) <= 2_050
    assert len(lines) + left_out(taken) == 20_000


def test_long_lines_are_fewer() -> None:
    taken = list(filled("x" * 4_000 + line for line in words(5_000)).take())
    assert sum(len(each) for each in taken if isinstance(each, str)) <= 1 << 20


def test_what_is_printed_slowly_is_read_whole() -> None:
    output, found = ProgramOutput(lambda: None), list[Printed]()
    for line in (printed := words(20_000)):
        output.put(line)
        found += output.take()
    assert found == printed


def test_of_lines_that_differ_in_their_numbers_the_newest_is_read() -> None:
    lines = [line for at in range(5_000) for line in ({"step": at, "loss": 0.5}, f"epoch {at} of 9", f"saw {at}")]
    taken = list(filled([*words(1_990), *lines]).take())
    assert taken[-4:] == [{"step": 4_999, "loss": 0.5}, "epoch 4999 of 9", "saw 4999", DroppedLines(14_990)]
    # Where other lines fill it, what may be progress has a place of its own.
    taken = list(filled([*words(3_000), *lines]).take())
    assert taken[-3:] == [{"step": 4_999, "loss": 0.5}, "epoch 4999 of 9", DroppedLines(1_000 + 15_000 - 2)]


def test_a_rare_line_of_progress_is_read_among_words_without_end() -> None:
    rare = [f"epoch {number}/9 {word} loss 0.{number}" for number, word in enumerate(words(9), 1)]
    taken = list(filled([*words(5_000), *rare, *words(5_000)]).take())
    assert [each for each in taken if each in rare] == rare


def test_of_too_many_kinds_of_progress_the_newest_is_read() -> None:
    taken = list(filled([*words(2_000), *(f"{word} epoch {at}" for at, word in enumerate(words(500)))]).take())
    assert len(taken) == 2_000 + 50 + 2
    assert str(taken[-2]).endswith("epoch 499")


def test_nothing_of_the_protocol_is_lost() -> None:
    ours: list[Printed] = [
        {"api": 1},
        {"started": 3},
        {"saved": 9, "folder": "step-9"},
        {"finished": 9},
        {"left": 9},
    ]
    taken = list(filled([*words(3_000), *ours, *words(3_000), {"saved": 12, "folder": "step-12"}]).take())
    kept = [each for each in taken if isinstance(each, dict)]
    # The newest save alone counts.
    assert kept == [*ours[:2], *ours[3:], {"saved": 12, "folder": "step-12"}]


def test_nothing_waits_once_it_is_closed() -> None:
    output = filled(words(100))
    output.close()
    output.put("more")
    assert list(output.take()) == []


def test_the_loop_is_woken_once_for_all_that_waits_and_at_the_end() -> None:
    woken = list[int]()
    output = ProgramOutput(lambda: woken.append(1))
    for line in ("one", "two"):
        output.put(line)
    assert len(woken) == 1
    assert list(output.take()) == ["one", "two"]
    output.put("three")
    output.put(None)
    assert len(woken) == 3


def test_a_line_that_never_ends_is_cut() -> None:
    reader = LineReader()
    for _ in range(100):
        assert reader.lines(b"x" * 65_536) == []
    assert reader.lines(b"\nnext\n") == ["x" * 65_536, "next"]


def test_carriage_returns_end_lines_and_letters_may_be_cut_in_two() -> None:
    reader, content = LineReader(), "50%\r60%\r\nfür\nlast".encode()
    found = [line for at in range(len(content)) for line in reader.lines(content[at : at + 1])]
    assert found + reader.lines(b"") == ["50%", "60%", "für", "last"]


def test_a_burst_passes_and_of_a_flood_the_newest_of_each_shape() -> None:
    thinning = Thinning()
    burst = [f'{{"step": {number}}}' for number in range(2_000)]
    assert thinning.passing(burst, 1.0) == burst
    flood = [line for number in range(3_000) for line in (f"y{number}", "noise", f'{{"step": {number}}}')]
    assert thinning.passing(flood, 1.1) == ["y2999", "noise", '{"step": 2999}']
    # Some time later there is room for a burst again.
    assert thinning.passing(burst, 3.5) == burst


class Events(StillRuntime):
    """Flags as threads have them, for an outbox whose thread is driven by hand."""

    def flag(self) -> Flag:
        return threading.Event()


class Storage(FolderStore):
    """Storage that may be away."""

    is_away = False

    def put_once(self, key: str, content: bytes) -> bool:
        if self.is_away:
            raise OSError("away")
        return super().put_once(key, content)


def driven(storage: Storage) -> Outbox:
    return Outbox(MessageLog(storage, CHANNEL), 0.0, Events())


def write(outbox: Outbox) -> None:
    """Write all, as the outbox's thread does."""
    while outbox._gather():
        outbox._written()
        if outbox._writing:
            return


def received(storage: Storage) -> list[Envelope]:
    return [each for each in MessageLog(storage, CHANNEL).new() if isinstance(each, Envelope)]


def test_while_storage_is_away_little_waits_and_no_report_is_missed_afterwards(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    outbox = driven(storage)
    storage.is_away = True
    for step in range(1, 30_001):
        outbox.put(Stepped("t", 1, step, 0.0, step, 1.0 / step if step % 2 else float("nan")), urgent=False)
        outbox.put(Log("t", f"line {step}"), urgent=False)
        if step % 1_000 == 0:
            write(outbox)
    assert len(outbox._waiting) + len(outbox._writing) <= 6_500
    storage.is_away = False
    write(outbox)
    found = received(storage)
    # A gap would have the controller ask for repeats.
    assert [each.count for each in found] == list(range(1, len(found) + 1))
    steps = [each.message for each in found if isinstance(each.message, Stepped)]
    assert steps[-1].step == 30_000
    with_metric = [each.at for each in steps if each.metric == each.metric]
    assert max(b - a for a, b in pairwise(with_metric)) <= 1_000
    logs = [each.message for each in found if isinstance(each.message, Log)]
    assert sum(each.left_out or 1 for each in logs) == 30_000


def test_no_object_is_larger_than_its_reader_takes(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    outbox = driven(storage)
    for _ in range(200):
        outbox.put(Log("t", "長" * 4_096))
    write(outbox)
    assert len(received(storage)) == 200
    assert len(numbers_below(storage, "machines/run-m0/reports")) > 1


def test_notices_do_not_wait_for_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training, machine = begun(tmp_path)
    read = list[Printed]()
    monkeypatch.setattr(TrainingRun, "_read_output", lambda _self, line: read.append(line))
    for line in words(1_000):
        machine.on_line(line)
    before = len(read)
    ticks = iter(0.001 * tick for tick in range(10_000))
    monkeypatch.setattr(machine.runtime, "monotonic_s", lambda: next(ticks))
    for line in words(1_000):
        machine.on_line(line)
        if len(read) > before:
            break
    training.tick(0.0, 100.0, 100.0)
    assert len(read) - before <= 50


def test_how_many_lines_were_left_out_is_told(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    outbox = driven(storage)
    for number in range(1_000):
        outbox.put(Log("t", str(number)))
    outbox.put(Log("t", "", 50))
    write(outbox)
    told: list[Message | None] = [each.message for each in received(storage)]
    assert told[-1] == Log("t", "", 850)
    assert len(told) == 201
