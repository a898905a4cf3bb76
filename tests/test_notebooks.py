"""The notebooks of the examples: what is committed has no outputs, and runs from its first cell to its last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))

# On two cores each takes less than a minute; a busy machine takes longer.
_LONGEST_S = 900


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def shown(book: Any) -> str:
    """All that its cells show."""
    texts = []
    for cell in book.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            texts += [output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")]
    return "\n".join(texts)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed_is_clean(path: Path) -> None:
    book = read(path)
    nbformat.validate(book)
    assert not shown(book)
    assert {cell.get("execution_count") for cell in book.cells} == {None}
    assert path.name in (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert book.cells[0].source.startswith("# ")


# What each has to show.
SHOWS = {
    "backtest_your_policy": ["patient", "on-demand", "patient: finished"],
    "plan_a_fine_tune": ["finetune-7b: prices of", "least_deadline_h="],
    "run_a_sweep": ["fit uses `time`, which is not defined", "machines were taken", "fit, with what it uses"],
}


@pytest.mark.usefixtures("processes")
@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    book = read(path)
    client = NotebookClient(book, timeout=_LONGEST_S, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    text = shown(book)
    assert [what for what in SHOWS[path.stem] if what not in text] == []
    if path.stem == "run_a_sweep":
        assert " 0 of them taken" not in text
