"""Tests in two groups, as `make test` and `make long` run them: `python -m tests.run [--long] [PYTEST ARGUMENT ...]`.

Tests that compute come first, one worker a core. Tests that start processes and wait for them (those with the fixture
`processes`) follow, with more workers. One of these that fails is run once more, alone: if it passes then, it is listed
in reports/flaky.json. A test that computes is never repeated. The slowest are in reports/slow-tests.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.process_starts import FILES_VARIABLE

REPORTS = Path("reports")
SLOWEST = 50
# More failures than this are a defect, or a machine that lacks something: running them again would hide it.
MOST_REPEATED = 10
_WORKERS_A_CORE = {"not long": 3, "long": 2}
# Exit codes of pytest.
_FAILED, _NO_TESTS = 1, 5


@dataclass(frozen=True)
class Outcome:
    """The result of one test.

    Attributes:
        test: Its node id.
        duration_s: Seconds of set-up, call and teardown together.
        failure: Text of the first failure; empty: it did not fail.
        skipped: Reason for which the test was skipped; empty: it was not.
    """

    test: str
    duration_s: float
    failure: str
    skipped: str


def main() -> None:
    """Run both groups; exit code 1 if a test failed for good, another one if pytest itself could not run."""
    arguments = sys.argv[1:]
    kind = "long" if "--long" in arguments else "not long"
    arguments = [word for word in arguments if word != "--long"]
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "files"
        os.environ[FILES_VARIABLE] = str(files)
        computing, code = run(f"{kind} and not processes", cores, arguments)
        del os.environ[FILES_VARIABLE]
        # Collecting all files again takes each worker half a minute.
        all_of_it = not any(Path(word.split("::")[0]).exists() for word in arguments)
        places = files.read_text(encoding="utf-8").splitlines() if all_of_it and files.exists() else []
    waiting, code_waiting = run(f"{kind} and processes", cores * _WORKERS_A_CORE[kind], [*arguments, *places])
    failed = [one for one in waiting if one.failure]
    flaky: list[Outcome] = []
    if code_waiting == _FAILED and 0 < len(failed) <= MOST_REPEATED:
        print(f"\nonce more, alone: {len(failed)} of the tests that wait for processes", flush=True)
        again, code_waiting = run("", 0, [one.test for one in failed])
        passed = {one.test for one in again if not one.failure}
        flaky = [one for one in failed if one.test in passed]
    report([*computing, *waiting], flaky)
    codes = {code, code_waiting} - {0, _NO_TESTS}
    sys.exit(max(codes, default=0))


def run(marks: str, workers: int, arguments: Sequence[str]) -> tuple[list[Outcome], int]:
    """One run of pytest: the outcome of each test, and pytest's exit code.

    Args:
        marks: Expression of the tests' markers.
        workers: Number of processes; 0: the tests run in one.
        arguments: Further arguments of pytest.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        words = ["-m", marks, "-n", str(workers), f"--report-log={log}", *arguments]
        if workers:
            words += ["--dist", "worksteal"]
        code = subprocess.run([sys.executable, "-m", "pytest", *words], check=False).returncode
        return list(outcomes(log)), code


def outcomes(log: Path) -> Iterator[Outcome]:
    """The tests in a file that pytest-reportlog wrote."""
    found: dict[str, dict[str, Any]] = {}
    if not log.exists():
        return
    for line in log.read_text(encoding="utf-8").splitlines():
        report = json.loads(line)
        if report["$report_type"] != "TestReport":
            continue
        test = found.setdefault(report["nodeid"], {"duration_s": 0.0, "failure": "", "skipped": ""})
        test["duration_s"] += report["duration"]
        if report["outcome"] == "failed" and not test["failure"]:
            test["failure"] = _last_line(report["longrepr"])
        elif report["outcome"] == "skipped" and isinstance(report["longrepr"], list):
            test["skipped"] = str(report["longrepr"][2]).removeprefix("Skipped: ")
    for name, test in found.items():
        yield Outcome(test=name, **test)


def _last_line(representation: Any) -> str:
    crash = (representation or {}).get("reprcrash") if isinstance(representation, dict) else None
    text = crash["message"] if crash else str(representation)
    return text.strip().splitlines()[0] if text.strip() else "failed"


def report(every: Sequence[Outcome], flaky: Sequence[Outcome]) -> None:
    """Write both files, and print what was skipped and what passed at its second run."""
    REPORTS.mkdir(exist_ok=True)
    slow = sorted(every, key=lambda one: -one.duration_s)[:SLOWEST]
    _write("slow-tests", [{"test": one.test, "duration_s": round(one.duration_s, 2)} for one in slow])
    _write("flaky", [{"test": one.test, "first_failure": one.failure} for one in flaky])
    for reason, count in sorted(Counter(one.skipped for one in every if one.skipped).items()):
        print(f"skipped: {count} {'test' if count == 1 else 'tests'}: {reason}")
    for one in flaky:
        print(f"flaky: {one.test} failed, and passed when it ran alone: {one.failure}")


def _write(name: str, rows: list[dict[str, Any]]) -> None:
    (REPORTS / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
