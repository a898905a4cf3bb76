"""Pythons without packages, as machines have them, for tests."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

from tests.waiting import LIMIT_S


def bare_python(folder: Path, base: str = sys.executable) -> Path:
    """A new environment with nothing in it, not even pip."""
    subprocess.run([base, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=LIMIT_S)
    return folder / "bin" / "python"


@functools.cache
def oldest_python() -> str | None:
    """A Python of the least version that agents run on; None: there is none here."""
    kept = sorted(str(path) for path in (Path.home() / ".pyenv" / "versions").glob("3.10*/bin/python3.10"))
    for candidate in filter(None, [*kept, shutil.which("python3.10")]):
        asked = subprocess.run([candidate, "-c", "import venv"], capture_output=True, timeout=LIMIT_S, check=False)
        if asked.returncode == 0:
            return candidate
    return None
