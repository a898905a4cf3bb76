"""Pages and tables of claims, from what `ebbtide reproduce` wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.errors import InputError
from ebbtide_papers.readme_table import (
    BEGINS,
    CLAIMS_BEGIN,
    CLAIMS_END,
    ENDS,
    PAPERS_BEGIN,
    PAPERS_END,
    USES,
    all_claims,
    read_reproductions,
    update_tables,
)
from ebbtide_papers.reproduction import ClaimRow, Reproduction, at_least, at_most

FOUND = Reproduction(
    "exosphere",
    {"prices.parquet": "ab" * 32},
    7,
    (
        ClaimRow(
            "saving_vs_on_demand", "saved against on demand", 0.8, 0.8784, "fraction", at_least(0.7), "above | 0.8"
        ),
        ClaimRow("other", "another", None, 2.0, "ratio", at_most(1.0), "other prices", fitted=True),
        ClaimRow("third", "a third", None, None, "ratio", at_most(1.0), "", "the prices are too short"),
    ),
    {},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    FOUND.write(tmp_path / "in" / "exosphere.json")
    return tmp_path / "in"


def test_tables_are_put_between_their_marks_and_again_changes_nothing(folder: Path, tmp_path: Path) -> None:
    readme, claims = tmp_path / "README.md", tmp_path / "claims.md"
    readme.write_text(f"before\n{PAPERS_BEGIN}\nstale\n{PAPERS_END}\nafter\n")
    claims.write_text(f"before\n{BEGINS}\nstale\n{ENDS}\nbetween\n{CLAIMS_BEGIN}\nstale\n{CLAIMS_END}\nafter\n")
    update_tables(readme, claims, read_reproductions(folder))
    face, once = readme.read_text(), claims.read_text()
    assert face.startswith(f"before\n{PAPERS_BEGIN}\n| paper |")
    assert face.endswith(f"{PAPERS_END}\nafter\n")
    papers = face.splitlines()[4:-2]
    assert len(papers) == len(USES)
    assert [row for row in papers if "1 of 3, 1 could not be worked out here" in row] == [papers[4]]
    assert papers[0].endswith("| not reproduced |")
    assert once.startswith(f"before\n{BEGINS}\n| system |")
    assert (
        "| exosphere | 1 of 3, 1 could not be worked out here | saved against on demand | 0.8 | 0.878 |\n" in once
    )
    assert "stale" not in face + once
    assert f"{ENDS}\nbetween\n{CLAIMS_BEGIN}\n| system | claim | paper | ours |" in once
    assert once.endswith(f"{CLAIMS_END}\nafter\n")
    update_tables(readme, claims, read_reproductions(folder))
    assert (readme.read_text(), claims.read_text()) == (face, once)


def test_all_claims_name_those_that_fail_and_those_without_a_figure(folder: Path) -> None:
    lines = all_claims(read_reproductions(folder)).splitlines()
    assert "| exosphere | saved against on demand | 0.8 | 0.878 | at least 0.7 | yes |" in lines
    assert "| exosphere | another (fitted) | - | 2 | at most 1 | **no** |" in lines
    assert "| exosphere | a third | - | - | at most 1 | not worked out |" in lines
    fails = lines[lines.index("These fail:") + 2 :]
    assert fails[0] == "- exosphere, another (fitted): 2 ratio, at most 1; other prices"
    unknown = lines[lines.index("These could not be worked out here:") + 2 :]
    assert unknown[0] == "- exosphere, the prices are too short: a third"
    assert lines[-1] == "Not reproduced here: spottune, dynamic-pricing, deepspotcloud, cumulon, deadlines."


def test_without_reproductions_the_rows_stay_and_a_line_says_what_fills_the_claims(tmp_path: Path) -> None:
    readme, claims = tmp_path / "README.md", tmp_path / "claims.md"
    readme.write_text(f"{PAPERS_BEGIN}\nkept\n{PAPERS_END}\n")
    claims.write_text(f"{BEGINS}\nkept\n{ENDS}\n{CLAIMS_BEGIN}\nstale\n{CLAIMS_END}\n")
    update_tables(readme, claims, [])
    assert readme.read_text() == f"{PAPERS_BEGIN}\nkept\n{PAPERS_END}\n"
    text = claims.read_text()
    assert f"{BEGINS}\nkept\n{ENDS}\n" in text
    assert "data/reproductions --readme README.md --claims docs/papers/claims.md` fills this block." in text
    assert "stale" not in text


def test_a_table_of_an_older_version_has_no_tolerances() -> None:
    row = {"id": "x", "claim": "older", "paper": None, "ours": 1.0, "unit": "ratio", "holds": True, "note": ""}
    assert "| cumulon | older | - | 1 | - | yes |" in all_claims([{"name": "cumulon", "rows": [row]}])


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    readme, claims = tmp_path / "README.md", tmp_path / "claims.md"
    readme.write_text("nothing")
    claims.write_text(f"{BEGINS}\n{ENDS}\n")
    with pytest.raises(InputError, match="papers: begin"):
        update_tables(readme, claims, [])
    readme.write_text(f"{PAPERS_BEGIN}\n{PAPERS_END}\n")
    with pytest.raises(InputError, match="claims: begin"):
        update_tables(readme, claims, [])
    assert claims.read_text() == f"{BEGINS}\n{ENDS}\n"
    claims.write_text("nothing")
    with pytest.raises(InputError, match="results: begin"):
        update_tables(readme, claims, [])
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(InputError, match=r"bad\.json.*ebbtide reproduce --json"):
        read_reproductions(tmp_path)
    assert read_reproductions(tmp_path / "none") == []
