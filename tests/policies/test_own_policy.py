"""Policies of one's own, by file or module: what is loaded, and what each mistake is told as."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.errors import InputError
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.own_policy import load_policy
from ebbtide.policies.registry import policies, policy

GOOD = """
from ebbtide.policies.baselines import Reactive

class Mine:
    name = "mine"
    wakes_on = frozenset()
    def decide(self, view):
        yield from Reactive().decide(view)

ready = Reactive(max_price_ratio=0.5, name="ready")

def given():
    return Reactive(name="given")

class Parts:
    Inner = Mine

NUMBER = 3

class Costly(Mine):
    def __init__(self, budget_usd, hours=2):
        self.budget_usd = budget_usd

class Nothing:
    pass

class Bare:
    def decide(self, view):
        return []

class Unnamed(Mine):
    name = None

class Woken(Mine):
    wakes_on = {"price"}

class Broken(Mine):
    def __init__(self):
        raise RuntimeError("no such model")
"""

RAISES = next(line for line, text in enumerate(GOOD.splitlines(), start=1) if "raise" in text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a policy file in it; what is imported from it is forgotten."""
    (tmp_path / "my_policy.py").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("my_policy.py:Mine", "mine"),
        ("./my_policy.py:Mine", "mine"),
        ("my_policy:Mine", "mine"),
        ("my_policy.py:ready", "ready"),
        ("my_policy.py:given", "given"),
        ("my_policy.py:Parts.Inner", "mine"),
        ("ebbtide.policies.baselines:Reactive", "reactive"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_classes_instances_and_functions_are_found(text: str, name: str) -> None:
    found = policy(text)
    assert isinstance(found, Policy)
    assert found.name == name


def test_an_absolute_path_and_names_of_ours_go_together(folder: Path) -> None:
    chosen = policies(f"{folder / 'my_policy.py'}:Mine,on-demand")
    assert [each.name for each in chosen] == ["mine", "on-demand"]


def test_a_file_is_imported_once(folder: Path) -> None:
    assert type(load_policy("my_policy.py:Mine")) is type(load_policy(f"{folder}/my_policy.py:Mine"))


def test_what_lies_beside_a_file_can_be_imported_by_it(folder: Path) -> None:
    inside = folder / "deep"
    inside.mkdir()
    (inside / "rule_of_mine.py").write_text("from ebbtide.policies.baselines import Reactive as Rule\n")
    (inside / "policy.py").write_text("from rule_of_mine import Rule\n")
    assert load_policy("deep/policy.py:Rule").name == "reactive"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("other.py:Mine", r"^other\.py: no such file"),
        ("no_such_module:Mine", "no module 'no_such_module' to import.*no_such_module.py:NAME"),
        (
            "my_policy.py:Mien",
            r"my_policy\.py has no 'Mien' \(did you mean 'Mine'\?\); policies there: Mine, ready",
        ),
        ("my_policy.py", r"name the policy in my_policy\.py, as in my_policy\.py:Mine"),
        ("my_policy.py:", "name the policy in my_policy.py"),
        ("my_policy.py:NUMBER", "is an int, not a policy"),
        ("my_policy.py:Costly", r"class my_policy\.py:Costly needs arguments \(budget_usd\)"),
        ("my_policy.py:Nothing", "has no `decide`"),
        ("my_policy.py:Bare", "no `name`.*no `wakes_on`"),
        ("my_policy.py:Unnamed", "`name` is None"),
        ("my_policy.py:Woken", "`wakes_on` is {'price'}"),
        ("my_policy.py:Broken", rf"my_policy\.py: line {RAISES}: RuntimeError: no such model"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_mistakes_are_told_by_name(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        policy(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("x = 1\ny = x / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("x = 1\n\ndef f(:\n", "line 3: SyntaxError: "),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("import nothing_of_the_kind\n", "line 1: ModuleNotFoundError: No module named 'nothing_of_the_kind'"),
        ("import json\nprint(2)\njson.loads('{')\n", "line 3: JSONDecodeError"),
    ],
)
@pytest.mark.parametrize("way", ["wrong.py:Mine", "wrong:Mine"])
def test_a_file_that_cannot_be_imported_is_told_with_its_line(
    folder: Path, code: str, told: str, way: str
) -> None:
    (folder / "wrong.py").write_text(code)
    with pytest.raises(InputError, match=told) as caught:
        policy(way)
    assert (caught.value.file or "").endswith("wrong.py")
    # Mended, it is imported anew.
    (folder / "wrong.py").write_text(GOOD)
    assert policy("wrong.py:Mine").name == "mine"
