"""What the documentation says can be done."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path

import pytest
import typer
import yaml

from ebbtide.cli.commands import FORMER
from ebbtide.cli.main import app
from ebbtide.controller.run_state import State
from ebbtide.market.leases import LeaseState
from ebbtide.policies.registry import POLICIES

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "src" / "ebbtide_papers").glob("*/README.md")),
]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    broken = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_and_files_that_are_named_are_there(page: Path) -> None:
    text = page.read_text()
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    asked = set(re.findall(r"(?:^|`|; )ebbtide ([a-z]+)", text, re.MULTILINE))
    # The changelog tells of commands as they were called then.
    assert asked <= set(known) | (set(FORMER) if page.name == "CHANGELOG.md" else set())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`|; )make ([a-z-]+)", text, re.MULTILINE)) <= targets
    for file in re.findall(r"examples/[\w./-]+\.(?:yaml|py)", text):
        assert (ROOT / file).exists(), file


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_modules_that_are_named_are_there(page: Path) -> None:
    roots = (ROOT, ROOT / "src", ROOT / "src" / "ebbtide")
    made = {"reports/", "models/"}  # by the pipeline
    names = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", page.read_text())
    assert [name for name in names if name not in made and not any((root / name).exists() for root in roots)] == []


def test_the_readme_is_short_and_says_what_has_run_on_real_clouds() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    assert len(text.encode()) <= 9_000
    assert "Nothing has run on a real cloud yet." in text


def test_the_table_of_policies_is_whole() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs" / "policies.md").read_text(), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row)]
    assert sorted(listed) == sorted(POLICIES)


@pytest.mark.parametrize(
    ("word", "pages"),
    [
        ("IAM", {"how-to/aws", "how-to/google-cloud", "security", "troubleshooting"}),
        ("quota", {"how-to/aws", "how-to/google-cloud", "troubleshooting"}),
        ("resume", {"how-to/run", "training", "troubleshooting"}),
        ("preemption", {"how-to/google-cloud", "faq", "glossary"}),
    ],
)
def test_a_word_that_users_search_for_is_on_the_pages_that_answer(word: str, pages: set[str]) -> None:
    """Sphinx searches for words by their stem, in any letter case."""
    texts = {page: (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").casefold() for page in pages}
    assert [page for page, text in texts.items() if not re.search(rf"\b{word.casefold()}", text)] == []


def test_messages_in_the_table_of_troubles_are_those_of_the_code() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "ebbtide").rglob("*.py"))
    # Texts over several lines are joined; what is put into them counts as a number.
    whole = re.sub(r"\{[^{}\n]*\}", "0", re.sub(r"[\"']\s*\n\s*f?[\"']", "", source))
    rows = re.findall(r"^\| (.*?) \|", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    named = [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row)]
    of_python = {"can't open file"}
    whole = f"{source}\n{whole}"
    unknown = [one for one in named if one not in whole and re.sub(r"(ec)?\d+", "0", one) not in whole]
    assert set(unknown) == of_python
    assert len(named) > 15


def defined(module: str) -> set[str]:
    """Names that a module defines or imports, without importing it."""
    path = (ROOT / "src").joinpath(*module.split("."))
    file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    if file.with_suffix(".pyi").exists():
        file = file.with_suffix(".pyi")
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_names_that_python_blocks_import_are_there(page: Path) -> None:
    wrong = []
    for code in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ebbtide"):
                known = defined(str(node.module))
                wrong += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in known]
    assert wrong == []


def test_the_source_tree_is_true() -> None:
    (tree,) = re.findall(r"```text\n(src/.*?)```", (ROOT / "docs" / "design.md").read_text(), re.DOTALL)
    named = [ROOT / name for name in re.findall(r"(?<![\w/])(?:\w+/)+", tree)]
    assert [str(folder) for folder in named if not folder.is_dir()] == []
    assert len(tree.splitlines()) == 14
    rooms = {path.parent for path in (ROOT / "src" / "ebbtide").glob("*/__init__.py")}
    assert rooms | {ROOT / "src" / "ebbtide_papers"} <= set(named)


def test_version_and_licence_are_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert (ROOT / "LICENSE").read_text().startswith(f"{project['license']} License")
    assert project["version"] in (ROOT / "CHANGELOG.md").read_text()


def test_the_glossary_has_one_line_for_each_word() -> None:
    lines = [line for line in (ROOT / "docs" / "glossary.md").read_text().splitlines() if line.startswith("| ")]
    words = [line.split(" | ")[0] for line in lines if not line.startswith("| word ")]
    assert len(words) == len(set(words))
    assert all(line.count(" | ") == 1 and line.endswith(". |") for line in lines if not line.startswith("| word "))


def test_every_paper_has_its_page() -> None:
    papers = {path.parent for path in (ROOT / "src" / "ebbtide_papers").glob("*/command.py")}
    assert papers == {page.parent for page in PAGES if page.parent.parent.name == "ebbtide_papers"}


@pytest.mark.parametrize(("section", "states"), [("machine", LeaseState), ("run", State)])
def test_diagrams_have_every_state(section: str, states: type[LeaseState] | type[State]) -> None:
    text = (ROOT / "docs" / "how-runs-work.md").read_text()
    (diagram,) = re.findall(rf"## The life of a {section}\n.*?```mermaid\n(.*?)```", text, re.DOTALL)
    drawn = set(re.findall(r"^ +(\w+) -->", diagram, re.MULTILINE))
    names = dict(re.findall(r'state "([^"]+)" as (\w+)', diagram))
    assert drawn == {names.get(str(state), str(state)) for state in states}


def test_the_policy_of_the_how_to_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "how-to" / "own-policy.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (code,) = [block for block in blocks if "def decide" in block]
    space: dict[str, object] = {"__name__": "how_to"}
    exec(compile(code, "own-policy.md", "exec", dont_inherit=True), space)
    assert "cheapest-now" in capsys.readouterr().out


def test_the_printed_policies_let_a_killed_upload_be_cleared() -> None:
    page = (ROOT / "docs" / "how-to" / "aws.md").read_text(encoding="utf-8")
    (printed,) = (block for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if '"Statement"' in block)
    # The last two statements are those of a machine, and its file has them.
    machines = json.loads(printed)["Statement"][-2:]
    (written,) = re.findall(r"cat > machines\.json <<'END'\n(.*?)^END$", page, re.DOTALL | re.MULTILINE)
    assert json.loads(written)["Statement"] == machines
    objects, bucket = (set(statement["Action"]) for statement in machines)
    assert {"s3:PutObject", "s3:GetObject", "s3:DeleteObject", "s3:AbortMultipartUpload"} == objects
    assert {"s3:ListBucket", "s3:ListBucketMultipartUploads"} == bucket
    assert "lifecycle rule" in page
