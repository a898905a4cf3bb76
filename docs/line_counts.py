"""Counts what a user writes with each tool of docs/beside/, and writes the table of docs/beside-other-tools.md.

    python -m docs.line_counts      # writes the table into the page

The site's build does the same with the page that it reads, so that no number there is typed by hand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "beside"
PAGE = ROOT / "docs" / "beside-other-tools.md"

_TABLE = re.compile(r"(<!-- lines: begin -->\n).*?(<!-- lines: end -->)", re.DOTALL)


@dataclass(frozen=True)
class Tool:
    """A tool whose program is in docs/beside/.

    Attributes:
        folder: Name of its folder there.
        title: Its name.
        steps: What has to be there or be done once before the program runs, each in a few words.
    """

    folder: str
    title: str
    steps: tuple[str, ...]


# The pages that say so are listed in docs/beside-other-tools.md, by tool.
TOOLS = (
    Tool(
        "ebbtide",
        "Ebbtide",
        ("pip install", "AWS credentials", "a bucket", "a role for its machines", "an image with PyTorch"),
    ),
    Tool("skypilot", "SkyPilot", ("pip install", "AWS credentials, `sky check`")),
    Tool(
        "ray_tune",
        "Ray Tune",
        (
            "pip install",
            "AWS credentials",
            "a bucket",
            "a role that lets workers write to it",
            "an image with drivers",
        ),
    ),
    Tool(
        "syne_tune",
        "Syne Tune on SageMaker",
        (
            "pip install of a release that has the backend",
            "AWS credentials",
            "a role of SageMaker",
            "quota of spot training",
        ),
    ),
    Tool(
        "metaflow",
        "Metaflow",
        (
            "pip install, metaflow-checkpoint as well",
            "AWS credentials, `metaflow configure`",
            "a bucket and a metadata service",
            "a Kubernetes cluster",
            "a spot node group with a label",
        ),
    ),
    Tool("dstack", "dstack", ("pip install", "AWS credentials", "`dstack server`, kept running")),
)


def lines_of(file: Path) -> int:
    """Number of lines that are neither blank nor comments."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return sum(1 for line in lines if line and not line.startswith("#"))


def files_of(tool: Tool) -> list[Path]:
    """Its files, by name."""
    return sorted(path for path in (FOLDER / tool.folder).iterdir() if path.is_file())


def is_program(file: Path) -> bool:
    """Whether it is part of the training program; else it configures or starts it."""
    return file.suffix == ".py"


def table() -> str:
    """The table, in Markdown."""
    rows = [
        "| | set up once | files | lines: program | lines: configuration and commands | lines |",
        "|---|---|---|---|---|---|",
    ]
    for tool in TOOLS:
        files = files_of(tool)
        program = sum(lines_of(file) for file in files if is_program(file))
        other = sum(lines_of(file) for file in files if not is_program(file))
        names = ", ".join(f"[{file.name}](beside/{tool.folder}/{file.name})" for file in files)
        setup = f"{len(tool.steps)}: {'; '.join(tool.steps)}"
        cells = [
            f"**{tool.title}**",
            setup,
            f"{len(files)}: {names}",
            str(program),
            str(other),
            str(program + other),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def with_table(text: str) -> str:
    """A page's text with the table between its marks."""
    return _TABLE.sub(lambda found: found[1] + table() + found[2], text)


def put_in(app: Sphinx, page: str, text: list[str]) -> None:  # noqa: ARG001 (as Sphinx calls it)
    """Write the table into its page; called by Sphinx with each page's text."""
    text[0] = with_table(text[0])


def main(_arguments: Sequence[str] = ()) -> None:
    """Write the table into the page."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
