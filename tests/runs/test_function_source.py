"""The program file of a notebook's function: what it holds, and what is refused."""

from __future__ import annotations
import __future__

import functools
import linecache
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.runs.notebooks import Notebook

import ebbtide as eb
from ebbtide.agent.code_files import is_like_secret
from ebbtide.runs.function_source import program_text
from ebbtide.runs.function_state import is_plain


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    before = dict(linecache.cache)
    yield Notebook()
    linecache.cache.clear()
    linecache.cache.update(before)


def test_all_that_it_uses_comes_with_it_and_nothing_else(notebook: Notebook) -> None:
    notebook.cell("import math\nimport numpy as np\nimport os\nfrom collections import deque as queue, Counter\n")
    notebook.cell("RATE = 0.5\nUNUSED = 1\nLAYERS = [3, 4]\nSETTINGS = {'a': (1, None), 2: True}\n")
    notebook.cell(
        """
        class Model:
            width = LAYERS[0]

            def value(self):
                return np.float64(RATE)


        def helper(value):
            return math.sqrt(value) + other()
        """
    )
    notebook.cell("def other():\n    return len(queue([1]))\n")
    notebook.cell(
        """
        def fit(lr, model=Model, *, name="x"):
            \"\"\"Fits.\"\"\"

            def inner():
                return helper(lr)

            LOCAL = 3
            return inner() + model().value() + SETTINGS["a"][0] + LOCAL + sum(Missing for Missing in [])
        """
    )
    text = program_text(notebook["fit"])
    assert (
        text
        == '''"""Written by Ebbtide: fit, with what it uses."""

import math
import numpy as np
from collections import deque as queue

LAYERS = [3, 4]
RATE = 0.5
SETTINGS = {'a': (1, None), 2: True}


class Model:
    width = LAYERS[0]

    def value(self):
        return np.float64(RATE)


def other():
    return len(queue([1]))


def helper(value):
    return math.sqrt(value) + other()


def fit(lr, model=Model, *, name="x"):
    """Fits."""

    def inner():
        return helper(lr)

    LOCAL = 3
    return inner() + model().value() + SETTINGS["a"][0] + LOCAL + sum(Missing for Missing in [])
'''
    )
    program: dict[str, Any] = {"__name__": "program"}
    exec(compile(text, "program.py", "exec"), program)
    assert program["fit"](9.0) == notebook["fit"](9.0) == 3.0 + 1 + 0.5 + 1 + 3


def test_the_decorator_that_trains_is_left_out_and_others_stay(notebook: Notebook) -> None:
    notebook.cell("import functools\nimport ebbtide as eb\nfrom ebbtide import train as trains\n")
    notebook.cell(
        """
        @eb.train(
            metric="loss",
        )
        @functools.lru_cache
        def fit(lr): return lr

        @trains
        def bare(lr):
            return fit(lr) + bare.__wrapped__(lr)
        """
    )
    assert notebook["fit"](2) == 2
    text = program_text(notebook["bare"].function, eb.train)
    assert text.partition("\n\n")[2] == (
        "import functools\n\n\n@functools.lru_cache\ndef fit(lr): return lr\n\n\n"
        "def bare(lr):\n    return fit(lr) + bare.__wrapped__(lr)\n"
    )


def test_another_name_of_a_function_is_kept(notebook: Notebook) -> None:
    notebook.cell("def one(): return 1\nsame = one\ndef fit(): return same()\n")
    assert program_text(notebook["fit"]).endswith(
        "def one(): return 1\n\n\nsame = one\n\n\ndef fit(): return same()\n"
    )


def test_what_was_defined_again_counts_as_it_is_now(notebook: Notebook) -> None:
    notebook.cell("def helper(): return 1\n")
    notebook.cell("def fit(): return helper() + K\n")
    notebook.cell("def helper(): return 2\nK = 5\n")
    text = program_text(notebook["fit"])
    assert "return 2" in text
    assert "return 1" not in text
    # The older one is still held by another name.
    notebook.cell("first = helper\n")
    notebook.cell("def helper(): return first()\ndef fit(): return helper()\n")
    with pytest.raises(eb.InputError, match="helper was defined again, and both are used"):
        program_text(notebook["fit"])


def test_submodules_are_imported_where_they_are_used(notebook: Notebook) -> None:
    notebook.cell("import xml.etree.ElementTree\nimport os\n")
    notebook.cell("def fit():\n    return xml.etree.ElementTree.Element('a'), os.path.sep\n")
    lines = ["import os", "import os.path", "import xml", "import xml.etree", "import xml.etree.ElementTree"]
    assert "\n\n" + "\n".join(lines) + "\n\n" in program_text(notebook["fit"])


def test_what_was_imported_otherwise_is_found(notebook: Notebook) -> None:
    notebook.space |= {"np": np, "Wraps": functools.partial, "wraps": functools.wraps, "add": np.add}
    notebook.cell("def fit():\n    return np.pi, Wraps(wraps, add)\n")
    text = program_text(notebook["fit"])
    assert "import numpy as np\n" in text
    assert "from functools import partial as Wraps\n" in text
    assert "from functools import wraps\n" in text


def test_a_future_import_of_annotations_is_kept(notebook: Notebook) -> None:
    notebook.cell("def fit(lr: float) -> None: pass\n", flags=__future__.annotations.compiler_flag)
    assert "\n\nfrom __future__ import annotations\n\n" in program_text(notebook["fit"])


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        (
            "model = object()\ndef fit(): return model",
            r"fit uses `model`, a object, which is not sent to machines",
        ),
        ("import numpy as np\nrows = np.ones(3)\ndef fit(): return rows", "fit uses `rows`, a numpy ndarray"),
        ("RATE = float('nan')\ndef fit(): return RATE", "fit uses `RATE`, a float"),
        ("def helper(): return rows\nrows = {1}\ndef fit(): return helper()", "helper uses `rows`, a set"),
        (
            "rows = ['x' * 90] * 2000\ndef fit(): return rows",
            r"`rows`, a list of \d\d\d,\d+ characters, which is data",
        ),
        ("def fit(): return missing", "fit uses `missing`, which is not defined"),
        ("square = lambda x: x\ndef fit(): return square(2)", "a lambda has no name"),
        ("fit = lambda: 1", "a lambda has no name"),
        (
            "def outer(n):\n    def fit(): return n\n    return fit\nfit = outer(1)",
            "fit uses n of the function around",
        ),
        (
            "def outer():\n    def fit(): return 1\n    return fit\nfit = outer()",
            "is within another function or class",
        ),
        ("class A:\n    def go(self): pass\nfit = A().go", "A.go is a method, and its object is not sent"),
        ("async def fit(): pass", "only makes a coroutine"),
        ("def fit(): yield 1", "only makes a coroutine or generator"),
        ("fit = print", "what trains is a function, written with `def`; this is a builtin_function_or_method"),
        ("def get_ipython(): pass\nget_ipython.__module__ = 'x'\ndef fit(): get_ipython()", "only notebooks have"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(notebook: Notebook, cell: str, why: str) -> None:
    notebook.cell(cell)
    with pytest.raises(eb.InputError, match=why):
        program_text(notebook["fit"])


def test_a_class_whose_source_is_not_sure_is_refused(notebook: Notebook) -> None:
    notebook.cell("class Options:\n    lr = 1\n")
    notebook.cell("def fit(): return Options.lr\n")
    assert "lr = 1" in program_text(notebook["fit"])
    notebook.cell("class Options:\n    lr = 2\n")
    with pytest.raises(eb.InputError, match="class Options has several sources"):
        program_text(notebook["fit"])


def test_a_function_without_source_is_refused() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("def fit(): pass", space)
    with pytest.raises(eb.InputError, match=r"the source of fit is not known \(<string>\)"):
        program_text(space["fit"])


def test_plain_constants_are_exactly_those() -> None:
    assert all(map(is_plain, (None, True, 1, 0.5, "a", [1, [2]], {"a": (1,)}, {1: 2})))
    assert not any(map(is_plain, (math.inf, b"a", {1}, np.float64(1), {(1,): 2}, [object()], np.int64(1))))


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (("def fit(lr, *, api_key=os.environ['KEY']): return lr\n",), "the default of api_key of fit"),
        (("def fit(lr, api_key=os.environ['KEY']): return lr\n",), "the default of api_key of fit"),
        (("def fit(lr): return lr\n", "fit.token = os.environ['KEY']\n"), "fit.token"),
        (("class C:\n    token = os.environ['KEY']\n", "def fit(lr): return C.token\n"), "C.token"),
        (("TOKEN = os.environ['KEY']\n", "def fit(lr): return TOKEN\n"), "`TOKEN`, which fit uses,"),
    ],
)
def test_a_secret_that_would_be_written_into_the_source_is_warned_of(
    cells: tuple[str, ...],
    told: str,
    notebook: Notebook,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("KEY", "sk-abcdefghijklmnopqrstuvwxyz0123")
    notebook.cell("import os\n")
    for cell in cells:
        notebook.cell(cell)
    assert "sk-abcdefghijklmnopqrstuvwxyz0123" in program_text(notebook["fit"])
    assert f"{told} may be a secret, and is sent in plain text with the code" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKEN", "0123456789"),
        ("X", "hf_abcdefghijkl"),
        ("CONF", {"db": {"password": "hunter22"}}),
        ("awsAccessKey", "AKIA0123456789ABCDEF"),
        ("KEYS", ["-----BEGIN RSA PRIVATE KEY-----"]),
        ("HEADERS", {"Authorization": "Bearer sk-abcdefghijklmnopqrst"}),
        ("URL", "postgresql://me:hunter2hunter2@host/db"),
    ],
)
def test_what_looks_like_a_secret(name: str, value: object) -> None:
    assert is_like_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENS", 3),
        ("eos_token", "<|endoftext|>"),
        ("tokenizer", "bert-base-uncased"),
        ("SECRETARY", "Ann Smith"),
        ("URL", "postgresql://me@host/db"),
    ],
)
def test_what_is_none(name: str, value: object) -> None:
    assert not is_like_secret(name, value)
