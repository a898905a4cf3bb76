"""The recording of a session in the README: an animated picture of real output."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from docs.recording import FILE, SESSION, Line, drawn, output, wrapped

_TEXT = "{http://www.w3.org/2000/svg}text"


def test_each_line_appears_at_its_time_and_the_newest_is_the_lowest() -> None:
    lines = [Line("$ a < b", 0.5, is_command=True), Line("one", 1.0), Line("two", 1.0), Line("three", 4.0)]
    picture = ElementTree.fromstring(drawn(lines))
    assert [text.text for text in picture.iter(_TEXT)] == ["$ a < b", "one", "two", "three"]
    # Ten seconds in all: the last line stays for six. Lines of one moment appear together.
    moves = re.findall(r"([\d.]+)%{transform:translateY\((-?\d+)px\)}", drawn(lines))
    assert moves == [("0", "442"), ("5.00", "425"), ("10.00", "391"), ("40.00", "374")]


def test_long_lines_are_cut_between_words() -> None:
    assert wrapped("x" * 60 + " " + "y" * 60) == ["x" * 60 + " ", "y" * 60]
    assert wrapped("") == [""]


@pytest.mark.usefixtures("processes")
def test_a_command_that_fails_makes_no_recording(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SystemExit, match="ls nowhere ended with exit code"):
        list(output("ls nowhere", tmp_path))
    assert [text for text, _ in output("echo hello", tmp_path)] == ["hello"]


def test_the_recording_is_of_the_session() -> None:
    texts = [text.text or "" for text in ElementTree.fromstring(FILE.read_text()).iter(_TEXT)]
    assert [text.removeprefix("$ ") for text in texts if text.startswith("$ ")] == list(SESSION)
    assert "finished" in texts
