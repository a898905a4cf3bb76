"""YAML as hostile or mistaken users write it: each is one line that says what is wrong and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.errors import InputError
from ebbtide.jobs.parsing import read_mapping

ALIASES = "a: &a [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, after in zip("abcdefg", "bcdefgh", strict=True)
)


def read(folder: Path, content: str | bytes) -> dict[str, object]:
    path = folder / "file.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_mapping(path, "job")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (f"steps: {'9' * 5000}", "file.yaml, row 1: '9{40}...' is not a valid int"),
        (f"a: 1\nsteps: 0x{'f' * 5000}", "row 2: '0xf+...' is not a valid int"),
        ("a: 2024-13-45", "row 1: '2024-13-45' is not a valid date"),
        ("a: 2024-01-01 00:00:00+99:00", "is not a valid date"),
        ("a: !!bool perhaps", "'perhaps' is not a valid bool"),
        ("a: !!timestamp soon", "'soon' is not a valid date"),
        ("[" * 10_000, "row 1: nests more than 50 levels deep"),
        ("a: " + "{a: " * 10_000, "nests more than 50 levels deep"),
        (f"a: [{'0, ' * 200_000}]", "holds more than 100,000 values"),
        (ALIASES, "holds more than 100,000 values"),
        ("a: &a [*a]", "row 1: the alias \\*a stands inside what it names"),
        ("a: 1\nb: 2\na: 3", "row 3: the key 'a' stands twice in one mapping"),
        ("a:\n  b: 1\n  b: 2", "row 3: the key 'b' stands twice in one mapping"),
        ("on: 1", "row 1: the key 'on' is not text; put it in quotes"),
        ("? [1, 2]\n: 3", "the key of several values is not text"),
        ("1: 2", "field 1: the key 1 is not text"),
        ("a: !!python/object/apply:os.system [ls]", "is not YAML: could not determine a constructor"),
        ("a: [", "row 1: is not YAML"),
        ("a: 1\n---\nb: 2", "is not YAML: but found another document"),
        ("a: \x01", "is not YAML: unacceptable character"),
        ("", "holds no job"),
        (b"a: caf\xe9", "is not UTF-8 text \\(byte 0xe9 in line 1\\); save it as UTF-8"),
        (b"a: 1\nb: \0", "is not text: line 2 holds a NUL byte"),
        (b"a: " + b"0" * (5 << 20), "is larger than 4 MiB"),
    ],
    ids=range(24),
)
def test_what_is_wrong_with_yaml_is_told_in_one_line(tmp_path: Path, content: str | bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        read(tmp_path, content)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_key_taken_over_by_a_merge_may_be_given_again(tmp_path: Path) -> None:
    found = read(tmp_path, "x: &x {k: 1, l: 2}\ny:\n  <<: *x\n  k: 3")
    assert found["y"] == {"k": 3, "l": 2}


def test_numbers_are_keys_below_the_first_level_and_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    assert read(tmp_path, "\ufeffspeedup: {table: {2: 1.9}}") == {"speedup": {"table": {2: 1.9}}}
