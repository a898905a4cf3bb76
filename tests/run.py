"""Tests in two groups, as `make test` and `make long` run them: `python -m tests.run [--long] [PYTEST ARGUMENT ...]`.

Tests that compute come first, one worker a core. Tests that start processes and wait for them (those with the fixture
`processes`) follow, with more workers. If at most ten of these fail, they run once more, one at a time: those that pass
then are listed in reports/flaky.json. A test that computes is never repeated. The slowest are in
reports/slow-tests.json.
"""

from __future__ import annotations

import json
import os
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
_WORKERS_A_CORE = {"not long": 3, "long": 2}
# Long tests of the pipeline share a project, and go on from each other in the order of their file.
_DIST = {"not long": "worksteal", "long": "loadscope"}
# A test that hangs fails, and the others go on.
_LIMIT_S = {"not long": 1200, "long": 2400}
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
    """Run both groups; exit code 1 if a test failed for good, another one if pytest itself could not run."""
    arguments = sys.argv[1:]
    kind = "long" if "--long" in arguments else "not long"
    limit = f"--timeout={_LIMIT_S[kind]}"
    arguments = [limit, *(word for word in arguments if word != "--long")]
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "files"
        os.environ[FILES_VARIABLE] = str(files)
        computing = run(f"{kind} and not processes", cores, arguments, _DIST[kind])
        del os.environ[FILES_VARIABLE]
        # Collecting all files again takes each worker half a minute.
        all_of_it = not any(Path(word.split("::")[0]).exists() for word in arguments)
        places = files.read_text(encoding="utf-8").splitlines() if all_of_it and files.exists() else []
    workers = cores * _WORKERS_A_CORE[kind]
    waiting = run(f"{kind} and processes", workers, [*arguments, *places], _DIST[kind])
    failed = [one for one in waiting.outcomes if one.failure]
    flaky: list[Outcome] = []
    code = waiting.code
    if code == _FAILED and waiting.all_collected and 0 < len(failed) <= MOST_REPEATED:
        print(f"\nonce more, after the others: {len(failed)} of the tests that wait for processes", flush=True)
        again = run("", 0, [limit, *(one.test for one in failed)])
        passed = {one.test for one in again.outcomes if not one.failure and not one.skipped}
        flaky = [one for one in failed if one.test in passed]
        code = 0 if len(flaky) == len(failed) else _FAILED
    report([*computing.outcomes, *waiting.outcomes], flaky)
    codes = {computing.code, code}
    sys.exit(_NO_TESTS if codes == {_NO_TESTS} else max(codes - {_NO_TESTS}))


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
        test = found.setdefault(report["nodeid"], {"duration_s": 0.0, "failure": "", "skipped": ""})
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
