"""The documentation as a site: built without a warning, whole, and in need of no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from docs import diagrams, generated, references

import ebbtide as eb
import ebbtide.testing
from ebbtide.cli.commands import VERBS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md"))

# What a browser loads by itself; a link that a reader follows is not.
_LOADED = {
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("link", "href"),
    ("object", "data"),
    ("image", "href"),
    ("use", "href"),
}


def listed() -> set[str]:
    """The pages that some list of pages names."""
    found = {"index"}
    for page in PAGES:
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        folder = Path(page).parent
        for block in re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL):
            names = [line for line in block.splitlines() if line and not line.startswith(":")]
            found |= {os.path.normpath(folder / name) for name in names}
    return found


def test_every_page_is_in_a_list_of_pages() -> None:
    assert sorted(listed()) == PAGES


# Names at the top whose own names are on the pages.
MODULES = {"errors", "policies", "types"}


def test_every_public_name_is_on_a_page_of_the_reference() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md")]
    named = set(re.findall(r"^\.\. (?:auto\w+|py:data):: (\S+)", "\n".join(pages), re.MULTILINE))
    public = {f"ebbtide.{name}" for name in eb.__all__ if name not in MODULES}
    public |= {f"ebbtide.policies.{name}" for name in eb.policies.__all__}
    public |= {f"ebbtide.types.{name}" for name in eb.types.__all__}
    public |= {f"ebbtide.testing.{name}" for name in ebbtide.testing.__all__}
    assert public - named == set()


def test_every_command_and_option_is_in_the_reference() -> None:
    text = "\n".join(generated.commands())
    assert [verb.name for verb in VERBS if f"\n## ebbtide {verb.name}\n" not in f"\n{text}"] == []
    assert "| `--budget` |" in text
    assert "`--help`" not in text


def test_every_field_of_files_is_described() -> None:
    page = (DOCS / "reference" / "files.md").read_text(encoding="utf-8")
    models = re.findall(r"<!-- fields: ([\w.]+) -->", page)
    rows = [row for model in models for row in [*generated.fields(generated.named(model))][2:]]
    assert len(models) > 15
    assert [row for row in rows if row.endswith("|  |")] == []
    assert any(row.startswith("| `budget_usd` |") for row in rows)


class Loads(HTMLParser):
    """Collects what a page loads, and its ids."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids.add(values.get("id") or "")
        # A canonical address or a licence is told, not loaded.
        if tag == "link" and values.get("rel") not in ("stylesheet", "icon", "preload", "prefetch"):
            return
        self.addresses += [value or "" for name, value in attrs if (tag, name) in _LOADED]


def loads(page: Path) -> Loads:
    found = Loads()
    found.feed(page.read_text(encoding="utf-8"))
    return found


def is_elsewhere(address: str) -> bool:
    return re.match(r"(?:\w+:)?//", address) is not None


def test_what_a_page_loads_is_found() -> None:
    found = Loads()
    found.feed(
        '<a href="https://a"><img src="https://b"><script src="//c"></script><link rel="stylesheet" href="d">'
    )
    assert [address for address in found.addresses if is_elsewhere(address)] == ["https://b", "//c"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning fails the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", folder / "cache"]
    built = subprocess.run([*command, DOCS, folder / "html"], capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    return folder / "html"


@pytest.mark.usefixtures("processes")
@pytest.mark.long
def test_the_site_is_whole(site: Path) -> None:
    assert [page for page in PAGES if not (site / f"{page}.html").exists()] == []
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert all(word in index for word in ("revoc", "checkpoint", "ledger"))
    reference = set().union(*(loads(page).ids for page in (site / "reference").glob("*.html")))
    assert {f"ebbtide.{name}" for name in eb.__all__ if name not in MODULES} <= reference


@pytest.mark.usefixtures("processes")
@pytest.mark.long
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    elsewhere = {
        (page.name, address)
        for page in site.rglob("*.html")
        for address in loads(page).addresses
        if is_elsewhere(address)
    }
    for sheet in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        text = sheet.read_text(encoding="utf-8")
        addresses = re.findall(r"""(?:url\(\s*["']?|@import\s+["']|xlink:href=["'])([^"')]+)""", text)
        elsewhere |= {(sheet.name, address) for address in addresses if is_elsewhere(address)}
    assert elsewhere == set()


@pytest.mark.usefixtures("processes")
@pytest.mark.long
def test_every_picture_and_diagram_is_shown(site: Path) -> None:
    asked = [
        found
        for page in PAGES
        for found in re.findall(
            r"^<!-- picture: [\w-]+ -->$|^```mermaid$", (DOCS / f"{page}.md").read_text("utf-8"), re.MULTILINE
        )
    ]
    shown = [
        address for page in site.rglob("*.html") for address in loads(page).addresses if address.endswith(".svg")
    ]
    assert len(shown) == len(asked) > 10


def test_a_flowchart_is_read() -> None:
    diagram = diagrams.parsed(
        'flowchart LR\n  a[(some data)] & b{one?} -- "what" --> c --> d\n  subgraph s\n  d <--> a\n  end'
    )
    assert diagram.labels == {"a": "some data", "b": "one?", "c": "c", "d": "d"}
    ways = [(arrow.tail, arrow.head, arrow.label) for arrow in diagram.arrows]
    assert ways == [("a", "c", "what"), ("b", "c", "what"), ("c", "d", ""), ("d", "a", ""), ("a", "d", "")]


def test_groups_with_a_label_are_framed(tmp_path: Path) -> None:
    text = "flowchart TB\n  subgraph one[here]\n  a --> b\n  end\n  subgraph other\n  c\n  end\n  b --> c --> a"
    diagram = diagrams.parsed(text)
    assert diagram.groups == {"here": ["a", "b"]}
    diagrams.draw(diagram, tmp_path / "groups.svg")
    assert "<!-- here -->" in (tmp_path / "groups.svg").read_text()


def test_states_are_read_and_drawn_alike_each_time(tmp_path: Path) -> None:
    text = 'stateDiagram-v2\n  state "not yet" as no\n  [*] --> no\n  no --> yes: by luck\n  yes --> no\n  yes --> [*]'
    diagram = diagrams.parsed(text)
    assert diagram.labels["no"] == "not yet"
    assert [arrow.label for arrow in diagram.arrows] == ["", "by luck", "", ""]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        diagrams.draw(diagram, tmp_path / name / "states.svg")
    assert (tmp_path / "one" / "states.svg").read_bytes() == (tmp_path / "two" / "states.svg").read_bytes()


@pytest.mark.parametrize("text", ["pie\n  a: 1", "stateDiagram-v2\n  note left of a", "flowchart LR\n  a ==> b{"])
def test_what_is_not_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"neither|no arrow|no node"):
        diagrams.parsed(text)


def test_code_in_docstrings_is_marked_and_sections_are_not() -> None:
    lines = [
        "Use it so:",
        "",
        "    a = 1",
        "",
        "    b = 2",
        "",
        "Then:",
        "",
        "Args:",
        "    a: One.",
        "",
        "        More.",
    ]
    references.as_restructured_text(None, "", "", None, None, lines)  # type: ignore[arg-type]
    assert lines[:7] == ["Use it so:", "", "::", "", "    a = 1", "", "    b = 2"]
    assert lines[7:] == ["", "Then:", "", "Args:", "    a: One.", "", "        More."]


def test_signatures_are_those_of_the_sources() -> None:
    printed = (
        "(n: ~typing.Annotated[int, Ge(ge=1), Le(le=[9])] | None = <factory>, at: TypeAliasForwardRef('Time'))"
    )
    told = references.plain_signature(None, "", "", None, None, printed, None)  # type: ignore[arg-type]
    assert told == ("(n: int | None = ..., at: Time)", None)
