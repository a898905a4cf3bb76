"""Every check, from a clean clone on a bare Debian: `.ci/run` runs this with the machine's own Python.

The two commands of the README come first, as on a machine that has `make`, `git` and Python alone: programs that
tests could use are hidden if they happen to be there. What only Debian has is installed meanwhile, for the checks that
follow side by side. Seconds of each stage: reports/ci-times.json. Only the standard library is used here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "reports"
# Programs that are hidden from the two commands, and the package of Debian of each that later checks need.
HIDDEN = ("mpirun", "mpiexec", "java", "initdb", "postgres", "chromium", "chromium-browser", "google-chrome")
HIDDEN_PLACES = ("JAVA_HOME", "SPARK_HOME")
PACKAGES = {"java": "openjdk-17-jre-headless", "chromium": "chromium"}
DEBIAN = ("bash", "-c", '(($# == 0)) || { apt-get update -qq && apt-get install -y -qq "$@"; }', "install")
# Checks that follow the two commands: two rows side by side, since both wait for processes of their own.
SIDE_BY_SIDE = (
    {"long": ("make", "long")},
    {
        "parity": ("make", "parity"),
        "simulate": ("make", "simulate", "RUNS=300"),
        "cases": ("make", "cases"),
    },
)


class Stages:
    """Runs stages, and keeps the seconds that each took.

    Attributes:
        seconds: Seconds of each stage that has ended.
        failed: Names of stages that failed.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    def run(
        self, name: str, *command: str, environment: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        """Run one command, which prints into a file if one is given, and that file at its end."""
        began_s = time.monotonic()
        with nullcontext() if log is None else log.open("wb") as out:
            code = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=out, stderr=out and subprocess.STDOUT, check=False
            ).returncode
        self.seconds[name] = time.monotonic() - began_s
        if code:
            self.failed.append(name)
        printed = "" if log is None else log.read_text(encoding="utf-8", errors="replace")
        print(f"{printed}\n== {name}: {self.seconds[name]:.0f} s, {'failed' if code else 'passed'}", flush=True)

    def run_row(self, row: Mapping[str, Sequence[str]]) -> None:
        """Run some stages one after the other, each printing at its end; the long tests print as they go."""
        for name, command in row.items():
            self.run(name, *command, log=None if name == "long" else REPORTS / f"ci-{name}.log")


def bare(folder: Path) -> dict[str, str]:
    """The environment of this machine without programs that tests use where they find them."""
    for place in os.environ["PATH"].split(os.pathsep):
        for program in sorted(Path(place).iterdir()) if Path(place).is_dir() else ():
            link = folder / program.name
            if program.name not in HIDDEN and not link.is_symlink():
                link.symlink_to(program)
    return {**{name: text for name, text in os.environ.items() if name not in HIDDEN_PLACES}, "PATH": str(folder)}


def main() -> None:
    """Run every stage; exit code 1 if one failed."""
    began_s = time.monotonic()
    REPORTS.mkdir(exist_ok=True)
    stages = Stages()
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(SIDE_BY_SIDE)) as pool:
        environment = bare(Path(folder))
        debian = pool.submit(stages.run, "debian", *DEBIAN, *missing, log=REPORTS / "ci-debian.log")
        stages.run("demo", "make", "demo", environment=environment)
        stages.run("test", "make", "test", environment=environment)
        debian.result()
        if not stages.failed:
            for row in [pool.submit(stages.run_row, row) for row in SIDE_BY_SIDE]:
                row.result()
    total_s = time.monotonic() - began_s
    times = {
        "stages": {name: round(each, 1) for name, each in stages.seconds.items()},
        "total_s": round(total_s, 1),
    }
    (REPORTS / "ci-times.json").write_text(json.dumps(times, indent=1) + "\n", encoding="utf-8")
    print("\n".join(f"{name:10} {each:7.0f} s" for name, each in [*stages.seconds.items(), ("all", total_s)]))
    sys.exit(f"failed: {', '.join(stages.failed)}" if stages.failed else 0)


if __name__ == "__main__":
    main()
