"""A copy of this project to run the pipeline in, made small."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pipelines.__main__ import STAGES as FLOWS

ROOT = Path(__file__).parents[2]
# Stages that DVC makes of one, by its name.
GROUPS = {
    "solve": ("cookbook", "bids", "allocation", "portfolio", "deadline"),
    "execute": ("by-friday", "sweep", "by-morning", "array", "workflow"),
}
STAGES = [
    name
    for stage in FLOWS
    for name in ([f"{stage}@{one}" for one in GROUPS[stage]] if stage in GROUPS else [stage])
]

SMALL = {
    "ingest.generated.days": 20,
    "held_back.days": 9,
    "execute.starts": 2,
    "execute.runs.by-friday.starts": 1,
    "execute.runs.sweep.starts": 1,
    "execute.runs.array.starts": 2,
    "train_revpred.train_days": 4,
    "train_revpred.test_days": 2,
    "train_revpred.stride": 60,
    "measure_curves.source": "trained",
    "measure_curves.workloads": ["linear-regression", "gbt-regression"],
    "measure_curves.settings": [1, 3],
    "promote.curves": "gbt-regression",
    "calibrate_earlycurve.windows": [1],
    "fit_price_model.test_days": 2,
    "fit_spells.test_days": 2,
    "solve.cookbook.most": 20,
    "nightly.jobs": None,
    "nightly.branch": None,
    "promote.starts": 2,
    "promote.cookbook.most": 6,
}


class Project:
    """A copy of this project in a git repository of its own.

    Args:
        folder: Where.
        server: Of Prefect; empty: each stage has one of its own, as without any setting.

    Attributes:
        times_run: Number of times that `stages_run` ran each stage.
    """

    def __init__(self, folder: Path, server: str = "") -> None:
        self.folder, self.server = folder, server
        self.times_run: Counter[str] = Counter()
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for name in listed:
            if not name.startswith("tests/") and name != "dvc.lock" and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, folder / name)
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)

    def set(self, changes: Mapping[str, Any]) -> None:
        """Change parameters, named by their path with dots."""
        path = self.folder / "params.yaml"
        content = yaml.safe_load(path.read_text())
        for name, value in changes.items():
            *sections, key = name.split(".")
            section = content
            for part in sections:
                section = section[part]
            section[key] = value
        path.write_text(yaml.safe_dump(content, sort_keys=False))

    @property
    def environment(self) -> dict[str, str]:
        """For what is run in it."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        quiet = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PYTEST_"))}
        server = {"PREFECT_API_URL": self.server} if self.server else {}
        return {**quiet, "PATH": path, **server}

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Run a module of Python in it."""
        environment = {**self.environment, **environment}
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=self.folder,
            text=True,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a module of Python in it, to its end."""
        process = self.start(*words, **environment)
        output, errors = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    def repro(self) -> subprocess.CompletedProcess[str]:
        return self.run("dvc", "repro")

    def stages_run(self) -> list[str]:
        """Bring the pipeline up to date; which stages did that run?"""
        done = self.repro()
        assert done.returncode == 0, done.stdout + done.stderr
        found = [name for name in STAGES if f"Running stage '{name}'" in done.stdout]
        self.times_run.update(found)
        return found

    def stages_changed(self) -> list[str]:
        """The stages that a next run begins with; what depends on them is not among them."""
        done = self.run("dvc", "status", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return [name for name in STAGES if name in json.loads(done.stdout)]

    def outputs(self) -> dict[str, str]:
        """What each stage made, by the checksum of its content."""
        lock = yaml.safe_load((self.folder / "dvc.lock").read_text())
        return {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage.get("outs", ())}
