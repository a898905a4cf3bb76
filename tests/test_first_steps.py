"""The runner of the documentation's blocks: what it takes for one, and what it makes of each."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.first_steps import ROOT, Block, blocks_of, pages, run, summary

pytestmark = pytest.mark.usefixtures("processes")

PAGE = """Text

```sh
true
```

<!-- needs: an AWS account -->
```sh
false
```

<!-- interrupt after: 1.5 s -->

```sh
sleep 60
```

<!-- illustration -->
```python
nothing at all
```

```json
{}
```

```python
print(1)
```
"""


def test_blocks_are_found_in_order_with_what_stands_in_front_of_them() -> None:
    found = blocks_of(PAGE, "page.md")
    assert [(one.line, one.language, one.code, one.needs, one.interrupt_after_s) for one in found] == [
        (4, "sh", "true\n", "", None),
        (9, "sh", "false\n", "an AWS account", None),
        (15, "sh", "sleep 60\n", "", 1.5),
        (28, "python", "print(1)\n", "", None),
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    return tmp_path


def outcome(folder: Path, code: str, language: str = "sh", after_s: float | None = None):
    return run(Block("page.md", 1, language, code, "", after_s), folder, dict(os.environ))


def test_a_block_fails_with_its_first_command_that_does(folder: Path) -> None:
    told = outcome(folder, "echo begun\nfalse\ntouch after\n")
    assert told.failed
    assert told.tail == "begun"
    assert not (folder / "after").exists()


def test_what_a_block_leaves_is_there_for_the_next(folder: Path) -> None:
    assert not outcome(folder, "echo 1 > made\n").failed
    assert not outcome(folder, "assert open('made').read() == '1\\n'\n", "python").failed
    assert outcome(folder, "raise SystemExit(3)\n", "python").exit_code == 3


def test_what_has_no_end_is_interrupted_and_has_to_end_by_that(folder: Path) -> None:
    assert not outcome(folder, "sleep 60\n", after_s=0.5).failed
    assert outcome(folder, "true\n", after_s=60.0).exit_code == 125
    assert outcome(folder, "trap 'exit 4' INT\nsleep 60 & wait\n", after_s=3.0).exit_code == 4


def test_what_is_not_run_is_told(folder: Path) -> None:
    told = [run(Block("a.md", 1, "sh", "false\n", "an account"), folder, {}), outcome(folder, "sleep 0.2\n")]
    found = summary("abc", told)
    assert (found["blocks"], found["run"], found["failed"]) == (2, 1, 0)
    assert found["slowest"] == "page.md:1"


def test_every_page_is_read() -> None:
    written = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert set(pages()) == {"README.md", *written}
    assert pages()[0] == "README.md"
