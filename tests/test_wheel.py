"""The wheel has all of the package, and runs where the sources are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.wheel import ROOT, build_wheel

JOB = """
name: small
steps: 2_000
steps_per_hour: {m3.medium: 210, c3.xlarge: 1_000}
other_steps_per_hour_per_vcpu: 220
checkpoint: {size_bytes: 400_000_000, save_s: 20, restore_s: 45}
"""

# What a user would do first; it tells where its modules came from.
PROGRAM = """
import json, sys
import ebbtide as eb
prices = eb.generate_prices(days=10, seed=1, kind="auction")
job = eb.Job.read("job.yaml")
result = eb.backtest([eb.policies.CheapestSpot(), eb.policies.OnDemand()], job, prices, billing="ec2-second", starts=2, seed=1)
print(result, file=sys.stderr)
places = {name: module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "ebbtide"}
print(json.dumps({"version": eb.__version__, "places": places}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one that EBBTIDE_WHEEL names, or a new one."""
    given = os.environ.get("EBBTIDE_WHEEL")
    return Path(given).resolve() if given else build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def unzipped(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unzipped")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(folder)
    return folder


def files_below(folder: Path) -> set[Path]:
    """What a package has, but for what Python compiles of it."""
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


@pytest.mark.long
@pytest.mark.parametrize("package", ["ebbtide", "ebbtide_papers"])
def test_it_has_every_file_of_a_package(unzipped: Path, package: str) -> None:
    source = ROOT / "src" / package
    wanted = files_below(source)
    assert files_below(unzipped / package) == wanted
    for name in wanted:
        assert (unzipped / package / name).read_bytes() == (source / name).read_bytes(), name


def test_it_has_its_licence_and_nothing_else(unzipped: Path) -> None:
    (licence,) = unzipped.glob("ebbtide-*.dist-info/licenses/LICENSE")
    assert licence.read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert {path.name.split("-")[0] for path in unzipped.iterdir()} == {"ebbtide", "ebbtide_papers"}


def test_it_pins_no_pytorch(unzipped: Path) -> None:
    """A user's environment has its own."""
    (metadata,) = unzipped.glob("ebbtide-*.dist-info/METADATA")
    assert [line for line in metadata.read_text().splitlines() if line.startswith("Requires-Dist: torch")] == [
        'Requires-Dist: torch>=2.4; extra == "train"'
    ]


def first_commands(ebbtide: list[str], folder: Path, environment: dict[str, str]) -> None:
    """In an empty folder: help, and a backtest with its page."""
    (folder / "job.yaml").write_text(JOB)
    backtest = [
        "compare",
        "job.yaml",
        "--generate",
        "10",
        "--policies",
        "cheapest-spot,on-demand",
        "--starts",
        "2",
    ]
    for words, said in (
        (["--version"], "ebbtide 0."),
        (["--help"], "rehearse"),
        ([*backtest, "--report", "report.html"], "cheapest-spot"),
    ):
        ran = subprocess.run(
            [*ebbtide, *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert said in ran.stdout
    assert "<html" in (folder / "report.html").read_text()[:500].lower()


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_it_runs_where_the_sources_are_not(unzipped: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(unzipped)}
    first_commands([sys.executable, "-P", "-m", "ebbtide.cli.main"], tmp_path, environment)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    told = json.loads(ran.stdout)
    assert told["version"] == next(unzipped.glob("ebbtide-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    assert len(told["places"]) > 20
    assert all(Path(place).is_relative_to(unzipped) for place in told["places"].values())


@pytest.mark.usefixtures("processes")
@pytest.mark.long
def test_it_installs_and_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """With what the package index has; the versions are those that were tested together."""
    own, folder = tmp_path / "environment", tmp_path / "empty"
    folder.mkdir()
    # What this process sees of the sources neither pip nor the command is to see.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run([sys.executable, "-m", "venv", str(own)], env=environment, check=True, timeout=600)
    python = str(own / "bin" / "python")
    pip = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-c",
        str(ROOT / "constraints.txt"),
    ]
    # A report is drawn by libraries of an extra.
    subprocess.run([*pip, f"{wheel}[plots]"], cwd=folder, env=environment, check=True, timeout=900)
    first_commands([str(own / "bin" / "ebbtide")], folder, environment)
    ran = subprocess.run(
        [python, "-c", PROGRAM],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    places = json.loads(ran.stdout)["places"].values()
    assert all(Path(place).is_relative_to(own) for place in places)
    # No CUDA comes with it, and nothing of the sources.
    installed = subprocess.run(
        [python, "-m", "pip", "list", "--format", "json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    names = {package["name"].lower() for package in json.loads(installed.stdout)}
    assert not {name for name in names if name.startswith("nvidia")}
    assert not names & {"moto", "pytest", "hypothesis"}
