"""The bundle is all that a machine's bare Python needs to run an agent, and no more."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.agent.bare_python import bare_python, oldest_python
from tests.waiting import LIMIT_S

from ebbtide.agent import bundle as bundles
from ebbtide.agent.bundle import LEAST_PYTHON, bundle, bundle_key, own_modules

MODULES = own_modules()

# Loads all that an agent ever imports, with S3 at work, and tells where every module came from.
LOADS = """
import json, pathlib, sys
sys.argv = ["agent"]
import ebbtide.agent.__main__ as entry
assert entry.main() == 2
import ebbtide.agent.entry_point, ebbtide.trial
from ebbtide.errors import InputError
from ebbtide.storage.objects import object_store
object_store("s3://bucket/prefix")
from ebbtide.storage.checkpoints.manifest import ALGORITHM
places = [getattr(module, "__file__", None) for module in sys.modules.values()]
print(json.dumps({"algorithm": ALGORITHM, "places": [place for place in places if place]}))
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("machine") / "bundle"
    with tarfile.open(fileobj=io.BytesIO(bundle())) as tar:
        # Our own; not every Python 3.11 has filters.
        tar.extractall(folder)
    return folder


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "base",
    [
        pytest.param(sys.executable, id="own"),
        pytest.param(
            oldest_python(), id="oldest", marks=pytest.mark.skipif(not oldest_python(), reason="no Python 3.10")
        ),
    ],
)
def test_a_bare_python_runs_the_agent_from_it_alone(unpacked: Path, tmp_path: Path, base: str) -> None:
    python = bare_python(tmp_path / "bare", base)
    environment = {"PYTHONPATH": str(unpacked / "program"), "AWS_DEFAULT_REGION": "us-east-1", "PATH": os.defpath}
    told = subprocess.run(
        [python, "-S", "-c", LOADS],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert found["algorithm"] == "blake2b-128"
    root = Path(base).resolve().parents[1]
    for place in found["places"]:
        inside = Path(place).resolve()
        assert inside.is_relative_to(unpacked) or (
            inside.is_relative_to(root) and "site-packages" not in inside.parts
        )
    assert any("/libraries/botocore/" in place for place in found["places"])


@pytest.mark.usefixtures("processes")
def test_programs_see_ebbtide_and_none_of_the_agent_s_libraries(unpacked: Path, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare")
    asks = "import importlib.util as u, ebbtide.trial; print([u.find_spec(n) for n in ('boto3', 'six', 'urllib3')], ebbtide.__version__)"
    environment = {"PYTHONPATH": str(unpacked / "program"), "PATH": os.defpath}
    told = subprocess.run(
        [python, "-c", asks], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert told.stdout == f"[None, None, None] {bundles.ebbtide.__version__}\n"


@pytest.mark.usefixtures("processes")
def test_beside_an_installed_ebbtide_the_rest_of_it_is_found(unpacked: Path) -> None:
    asks = "import ebbtide.trial, ebbtide.market.markets as m; print(ebbtide.trial.__file__); print(m.__file__)"
    path = os.pathsep.join([str(unpacked / "program"), str(Path(bundles.ebbtide.__file__).parents[1])])
    told = subprocess.run(
        [sys.executable, "-c", asks],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    trial, market = map(Path, told.stdout.split())
    assert trial.is_relative_to(unpacked)
    assert market == Path(bundles.ebbtide.__file__).parent / "market" / "markets.py"


def test_it_is_small_and_always_the_same() -> None:
    assert len(bundle()) < 2 << 20
    first = bundle()
    bundle.cache_clear()
    assert bundle() == first
    assert bundle_key("run-1").startswith("runs/run-1/agent-")


def test_what_agents_import_is_ebbtide_the_standard_library_and_what_the_bundle_carries() -> None:
    allowed = {*sys.stdlib_module_names, "ebbtide", "boto3", "botocore", "urllib3"}
    for name, path in MODULES.items():
        # PyTorch and Dask are the user's own, and xxhash is used where it is.
        extra = {
            "ebbtide.trial_torch": {"torch", "numpy"},
            "ebbtide.agent.dask_cluster": {"dask", "distributed", "cryptography"},
            "ebbtide.base.dask_security": {"distributed"},
            "ebbtide.storage.checkpoints.manifest": {"xxhash"},
        }.get(name, set())
        assert {imported.partition(".")[0] for imported in bundles._imported(path)} <= allowed | extra, name
    rooms = {name.split(".")[1] for name in MODULES}
    assert rooms == {"agent", "base", "errors", "storage", "trial", "trial_processes", "trial_torch"}


# Of the standard library, and newer than what machines may have.
NEWER = {
    "StrEnum",
    "UTC",
    "Self",
    "assert_never",
    "TaskGroup",
    "ExceptionGroup",
    "tomllib",
    "batched",
    "chdir",
    "override",
}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_its_modules_keep_to_the_least_python(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"), feature_version=LEAST_PYTHON)
    used = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not used & NEWER
    assert not any(isinstance(node, ast.TryStar) for node in ast.walk(tree))


# As a script that was begun with `eb.train`, imported on a machine that has the bundle alone.
FUNCTIONS = """
import ebbtide as eb

@eb.train(metric="loss", budget_usd=5)
def fit(lr, trial):
    return lr + trial.step

@eb.train
def bare(lr):
    return lr

for begins in (fit.sweep, bare.run, eb.sweep):
    try:
        begins({"lr": [1]})
    except RuntimeError as error:
        assert "below `if __name__ == '__main__':`" in str(error)
    else:
        raise AssertionError
try:
    eb.generate_prices
except AttributeError as error:
    assert "machines have a part of Ebbtide, without ebbtide.generate_prices" in str(error)
"""


@pytest.mark.usefixtures("processes")
def test_a_script_of_functions_that_train_is_imported_by_a_machine(unpacked: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FUNCTIONS)
    python = bare_python(tmp_path / "bare", oldest_python() or sys.executable)
    environment = {"PYTHONPATH": str(unpacked / "program"), "PATH": os.defpath}
    command = [python, "-S", "-m", "ebbtide.agent.entry_point", "own:fit", '{"lr": 0.5}', "loss"]
    told = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert '{"step": 1, "loss": 0.5}' in told.stdout
