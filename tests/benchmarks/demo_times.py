"""Seconds of `make demo` and of its installation, on a quiet machine and with other work beside it: `make demo-times`.

    python -m tests.benchmarks.demo_times reports/demo-times.json

Each time in a fresh clone with an environment and a cache of its own. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]

_STAGE = re.compile(r"Running stage '([^']+)'")
# Other work: a process that never waits.
_BUSY = "while True:\n    pass\n"


def demo(folder: Path) -> dict[str, object]:
    """Seconds of each stage, and of all; those of the installation; and what is no longer as it was committed.

    Raises:
        CalledProcessError: It failed.
    """
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    # Machine code that another clone has compiled must not count; packages that were downloaded may.
    downloaded = os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv"))
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder.with_suffix(".cache")), "UV_CACHE_DIR": downloaded}
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        environment.pop(name, None)
    at = time.monotonic()
    subprocess.run(["make", ".venv/demo-installed"], cwd=folder, env=environment, capture_output=True, check=True)
    install_s = round(time.monotonic() - at, 1)
    began = at = time.monotonic()
    stage = "start"
    seconds: dict[str, float] = {}
    process = subprocess.Popen(
        ["make", "demo"], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    tail: list[str] = []
    for line in process.stdout:
        tail = [*tail, line][-30:]
        found = _STAGE.search(line)
        if found:
            now = time.monotonic()
            seconds[stage] = round(now - at, 1)
            stage, at = found.group(1), now
    seconds[stage] = round(time.monotonic() - at, 1)
    if process.wait():
        sys.stderr.write("".join(tail))
        raise subprocess.CalledProcessError(process.returncode, "make demo")
    whole_s = round(time.monotonic() - began, 1)
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=folder, capture_output=True, text=True, check=True
    )
    return {
        "install_s": install_s,
        "whole_s": whole_s,
        "stages_s": seconds,
        "changed": status.stdout.splitlines(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Write both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="where the result goes")
    options = parser.parse_args(arguments)
    found: dict[str, object] = {"cores": len(os.sched_getaffinity(0))}
    with tempfile.TemporaryDirectory(prefix="ebbtide-demo-") as scratch:
        for name, busy in (("quiet", 0), ("one_core_busy", 1)):
            beside = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(busy)]
            try:
                found[name] = times = demo(Path(scratch) / name)
            finally:
                for process in beside:
                    process.kill()
                    process.wait()
            sys.stdout.write(f"{name}: {times['whole_s']} s\n")
            sys.stdout.flush()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
