"""Tests as `make test`, `make long` and `make exhaustive` run them.

`python -m tests.run [--long | --exhaustive] [PYTEST ARGUMENT ...]`

Tests that compute come first, one worker a core. Tests that start processes and wait for them (those with the fixture
`processes`) follow, with more workers; long tests run all together. If at most ten that wait fail, they run once more,
one at a time: those that pass then are listed in reports/flaky.json. A test that computes is never repeated. The
slowest are in reports/slow-tests.json.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.process_starts import FILES_VARIABLE

REPORTS = Path("reports")
SLOWEST = 50
# More failures than this are a defect, or a machine that lacks something: running them again would hide it.
MOST_REPEATED = 10
# A test that hangs fails, and the others go on.
_LIMIT_S = {"": 1200, "--long": 3600, "--exhaustive": 3600}
_MARKS = {"--long": "long and not exhaustive", "--exhaustive": "exhaustive"}
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
        waits: Whether it starts processes and waits for them.
    """

    test: str
    duration_s: float
    failure: str
    skipped: str
    waits: bool


@dataclass(frozen=True)
class Run:
    """The result of one run of pytest.

    Attributes:
        outcomes: The outcome of each test that ran.
        code: Exit code of pytest.
        all_collected: Whether every test file could be read.
    """

    outcomes: tuple[Outcome, ...]
    code: int
    all_collected: bool


def main() -> None:
    """Run all tests of a kind; exit code 1 if a test failed for good, another one if pytest itself could not run."""
    kind = next((word for word in sys.argv[1:] if word in _MARKS), "")
    limit = f"--timeout={_LIMIT_S[kind]}"
    arguments = [limit, *(word for word in sys.argv[1:] if word not in _MARKS)]
    groups = [run_long(_MARKS[kind], arguments)] if kind else list(run_in_two_groups(arguments))
    failed = [one for group in groups for one in group.outcomes if one.failure]
    waiting = [one for one in failed if one.waits]
    flaky: list[Outcome] = []
    if all(group.all_collected for group in groups) and 0 < len(waiting) <= MOST_REPEATED:
        print(f"\nonce more, after the others: {len(waiting)} of the tests that wait for processes", flush=True)
        again = run("", 0, [limit, *(one.test for one in waiting)])
        passed = {one.test for one in again.outcomes if not one.failure and not one.skipped}
        flaky = [one for one in waiting if one.test in passed]
    report([one for group in groups for one in group.outcomes], flaky)
    codes = {group.code for group in groups}
    if flaky and len(flaky) == len(failed):
        # Every test that failed has passed since; what else ends pytest with this code is no test.
        codes = {0 if code == _FAILED else code for code in codes}
    sys.exit(_NO_TESTS if codes == {_NO_TESTS} else max(codes - {_NO_TESTS}))


def run_in_two_groups(arguments: Sequence[str]) -> Iterator[Run]:
    """Run the tests that compute, one worker a core, and then those that wait, with more workers."""
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "files"
        os.environ[FILES_VARIABLE] = str(files)
        yield run("not long and not processes", cores, arguments, "worksteal")
        del os.environ[FILES_VARIABLE]
        # Collecting all files again takes each worker half a minute.
        places = files.read_text(encoding="utf-8").splitlines() if files.exists() else []
    yield run("not long and processes", 4 * cores, in_files(arguments, places), "worksteal")


def run_long(marks: str, arguments: Sequence[str]) -> Run:
    """Run long tests, of which few compute; those that share a project stay together, in their file's order."""
    files = sorted(Path("tests").rglob("test_*.py"))
    marked = [
        str(file)
        for file in files
        # `make cases` runs those of tests/cases.
        if "cases" not in file.parts and re.search(r"mark\.(long|exhaustive)", file.read_text(encoding="utf-8"))
    ]
    return run(marks, 2 * len(os.sched_getaffinity(0)), in_files(arguments, marked), "loadscope")


def in_files(arguments: Sequence[str], files: Sequence[str]) -> list[str]:
    """Arguments of pytest that name some files, unless they name files or tests already."""
    is_named = any(Path(word.split("::")[0]).exists() for word in arguments)
    return [*arguments, *(() if is_named else files)]


def run(marks: str, workers: int, arguments: Sequence[str], dist: str = "") -> Run:
    """Run pytest once.

    Args:
        marks: Expression of the tests' markers.
        workers: Number of processes; 0: the tests run in one.
        arguments: Further arguments of pytest.
        dist: How tests are spread over processes, as pytest-xdist names it.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        words = ["-m", marks, "-n", str(workers), f"--report-log={log}", *arguments]
        if workers:
            words += ["--dist", dist]
        code = subprocess.run([sys.executable, "-m", "pytest", *words], check=False).returncode
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    reports = [json.loads(line) for line in lines]
    collected = [one for one in reports if one["$report_type"] == "CollectReport"]
    tests = [one for one in reports if one["$report_type"] == "TestReport"]
    return Run(
        outcomes=tuple(outcomes(tests)),
        code=code,
        all_collected=all(one["outcome"] != "failed" for one in collected),
    )


def outcomes(reports: Iterable[Mapping[str, Any]]) -> Iterator[Outcome]:
    """The outcome of each test, from what pytest-reportlog wrote of its set-up, call and teardown."""
    found: dict[str, dict[str, Any]] = {}
    for report in reports:
        test = found.setdefault(
            report["nodeid"], {"duration_s": 0.0, "failure": "", "skipped": "", "waits": False}
        )
        test["waits"] = "processes" in report["keywords"]
        test["duration_s"] += report["duration"]
        if report["outcome"] == "failed" and not test["failure"]:
            test["failure"] = _first_line(report["longrepr"])
        elif report["outcome"] == "skipped" and isinstance(report["longrepr"], list):
            test["skipped"] = str(report["longrepr"][2]).removeprefix("Skipped: ")
    for name, test in found.items():
        yield Outcome(test=name, **test)


def _first_line(representation: Any) -> str:
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
