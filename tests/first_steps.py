"""Runs every block of the documentation in a fresh clone, in the order printed: `make first-steps`.

    python -m tests.first_steps reports/first-steps.json [--only README.md] [--skip 'make test']

Shell blocks (`sh`) run by bash from the clone's folder, stopping at the first command that fails; Python blocks
(`python`) as scripts, each by itself, as they would be pasted. What a page leaves behind is there for the next, as it
is for a reader. A comment in front of a block says where it differs:

    <!-- needs: an AWS account -->          it is not run, and told with the reason
    <!-- interrupt after: 20 s -->          it has no end of its own: Ctrl-C then, which has to end it cleanly
    <!-- illustration -->                   it shows a part of something that is not run by itself
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

# As a newcomer reads: the face first, the rest by what it builds on.
FIRST = ("README.md", "docs/installation.md", "docs/tutorial.md", "docs/how-to/run.md", "docs/training.md")

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"<!-- (?:(needs|interrupt after): (.+?)|(illustration)) -->\s*\Z")
_RUN = ("sh", "python")

# After Ctrl-C a command has so long to end.
_ENDS_S = 30.0
# Nothing in the documentation takes longer; `make test` comes closest.
_LONGEST_S = 1800.0
_TAIL_LINES = 25
# What ended by Ctrl-C, as shells and our own commands tell it.
_INTERRUPTED = (0, 130, -signal.SIGINT)


@dataclass(frozen=True)
class Block:
    """A block of code on a page.

    Attributes:
        page: Path of the page below the project's folder.
        line: Of its first line of code, from 1.
        language: `sh` or `python`.
        code: Its text.
        needs: Why it is not run; empty: it is.
        interrupt_after_s: Ctrl-C after so long; None: it ends by itself.
    """

    page: str
    line: int
    language: str
    code: str
    needs: str = ""
    interrupt_after_s: float | None = None


@dataclass(frozen=True)
class Told:
    """What came of a block.

    Attributes:
        page: Where it stands.
        line: There.
        language: Its language.
        seconds: It took; 0: it was not run.
        exit_code: None: it was not run.
        needs: Why it was not run.
        tail: The last lines of what it printed, where it failed.
    """

    page: str
    line: int
    language: str
    seconds: float
    exit_code: int | None
    needs: str
    tail: str

    @property
    def failed(self) -> bool:
        return self.exit_code not in (None, 0)


def pages(root: Path = ROOT) -> list[str]:
    """Of the documentation, in the order of a newcomer's reading."""
    others = sorted(path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md"))
    return [page for page in FIRST if (root / page).exists()] + [page for page in others if page not in FIRST]


def blocks_of(text: str, page: str) -> list[Block]:
    """The blocks on a page that are for running."""
    found = []
    for match in _FENCE.finditer(text):
        language, code = match.groups()
        directive = _DIRECTIVE.search(text[: match.start()])
        if language not in _RUN or (directive and directive.group(3)):
            continue
        kind, what = (directive.group(1), directive.group(2)) if directive else ("", "")
        seconds = float(what.removesuffix("s")) if kind == "interrupt after" else None
        line = text[: match.start(2)].count("\n") + 1
        found.append(Block(page, line, language, code, what if kind == "needs" else "", seconds))
    return found


def run(block: Block, folder: Path, environment: dict[str, str]) -> Told:
    """Run a block in a clone's folder."""
    if block.needs:
        return Told(block.page, block.line, block.language, 0.0, None, block.needs, "")
    with tempfile.TemporaryDirectory(prefix="ebbtide-block-") as scratch:
        script, output = Path(scratch) / "block", Path(scratch) / "output"
        if block.language == "sh":
            # From the second command on a newcomer has the environment that the first one made.
            script.write_text(
                "[ -f .venv/bin/activate ] && . .venv/bin/activate\nset -eu -o pipefail\n" + block.code
            )
            command = ["bash", str(script)]
        else:
            script.write_text(block.code)
            command = [str(folder / ".venv" / "bin" / "python"), str(script)]
        began = time.monotonic()
        with output.open("wb") as out:
            # SIGINT is ignored in what a shell starts in the background; here each block is a foreground of its own.
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            code = _waited(process, block.interrupt_after_s)
        seconds = time.monotonic() - began
        tail = "\n".join(output.read_text(errors="replace").splitlines()[-_TAIL_LINES:]) if code else ""
    return Told(block.page, block.line, block.language, round(seconds, 1), code, "", tail)


def _waited(process: subprocess.Popen[bytes], interrupt_after_s: float | None) -> int:
    """Its exit code; 0 for one that was to be interrupted and ended cleanly by it."""
    try:
        code = process.wait(_LONGEST_S if interrupt_after_s is None else interrupt_after_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        try:
            code = process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return 124
        if interrupt_after_s is not None and code in _INTERRUPTED:
            return 0
        return code or 124
    # What has no end of its own is to be there until it is interrupted.
    return code if interrupt_after_s is None else code or 125


def cloned(into: Path) -> None:
    """What is committed, as anyone gets it."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(into)], check=True)


def _environment() -> dict[str, str]:
    """This process's, without what would point elsewhere than to the clone."""
    ours = {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    kept = {name: value for name, value in os.environ.items() if name not in ours and not name.startswith("AWS_")}
    venv = os.environ.get("VIRTUAL_ENV")
    # The environment of whoever runs this must not stand in for the one that the pages tell to make.
    places = [place for place in kept["PATH"].split(os.pathsep) if not venv or not place.startswith(venv)]
    own = str(Path(sys.executable).parent)
    return {**kept, "PATH": os.pathsep.join(place for place in places if place != own)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a block failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="where the result goes")
    parser.add_argument("--only", action="append", metavar="PAGE", help="this page; once for each")
    parser.add_argument(
        "--skip", action="append", default=[], metavar="CODE", help="a block that was run elsewhere"
    )
    options = parser.parse_args(arguments)
    # A shell that starts this in the background has interrupts ignored, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    told: list[Told] = []
    with tempfile.TemporaryDirectory(prefix="ebbtide-first-steps-") as scratch:
        folder = Path(scratch) / "ebbtide"
        cloned(folder)
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True
        )
        for page in options.only or pages(folder):
            for block in blocks_of((folder / page).read_text(encoding="utf-8"), page):
                skip = next((code for code in options.skip if code in block.code), None)
                if skip:
                    block = Block(**{**asdict(block), "needs": f"nothing: {skip} was run by itself"})
                told.append(run(block, folder, _environment()))
                _tell(told[-1])
        # Whatever was made in the clone goes with it; read-only files too.
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
    content = summary(commit.stdout.strip(), told)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"{content['run']} blocks run, {content['failed']} failed, wrote {options.json}\n")
    return 1 if content["failed"] else 0


def summary(commit: str, told: Sequence[Told]) -> dict[str, object]:
    """What `main` writes."""
    slowest = max(told, key=lambda one: one.seconds, default=None)
    return {
        "commit": commit,
        "blocks": len(told),
        "run": sum(one.exit_code is not None for one in told),
        "failed": sum(one.failed for one in told),
        "slowest_s": slowest.seconds if slowest else 0.0,
        "slowest": f"{slowest.page}:{slowest.line}" if slowest else "",
        "results": [asdict(one) for one in told],
    }


def _tell(one: Told) -> None:
    came = f"not run: {one.needs}" if one.exit_code is None else f"{one.seconds:.1f} s, exit code {one.exit_code}"
    sys.stdout.write(f"{one.page}:{one.line} {one.language}: {came}\n")
    if one.failed:
        sys.stdout.write(one.tail + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
