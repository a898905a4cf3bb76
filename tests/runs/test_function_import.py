"""A function that machines import is refused where it is not there what it is here."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType

import pytest

import ebbtide as eb
from ebbtide.runs.function_import import check_as_imported


def imported(folder: Path, text: str, name: str = "program") -> ModuleType:
    """A file that was run under a name: `__main__` for a script."""
    file = folder / "program.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOUND = """
import math
N = 1
REGISTRY = []
COUNT = 0

def known(function):
    REGISTRY.append(function)
    return function

@known
def helper(x=N, y=2):
    return math.sqrt(x) + len(REGISTRY) + y + int(x.OTHER if x is None else 0)

def fit(lr=0.1, *, n=None):
    return helper() + lr + N

if __name__ == "__main__":
    OTHER = 3
    print(OTHER)
"""


def test_what_is_as_its_file_gives_it_passes(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_as_imported(imported(tmp_path, SOUND).fit)
        check_as_imported(imported(tmp_path, SOUND, "__main__").fit)


def test_a_constant_or_a_default_that_was_changed_since_is_refused(tmp_path: Path) -> None:
    module = imported(tmp_path, SOUND)
    module.N = 5  # type: ignore[attr-defined]
    with pytest.raises(eb.InputError, match="fit uses N, which is 5 here and 1 in the file that machines import"):
        check_as_imported(module.fit)
    for changed in ((1, 3), (2,)):
        module = imported(tmp_path, SOUND)
        module.helper.__defaults__ = changed
        with pytest.raises(eb.InputError, match="the default of [xy] of helper was changed after its definition"):
            check_as_imported(module.fit)


def test_what_is_set_only_where_a_script_is_run_is_refused(tmp_path: Path) -> None:
    text = "def fit():\n    return N\n\nif __name__ == '__main__':\n    N = 3\n"
    with pytest.raises(eb.InputError, match="fit uses N, which is set only where this script is run"):
        check_as_imported(imported(tmp_path, text, "__main__").fit)
    again = "N = 1\n\n" + text
    with pytest.raises(eb.InputError, match="fit uses N, which is 3 here and 1 in the file"):
        check_as_imported(imported(tmp_path, again, "__main__").fit)


def test_what_a_function_set_is_warned_of(tmp_path: Path) -> None:
    module = imported(tmp_path, "N = 1\ndef init():\n    global N\n    N = 4\ndef fit(): return N\n")
    module.init()
    with pytest.warns(UserWarning, match="fit uses N, which is 4 here and 1 in the file"):
        check_as_imported(module.fit)
