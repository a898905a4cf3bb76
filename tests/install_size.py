"""How much `pip install ebbtide` downloads, without extras and with all: `python -m tests.install_size OUT.json`.

Wheels as pip would fetch them for this machine and Python, by the versions of constraints.txt.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.wheel import ROOT, build_wheel


def downloaded(wheel: Path, extra: str = "") -> dict[str, float]:
    """Size of each wheel that an installation needs, in MB (10^6 bytes)."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = f"{wheel}[{extra}]" if extra else str(wheel)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "-d", folder]
        subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), wanted], check=True)
        return {path.name: path.stat().st_size / 1e6 for path in sorted(Path(folder).iterdir())}


def main() -> None:
    """Measure, print and write the report."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder))
        found = {name or "none": downloaded(wheel, name) for name in ("", "fast", "all")}
    for name, wheels in found.items():
        largest = ", ".join(
            f"{one.split('-')[0]} {wheels[one]:.0f}" for one in sorted(wheels, key=wheels.get)[-5:][::-1]
        )  # type: ignore[arg-type]
        print(f"extras {name}: {len(wheels)} wheels, {sum(wheels.values()):.0f} MB; largest: {largest}")
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    Path(sys.argv[1]).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
