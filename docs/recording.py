"""A recording of a session for the README: `python docs/recording.py`, from the root of the repository.

Each command runs in an empty folder beside a copy of the example, and what it prints becomes an animated picture,
docs/recording.svg. Waits are shortened; nothing else is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "recording.svg"
PROGRAM = "examples/live/plain.py"
SESSION = (
    f"ebbtide rehearse --checkpoints ckpt --after-s 6 -- python {PROGRAM} --epochs 300",
    f"ebbtide run --checkpoints ckpt --steps 10 -- python {PROGRAM} --epochs 10",
)
# Characters in a line, lines on the screen, and the size of a character in pixels.
_COLUMNS, _ROWS = 100, 26
_WIDTH, _HEIGHT, _MARGIN = 7.85, 17, 14
# Longest wait before a line, the wait after a command, and the wait before the recording begins anew, seconds.
_LONGEST_S, _TYPED_S, _REST_S = 1.2, 1.0, 6.0


@dataclass(frozen=True)
class Line:
    """A line of the session.

    Attributes:
        text: The line as printed.
        at_s: Seconds from the start of the recording until it appears.
        is_command: Whether the user typed it.
    """

    text: str
    at_s: float
    is_command: bool = False


def recorded() -> Iterator[Line]:
    """Run the session, and yield its lines."""
    at_s = 0.5
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, PROGRAM)
        place.parent.mkdir(parents=True)
        shutil.copy(ROOT / PROGRAM, place)
        for command in SESSION:
            yield from (Line(text, at_s, is_command=True) for text in wrapped(f"$ {command}"))
            at_s += _TYPED_S
            for text, waited_s in output(command, Path(folder)):
                at_s += min(waited_s, _LONGEST_S)
                yield from (Line(part, at_s) for part in wrapped(text))
            yield Line("", at_s)


def output(command: str, folder: Path) -> Iterator[tuple[str, float]]:
    """Run a command; yield each line that it prints, and the seconds since the line before.

    Raises:
        SystemExit: The command failed.
    """
    words = command.split()
    environment = {
        **os.environ,
        "COLUMNS": str(_COLUMNS),
        "PATH": f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}",
    }
    before_s = time.monotonic()
    with subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        for text in running.stdout:
            now_s = time.monotonic()
            yield text.rstrip().replace(folder.as_posix(), "~"), now_s - before_s
            before_s = now_s
    if running.returncode:
        raise SystemExit(f"{command} ended with exit code {running.returncode}")


def wrapped(text: str) -> list[str]:
    """Cut a line between words into parts that fit the screen."""
    return textwrap.wrap(text, _COLUMNS, drop_whitespace=False) or [""]


def drawn(lines: list[Line]) -> str:
    """The lines as an animated SVG: each appears at its time, and what is above the screen scrolls away."""
    length_s = lines[-1].at_s + _REST_S
    moves = "".join(
        f"{100 * line.at_s / length_s:.2f}%{{transform:translateY({(_ROWS - number) * _HEIGHT}px)}}"
        for number, line in enumerate(lines, start=1)
        if number == len(lines) or lines[number].at_s > line.at_s
    )
    start = f"0%{{transform:translateY({_ROWS * _HEIGHT}px)}}"
    typed = ' class="typed"'
    texts = "\n".join(
        f'<text y="{number * _HEIGHT + 13}"{typed * line.is_command}>{escape(line.text)}</text>'
        for number, line in enumerate(lines)
        if line.text
    )
    width, height = round(_COLUMNS * _WIDTH) + 2 * _MARGIN, _ROWS * _HEIGHT + 2 * _MARGIN
    ended = f"translateY({(_ROWS - len(lines)) * _HEIGHT}px)"
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape("; ".join(SESSION))}">
<style>
text {{ font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #d6deeb; white-space: pre }}
.typed {{ fill: #7fdbca; font-weight: 600 }}
.lines {{ animation: scroll {length_s:.1f}s step-end infinite }}
@keyframes scroll {{ {start}{moves} }}
@media (prefers-reduced-motion: reduce) {{ .lines {{ animation: none; transform: {ended} }} }}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#0b1622"/>
<svg x="{_MARGIN}" y="{_MARGIN}" width="{width - 2 * _MARGIN}" height="{_ROWS * _HEIGHT}"><g class="lines">
{texts}
</g></svg>
</svg>
"""


def main() -> None:
    """Record the session."""
    FILE.write_text(drawn(list(recorded())), encoding="utf-8")
    print(f"wrote {FILE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
