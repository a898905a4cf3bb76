"""`ebbtide.testing` as its users have it: names that are there, an import that costs little, the documented test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ebbtide.testing

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).parents[2]


def test_every_public_name_is_there() -> None:
    suites = {
        "CloudContract",
        "LiveSourceContract",
        "ObjectStoreContract",
        "PolicyContract",
        "PriceSourceContract",
    }
    assert suites <= set(ebbtide.testing.__all__)
    assert all(getattr(ebbtide.testing, name).__doc__ for name in ebbtide.testing.__all__)


def test_importing_ebbtide_does_not_import_it_and_it_imports_nothing_heavy() -> None:
    code = (
        "import sys, ebbtide; print('ebbtide.testing' in sys.modules); import ebbtide.testing; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = done.stdout.splitlines()
    assert before == "False"
    assert not {"numpy", "pandas", "pytest", "boto3", "moto"} & set(after.split())


def test_the_documented_test_of_a_policy_passes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "own-policy.md").read_text()
    files = dict(re.findall(r"^cat > (\S+\.py) <<'END'\n(.*?)^END$", page, re.MULTILINE | re.DOTALL))
    assert set(files) >= {"my_policy.py", "test_my_policy.py"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        imported = set(re.findall(r"^(?:from|import) (\w+)", content, re.MULTILINE))
        assert imported <= {"ebbtide", "my_policy"}
    (command,) = re.findall(r"^python (-m pytest .*)$", page, re.MULTILINE)
    done = subprocess.run([sys.executable, *command.split()], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE)
