"""How tests are run: in two groups, with one more try for those that wait for processes and for no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.usefixtures("processes")

# Plugins of other packages take each worker seconds.
_QUICK = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_ADDOPTS": "-p xdist -p pytest_reportlog.plugin -p pytest_timeout",
}

_TESTS = """
import subprocess, sys
from pathlib import Path
import pytest

def count(name):
    with Path(name).open("a") as file:
        file.write("x")
    return len(Path(name).read_text())

def test_computes():
    count("computes")

@pytest.mark.skip(reason="needs Java: apt-get install openjdk-17-jre-headless")
def test_of_java():
    pass

@pytest.fixture
def server(processes):
    return subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True)

def test_waits(server):
    assert server.stdout == "1\\n"
    assert count("waits") > {failures}, "too slow"
"""


def ran(folder: Path, tests: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`make test` of a project that has these tests alone."""
    (folder / "conftest.py").write_text('pytest_plugins = ["tests.process_starts"]\n')
    (folder / "test_some.py").write_text(tests)
    return subprocess.run(
        [sys.executable, "-m", "tests.run", *arguments],
        cwd=folder,
        env={**os.environ, **_QUICK, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def report(folder: Path, name: str) -> list[dict[str, Any]]:
    return json.loads((folder / "reports" / f"{name}.json").read_text())  # type: ignore[no-any-return]


def test_one_that_waits_may_pass_alone_and_is_listed(tmp_path: Path) -> None:
    done = ran(tmp_path, _TESTS.format(failures=1))
    assert done.returncode == 0, done.stdout
    (flaky,) = report(tmp_path, "flaky")
    assert flaky["test"] == "test_some.py::test_waits"
    assert "too slow" in flaky["first_failure"]
    assert done.stdout.splitlines()[-1].startswith("flaky: test_some.py::test_waits failed")
    assert "skipped: 1 test: needs Java: apt-get install openjdk-17-jre-headless" in done.stdout
    slow = {one["test"].split("::")[1] for one in report(tmp_path, "slow-tests")}
    assert slow == {"test_computes", "test_of_java", "test_waits"}
    assert (tmp_path / "computes").read_text() == "x"


def test_one_that_fails_twice_fails(tmp_path: Path) -> None:
    done = ran(tmp_path, _TESTS.format(failures=2))
    assert done.returncode == 1
    assert (tmp_path / "waits").read_text() == "xx"
    assert report(tmp_path, "flaky") == []


def test_one_that_computes_is_not_repeated(tmp_path: Path) -> None:
    tests = _TESTS.format(failures=0).replace('count("computes")', 'assert count("computes") > 1')
    done = ran(tmp_path, tests)
    assert done.returncode == 1
    assert (tmp_path / "computes").read_text() == "x"


def test_one_that_starts_a_process_without_saying_so_fails(tmp_path: Path) -> None:
    tests = _TESTS.format(failures=0).replace("def server(processes)", "def server()")
    done = ran(tmp_path, tests)
    assert done.returncode == 1
    assert "this test starts a process" in done.stdout
    assert "it needs the fixture `processes`" in done.stdout


_GROUPED = """
import os, time
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return tmp_path_factory.mktemp("project")

@pytest.mark.long
@pytest.mark.parametrize("number", range(6))
def test_goes_on(project, number):
    assert len(list(project.iterdir())) == number
    (project / str(number)).touch()

@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_hangs():
    if not Path("hung").exists():
        Path("hung").touch()
        time.sleep(3600)
"""


def test_long_ones_that_share_a_project_stay_together_and_one_that_hangs_is_ended(
    tmp_path: Path,
) -> None:
    done = ran(tmp_path, _GROUPED, "--long", "--timeout=2")
    assert done.returncode == 0, done.stdout
    (flaky,) = report(tmp_path, "flaky")
    assert flaky["test"] == "test_some.py::test_hangs"
    assert "Timeout" in flaky["first_failure"]
    slow = {one["test"] for one in report(tmp_path, "slow-tests")}
    assert slow == {"test_some.py::test_hangs", *(f"test_some.py::test_goes_on[{n}]" for n in range(6))}


def test_a_file_that_cannot_be_read_fails_though_no_test_does(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import no_such_module_of_ours\n")
    assert ran(tmp_path, _TESTS.format(failures=0)).returncode != 0
