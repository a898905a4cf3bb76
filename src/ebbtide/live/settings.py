"""What a live run is: where it is kept, and what it was started with."""

from __future__ import annotations

import itertools
import json
import os
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ebbtide._files import write_text
from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue, default_catalogue

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

    def begin(self, settings: LiveSettings, catalogue: Catalogue | None = None) -> None:
        """Make the folder, with the settings and the catalogue in it.

        Args:
            settings: What the run was started with.
            catalogue: Instance types and list prices; None: those that ship with Ebbtide.
        """
        (self.path / "logs").mkdir(parents=True)
        # The one that ships is not copied: a run that is resumed by a later version finds its new types, too.
        if catalogue is not None and catalogue is not default_catalogue():
            catalogue.write(self.catalogue_file)
        write_text(self.path / "run.json", json.dumps(asdict(settings), indent=2) + "\n")

    @property
    def catalogue_file(self) -> Path:
        """Path of the run's own catalogue; no such file: the run has the one that ships with Ebbtide."""
        return self.path / "catalogue.json"

    @property
    def catalogue(self) -> Catalogue:
        """Instance types and list prices that the run was started with.

        Raises:
            InputError: Its own catalogue cannot be read.
        """
        return Catalogue.read(self.catalogue_file) if self.catalogue_file.exists() else default_catalogue()

    @property
    def journal(self) -> Path:
        """What its controller remembers."""
        return self.path / "journal.sqlite"

    def log_of(self, trial_id: str) -> Path:
        """What a trial's program printed."""
        return self.path / "logs" / f"{trial_id}.log"


# How many ids this process has given.
_given = itertools.count()


def new_run_id(name: str) -> str:
    """From a sweep's name, which may be anything, the time, the process, and how many it has begun before."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower() or "run"
    before = next(_given)
    again = f"-{before}" if before else ""
    return f"{plain[:40]}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid() % 1000:03d}{again}"


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
