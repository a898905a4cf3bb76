"""Builds the wheel from a copy of the sources: `python -m tests.wheel dist`. Nothing is left beside them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Of pyproject.toml, [build-system].
_LEAST_SETUPTOOLS = 77


def build_wheel(into: Path) -> Path:
    """The wheel, in place of any other of ours there.

    Args:
        into: A folder; made if it is not there.
    """
    into.mkdir(parents=True, exist_ok=True)
    for old in into.glob("ebbtide-*.whl"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, folder)
        shutil.copytree(
            ROOT / "src", Path(folder, "src"), ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
        # Where what builds it is here already, none is fetched.
        isolated = ["--no-build-isolation"] if _has_setuptools() else []
        words = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            *isolated,
        ]
        subprocess.run([*words, "--wheel-dir", str(into.resolve()), folder], check=True, timeout=300)
    (found,) = into.glob("ebbtide-*.whl")
    return found


def _has_setuptools() -> bool:
    try:
        return int(version("setuptools").split(".")[0]) >= _LEAST_SETUPTOOLS
    except PackageNotFoundError:
        return False


if __name__ == "__main__":
    print(build_wheel(Path(sys.argv[1])))
