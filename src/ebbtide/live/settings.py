"""What a live run is: where it is kept, and what it was started with."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ebbtide._files import write_text
from ebbtide.errors import InputError

# Stands for the newest run where an id is asked for.
LATEST = "latest"

# Below the working directory, unless another place is named.
RUNS = Path(".ebbtide") / "runs"


@dataclass(frozen=True)
class LiveSettings:
    """Written once, when a run begins.

    Attributes:
        run: Its id.
        provider: `local` or `ec2`.
        policy: Its name.
        sweep: The sweep, as parsed.
        sweep_folder: Where programs of it run.
        store: Where checkpoints, orders and reports are.
        options: Of the provider.
        seed: Of all chance.
    """

    run: str
    provider: str
    policy: str
    sweep: dict[str, Any]
    sweep_folder: str
    store: str
    options: dict[str, Any]
    seed: int = 0


@dataclass(frozen=True)
class RunFolder:
    """Where one run is kept.

    Attributes:
        path: Its folder.
    """

    path: Path

    @property
    def settings(self) -> LiveSettings:
        """What it was started with.

        Raises:
            InputError: There is no such run.
        """
        try:
            return LiveSettings(**json.loads((self.path / "run.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise InputError(f"there is no run in {self.path}; `ebbtide status` lists those there are") from None

    def begin(self, settings: LiveSettings) -> None:
        """Make it."""
        (self.path / "logs").mkdir(parents=True)
        write_text(self.path / "run.json", json.dumps(asdict(settings), indent=2) + "\n")

    @property
    def journal(self) -> Path:
        """What its controller remembers."""
        return self.path / "journal.sqlite"

    def log_of(self, trial_id: str) -> Path:
        """What a trial's program printed."""
        return self.path / "logs" / f"{trial_id}.log"


def new_run_id(name: str) -> str:
    """From a sweep's name, which may be anything, and the time."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower() or "run"
    return f"{plain[:40]}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid() % 1000:03d}"


def known_runs(runs: Path) -> list[RunFolder]:
    """All runs that are kept there, the newest last.

    Raises:
        InputError: There is none.
    """
    known = sorted((path for path in runs.glob("*/run.json")), key=lambda path: path.stat().st_mtime)
    if not known:
        raise InputError(f"there is no run in {runs}; `ebbtide run -- python train.py` begins one")
    return [RunFolder(path.parent) for path in known]


def find_run(runs: Path, run: str | None) -> RunFolder:
    """The run of that id; without one, or for `latest`, the newest.

    Raises:
        InputError: There is none.
    """
    known = known_runs(runs)
    if run in (None, LATEST):
        return known[-1]
    found = next((folder for folder in known if folder.path.name == run), None)
    if found is None:
        names = ", ".join(folder.path.name for folder in known)
        raise InputError(f"there is no run {run!r} in {runs}; known: {names}")
    return found
