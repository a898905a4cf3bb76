"""A function that is sent does on a machine what it does in the notebook, whatever was changed since; or is refused."""

from __future__ import annotations

import linecache
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from tests.runs.notebooks import Notebook

import ebbtide as eb
from ebbtide.runs.function_source import program_text


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    before = dict(linecache.cache)
    yield Notebook()
    linecache.cache.clear()
    linecache.cache.update(before)


def on_a_machine(text: str) -> Any:
    """What `fit` returns in a process that has its program file alone."""
    module: Any = ModuleType("fit_program")
    sys.modules["fit_program"] = module
    try:
        exec(compile(text, "fit_program.py", "exec"), module.__dict__)
        return module.fit()
    finally:
        del sys.modules["fit_program"]


# A cell with a base class, and what else may be in one.
REBUILT = (
    "from abc import ABC\nfrom dataclasses import dataclass\nfrom enum import Enum\nclass Mode(Enum):\n    X = 1\n"
    "@dataclass\nclass A(ABC):\n    n: int = 3\n    @property\n    def f(self): return self.n\n"
)

# A decorator, but for what the result is multiplied by.
WRAPS = "from functools import wraps\ndef by(f):\n    @wraps(f)\n    def g(): return f() "


LATER = {
    "a default of a name": ("N = 1\n", "def fit(x=N): return x\n", "N = 5\n"),
    "a default that is computed": ("N = 1\n", "def fit(x=N * 2 + 1): return x\n", "N = 5\n"),
    "a default by keyword": ("N = 1\n", "def fit(*, a=0, x=N): return a, x\n", "N = 5\n"),
    "a default of None": ("N = None\n", "def fit(x=N): return x\n", "N = 5\n"),
    "a text over several lines": (
        "T = 'a\"b\\n'\n",
        "def fit(x=T, y=(\n    T,\n    1,\n)): return x, y\n",
        "T = 'z'\n",
    ),
    "defaults that were set": ("", "def fit(x=1, y=2): return x, y\n", "fit.__defaults__ = (3, 4)\n"),
    "a default that was filled": ("", "def fit(x=[]):\n    x.append(1)\n    return x\n", "fit()\n"),
    "a default of a helper": (
        "N = 1\n",
        "def helper(x=N): return x\ndef fit(): return helper()\n",
        "N = 5\n",
    ),
    "an attribute of a function": ("", "def fit(): return fit.scale\n", "fit.scale = 3\n"),
    "a class attribute": ("class A:\n    n = 1\n", "def fit(): return A.n\n", "A.n = 5\n"),
    "a new class attribute": ("class A:\n    n = 1\n", "def fit(): return A.m\n", "A.m = [5]\n"),
    "a class attribute of a name": ("N = 1\nclass A:\n    n = N\n", "def fit(): return A.n\n", "N = 5\n"),
    "a default of a method": (
        "N = 1\nclass A:\n    def f(self, x=N): return x\n",
        "def fit(): return A().f()\n",
        "N = 5\n",
    ),
    "a default of a static method": (
        "N = 1\nclass A:\n    @staticmethod\n    def f(x=N): return x\n",
        "def fit(): return A.f()\n",
        "N = 5\n",
    ),
    "a field of a dataclass": (
        "from dataclasses import dataclass\nN = 1\n@dataclass\nclass A:\n    n: int = N\n    m: int = 2\n",
        "def fit(): return A().n, A().m, A.m\n",
        "N = 5\nA.m = 9\n",
    ),
    "two names of a list": ("A = []\nB = A\n", "def fit():\n    A.append(1)\n    return len(B)\n", ""),
    "a default that is a list of all": ("A = []\n", "def fit(x=A):\n    A.append(1)\n    return len(x)\n", ""),
    "a base that is defined again as before": (
        "class A:\n    def f(self): return 3\n",
        "class B(A):\n    pass\n",
        "class A:\n    def f(self): return 3\n",
        "def fit(): return B().f()\n",
    ),
    "a base, a decorator and a table that were changed, and all that was made with them made again": (
        "class A:\n    def f(self): return 1\n",
        "def act(): return 1\n",
        f"{WRAPS}* 2\n    return g\n",
        "class B(A):\n    table = {'act': act}\n",
        "@by\ndef helper(): return 1\n",
        "class A:\n    def f(self): return 2\n",
        "def act(): return -1\n",
        f"{WRAPS}* 100\n    return g\n",
        "class B(A):\n    table = {'act': act}\n",
        "@by\ndef helper(): return 1\n",
        "def fit(): return B().f(), B.table['act'](), helper()\n",
    ),
    "decorators that are no plain functions": (
        "from functools import wraps\nclass Retry:\n    def __init__(self, n): self.n = n\n"
        "    def __call__(self, f):\n        @wraps(f)\n        def inner(): return f() * self.n\n        return inner\n",
        "class U:\n    @staticmethod\n    def timed(f):\n        @wraps(f)\n        def inner(): return f() + 1\n"
        "        return inner\n",
        "def _wrap(f, n):\n    @wraps(f)\n    def inner(): return f() - n\n    return inner\n"
        "def less(n):\n    def deco(f): return _wrap(f, n)\n    return deco\n",
        "@Retry(3)\ndef one(): return 1\n@U.timed\ndef two(): return 2\n@less(5)\ndef three(): return 3\n",
        "def fit(): return one(), two(), three()\n",
    ),
    "a cell that is run again, with a comment more": (
        f"{WRAPS}* 2\n    return g\n",
        REBUILT,
        "class B(A):\n    modes = Mode\n@by\ndef helper(): return 1\n",
        f"# A comment.\n{WRAPS}* 2\n    return g\n",
        f"# A comment.\n{REBUILT}",
        "def fit(): return B().f, B.modes.X.value, B().n, helper()\n",
    ),
    "containers that hold themselves": (
        "class A:\n    me = {}\nA.me['me'] = A.me\nA.own = A\n",
        "class B(A):\n    n = 3\n",
        "class A:\n    me = {}\nA.me['me'] = A.me\nA.own = A\n",
        "def fit(): return B.n\n",
    ),
    "a name in text": ("Z = 7\n", "def fit(): return eval('Z + 1')\n", ""),
    "a function in text": ("def helper(): return 4\n", "def fit(): return eval(' helper()')\n", ""),
    "a name of globals": ("Z = 7\n", "def fit(): return globals()['Z']\n", ""),
    "a local name in text": ("Z = 7\n", "def fit():\n    Z = 2\n    return eval('Z')\n", "del Z\n"),
}


@pytest.mark.parametrize("cells", LATER.values(), ids=LATER.keys())
def test_it_does_on_a_machine_what_it_does_here(notebook: Notebook, cells: tuple[str, ...]) -> None:
    for cell in cells:
        notebook.cell(cell)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = program_text(notebook["fit"])
    assert on_a_machine(text) == notebook["fit"]()


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        (
            ("def fit(x=1, y=2): return x\n", "fit.__defaults__ = (3,)\n"),
            r"the defaults of fit \(x\) were changed",
        ),
        (("def fit(x=1): return x\n", "fit.__defaults__ = (object(),)\n"), "the default of x of fit is a object"),
        (
            ("N = 1\ndef make(n): return {n}\n", "def fit(x=make(N)): return x\n", "N = 5\n"),
            "the default of x of fit was made at its definition, from a value that was set more than once",
        ),
        (
            (
                "import functools\nN = 1\n",
                "@functools.lru_cache(N)\ndef helper(): return 1\ndef fit(): return helper()\n",
                "N = 5\n",
            ),
            "a decorator of helper uses a value that was set more than once",
        ),
        (
            (
                "class A:\n    def f(self): return 1\n",
                "class B(A):\n    pass\n",
                "class A:\n    def f(self): return 2\n",
                "def fit(): return B().f()\n",
            ),
            "class B was made with an earlier A, which has been defined again since: define class B again",
        ),
        (
            (
                "def act(): return 1\n",
                "class A:\n    table = {'act': act}\n    f = staticmethod(act)\n",
                "def act(): return -1\n",
                "def fit(): return A.f()\n",
            ),
            "A.table was made with an earlier act, which has been defined again since",
        ),
        (
            (
                f"{WRAPS}* 2\n    return g\n",
                "@by\ndef helper(): return 1\n",
                f"{WRAPS}* 100\n    return g\n",
                "def fit(): return helper()\n",
            ),
            "a decorator of helper has been defined again since: define helper again",
        ),
        (("def fit(): return fit.model\n", "fit.model = object()\n"), "fit.model was set to a object"),
        (
            ("class A:\n    pass\n", "def fit(): return A().f()\n", "def f(self): return 1\nA.f = f\n"),
            "A.f was set after its class was defined",
        ),
        (
            (
                "class A:\n    def f(self): return 1\n",
                "def fit(): return A().f()\n",
                "def g(self): return 2\nA.f = g\n",
            ),
            "A.f was set after its class was defined",
        ),
        (
            ("class A:\n    pass\nx = A\n", "def fit(x=A): return x\n", "class A:\n    n = 1\n"),
            "the default of x of fit is a type",
        ),
        (("A = [0]\nB = {'a': A}\n", "def fit(): return A, B\n"), "shares a list with `A`"),
        (("row = [0]\nM = [row, row]\n", "def fit(): return M\n"), "shares a list with `M`"),
        (("A = []\nA.append(A)\n", "def fit(): return A\n"), "fit uses `A`, a list, which is not sent"),
    ],
)
def test_what_would_differ_there_and_cannot_be_written_is_refused(
    notebook: Notebook, cells: tuple[str, ...], why: str
) -> None:
    for cell in cells:
        notebook.cell(cell)
    with pytest.raises(eb.InputError, match=why):
        program_text(notebook["fit"])


@pytest.mark.parametrize("made", ["eval(text)", "exec(text)", "globals()[text]", "globals().get(text)"])
def test_names_that_only_a_running_program_makes_are_warned_of(notebook: Notebook, made: str) -> None:
    notebook.cell(f"def fit(text): return {made}\n")
    with pytest.warns(UserWarning, match="fit calls `(eval|exec|globals\\(\\))` on what is made while it runs"):
        program_text(notebook["fit"])


def test_what_is_not_changed_stays_as_it_was_written(notebook: Notebook) -> None:
    notebook.cell("import math\nN = 3\n")
    cell = "def fit(x=N, y=N * 2, z=-math.inf, *, device=math.floor, w=None, **more):\n    return x\n"
    notebook.cell(cell)
    assert program_text(notebook["fit"]).endswith(cell)
