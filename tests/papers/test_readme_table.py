"""Pages and the README's table, from what `ebbtide reproduce` wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.errors import InputError
from ebbtide_papers.readme_table import BEGINS, ENDS, read_reproductions, update_readme, write_pages
from ebbtide_papers.reproduction import Reproduction, Row, at_least, at_most

FOUND = Reproduction(
    "exosphere",
    {"prices.parquet": "ab" * 32},
    7,
    (
        Row(
            "saving_vs_on_demand", "saved against on demand", 0.8, 0.8784, "fraction", at_least(0.7), "above | 0.8"
        ),
        Row("other", "another", None, 2.0, "ratio", at_most(1.0), "other prices", fitted=True),
        Row("third", "a third", None, None, "ratio", at_most(1.0), "", "the prices are too short"),
    ),
    {},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    FOUND.write(tmp_path / "in" / "exosphere.json")
    return tmp_path / "in"


def test_a_page_has_every_claim_and_what_it_was_made_from(folder: Path, tmp_path: Path) -> None:
    (page,) = write_pages(folder, tmp_path / "out")
    assert page == tmp_path / "out" / "exosphere.md"
    text = page.read_text()
    assert "1 of 3, 1 could not be worked out here." in text
    assert "| saved against on demand | 0.8 | 0.878 | fraction | at least 0.7 | yes | above / 0.8 |" in text
    assert "| another (fitted) | - | 2 | ratio | at most 1 | **no** | other prices |" in text
    assert "| a third | - | - | ratio | at most 1 | not worked out | the prices are too short |" in text
    assert f"`prices.parquet`, SHA-256 {'ab' * 32}" in text


def test_the_readme_s_table_is_put_between_its_marks_and_again_changes_nothing(
    folder: Path, tmp_path: Path
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGINS}\nstale\n{ENDS}\nafter\n")
    update_readme(readme, read_reproductions(folder))
    once = readme.read_text()
    assert once.startswith(f"before\n{BEGINS}\n| system |")
    assert (
        "| exosphere | 1 of 3, 1 could not be worked out here | saved against on demand | 0.8 | 0.878 |\n" in once
    )
    assert "stale" not in once
    assert once.endswith(f"{ENDS}\nafter\n")
    update_readme(readme, read_reproductions(folder))
    assert readme.read_text() == once


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("nothing")
    with pytest.raises(InputError, match="results: begin"):
        update_readme(readme, [])
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(InputError, match=r"bad\.json.*ebbtide reproduce --json"):
        read_reproductions(tmp_path)
    assert read_reproductions(tmp_path / "none") == []
