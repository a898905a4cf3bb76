"""The settings that a live run was started with, and the folder in which it is kept."""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ebbtide.base.files import write_secret, write_text
from ebbtide.clouds.unique_names import unique_name
from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue, default_catalogue

# Stands for the newest run where an id is asked for.
LATEST = "latest"

# Below the working directory, unless another place is named.
RUNS = Path(".ebbtide") / "runs"

# Providers whose machines cost money; the last is several of the others at once.
SEVERAL = "several"
# Who rents nothing out: prices are replayed, and costs are what they would be.
SIMULATED = ("local", "replay")
RENTED = ("ec2", "gcp", "skypilot", SEVERAL)

# The state that is shown for a run that cannot be read.
UNREADABLE = "cannot be read"

# Of run.json, as its field `schema_version`; 0 where a file has none. Counted up whenever an older Ebbtide would
# misread what is written.
SCHEMA_VERSION = 5

# Real seconds without a controller after which machines end themselves, where settings name no other time.
_LOCAL_CONTROLLER_LIMIT_S, _CONTROLLER_LIMIT_S = 60.0, 900.0


@dataclass(frozen=True)
class LiveSettings:
    """Settings that a run was started with; written once, when it begins.

    Attributes:
        run: Id of the run, by which its user names it: unique in its folder, or in its database.
        provider: Provider of machines: `local`, `ec2`, `gcp`, `skypilot`, or `several` for more than one cloud.
        policy: Name of the policy that decides; where a file defines it, with the file's absolute path.
        sweep: The sweep as plain values, defaults filled in.
        sweep_folder: Absolute path of the user's code.
        store: Folder or `s3://bucket/prefix` for checkpoints, orders and reports, of this run alone.
        options: Further settings that the provider needs, by name.
        seed: Seed of all random numbers of the run.
        parameters: Parameters of the policy that differ from its defaults, by name.
        journal: Address of the database of Postgres that keeps its journal; empty: it is a file in its folder.
        fingerprint: Fingerprint of its key, which tells it from other runs with its id; empty: an older Ebbtide
            began it, and its machines and its storage are named by its id alone.
    """

    run: str
    provider: str
    policy: str
    sweep: dict[str, Any]
    sweep_folder: str
    store: str
    options: dict[str, Any]
    seed: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    journal: str = ""
    fingerprint: str = ""

    @property
    def unique_name(self) -> str:
        """Name of the run wherever it meets other people's runs: in an account, in a bucket, in MLflow."""
        return unique_name(self.run, self.fingerprint)

    @property
    def controller_limit_s(self) -> float:
        """Real seconds without their controller after which machines save and end themselves."""
        if self.provider == "local":
            return _LOCAL_CONTROLLER_LIMIT_S
        # Of several clouds it is the same.
        own: dict[str, Any] = next((self.options[name] for name in RENTED if name in self.options), {})
        return float(own.get("controller_limit_s", _CONTROLLER_LIMIT_S))


@dataclass(frozen=True)
class RunFolder:
    """The folder in which one run is kept.

    Attributes:
        path: Path of the folder.
    """

    path: Path

    @property
    def settings(self) -> LiveSettings:
        """Settings that the run was started with, from `run.json`; an older schema version is migrated when read.

        Raises:
            InputError: There is no such run, its file is damaged, or a newer Ebbtide wrote it.
        """
        file = self.path / "run.json"
        try:
            return decode_settings(json.loads(file.read_text(encoding="utf-8")), file)
        except FileNotFoundError:
            raise InputError(f"there is no run in {self.path}; `ebbtide status` lists those there are") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"holds no settings of a run: {error}", file=file) from None

    def begin(self, settings: LiveSettings, catalogue: Catalogue | None = None) -> None:
        """Make the folder, with the catalogue in it, and last the settings, with which the run counts as begun.

        Args:
            settings: What the run was started with.
            catalogue: Instance types and list prices; None: those that ship with Ebbtide.
        """
        (self.path / "logs").mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)
        # The one that ships is not copied: a run that is resumed by a later version finds its new types, too.
        if catalogue is not None and catalogue is not default_catalogue():
            catalogue.write(self.catalogue_file)
        content = {"schema_version": SCHEMA_VERSION} | asdict(settings)
        write_text(self.path / "run.json", json.dumps(content, indent=2) + "\n", mode=0o600)

    @property
    def is_begun(self) -> bool:
        """True if the run was written down whole; if not, the folder was left by a process that was killed."""
        return (self.path / "run.json").exists()

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
    def key(self) -> bytes:
        """The run's key, with which messages to and from its machines are sealed; made where there is none.

        Raises:
            InputError: It cannot be read or made.
        """
        path = self.path / "key"
        try:
            with suppress(FileExistsError):
                write_secret(path, secrets.token_hex(32))
            return bytes.fromhex(path.read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            raise InputError(f"the run's key cannot be read or made: {error}", file=path) from None

    @property
    def journal(self) -> Path:
        """Path of the journal where it is a file, which may not exist yet; `journal_of` finds it anywhere."""
        return self.path / "journal.sqlite"

    def log_of(self, trial_id: str) -> Path:
        """Path of the file with what a trial's program printed."""
        return self.path / "logs" / f"{trial_id}.log"


@dataclass(frozen=True)
class UnreadableRun:
    """A run whose settings or journal cannot be read: damaged, or written by a newer Ebbtide.

    Attributes:
        run: Name of the run's folder, which is its id.
        why: Why it cannot be read, in one line.
    """

    run: str
    why: str

    def as_plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"run": self.run, "state": UNREADABLE, "why": self.why}


def decode_settings(content: Any, file: Path) -> LiveSettings:
    """The settings in a `run.json`.

    Args:
        content: The file's content as plain values, of this schema version or an older one.
        file: Path of the file, for errors.

    Raises:
        InputError: A newer Ebbtide wrote it, or it holds no settings of a run.
    """
    if not isinstance(content, dict):
        raise InputError("holds no settings of a run: a mapping is needed", file=file)
    values = dict(content)
    version = values.pop("schema_version", 0)
    check_schema_version(version, SCHEMA_VERSION, file)
    if version < 1:
        values.setdefault("seed", 0)
    if version < 2:
        values.setdefault("parameters", {})
    if version < 4:
        values.setdefault("journal", "")
    if version < 5:
        values.setdefault("fingerprint", "")
    if not isinstance(values.get("parameters"), dict):
        raise InputError("holds no settings of a run: its parameters are no mapping", file=file)
    try:
        return LiveSettings(**values)
    except TypeError as error:
        raise InputError(f"holds no settings of a run: {error}", file=file) from None


def check_schema_version(found: Any, newest: int, file: str | Path) -> None:
    """Refuse a file that a newer Ebbtide wrote.

    Args:
        found: The schema version in the file.
        newest: The newest schema version that this Ebbtide reads.
        file: Path of the file, or what else it is, for errors.

    Raises:
        InputError: The version is newer than that, or is no version.
    """
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise InputError(f"has no schema version: {found!r} is none", file=file)
    if found > newest:
        raise InputError(
            f"has schema version {found}, and this Ebbtide reads versions up to {newest}; upgrade ebbtide",
            file=file,
        )


# How many ids this process has given.
_given = itertools.count()


def new_run_id(name: str) -> str:
    """From a sweep's name, which may be anything, the time, the process, and how many it has begun before."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower() or "run"
    before = next(_given)
    again = f"-{before}" if before else ""
    return f"{plain[:40]}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid() % 1000:03d}{again}"


def _nothing(_folder: RunFolder) -> None:
    """Keep nothing else with a run."""


@dataclass(frozen=True)
class NewRun:
    """Folder, id and journal of a run that is about to begin.

    Attributes:
        runs: Folder in which runs are kept.
        run_id: Id of the run; empty: one from the name of what is trained and the time.
        keep: Writes what else the run needs into its folder, before it counts as begun.
        journal: Address of the database that keeps its journal; empty: it is a file in its folder.
    """

    runs: Path
    run_id: str = ""
    keep: Callable[[RunFolder], None] = _nothing
    journal: str = ""

    def folder(self, name: str) -> RunFolder:
        """The folder of the run, made if it does not exist; a killed process may have left one without a run.

        Args:
            name: Name of what is trained.

        Raises:
            InputError: There is a run with that id, or the id could lead to another place.
        """
        run_id = self.run_id
        if run_id and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", run_id):
            raise InputError(f"{run_id!r} is no name of a run; use letters, digits, - and _", field="name")
        folder = RunFolder((self.runs / (run_id or new_run_id(name))).resolve())
        if folder.is_begun:
            raise InputError(f"run {run_id} exists; `ebbtide resume {run_id}` continues it", field="name")
        folder.path.mkdir(parents=True, exist_ok=True)
        # Commands and what programs print may hold secrets; other users of this machine have no business in it.
        folder.path.chmod(0o700)
        return folder


def known_runs(runs: Path) -> list[RunFolder]:
    """All runs that are kept in a folder, the newest last.

    Raises:
        InputError: There is none.
    """
    known = sorted((path for path in runs.glob("*/run.json")), key=lambda path: path.stat().st_mtime)
    if not known:
        raise InputError(f"there is no run in {runs}; `ebbtide run -- python train.py` begins one")
    return [RunFolder(path.parent) for path in known]


def find_run(runs: Path, run: str | None) -> RunFolder:
    """The run of that id; without an id, or for `latest`, the newest.

    Raises:
        InputError: There is no such run.
    """
    known = known_runs(runs)
    if run in (None, LATEST):
        return known[-1]
    found = next((folder for folder in known if folder.path.name == run), None)
    if found is None:
        names = ", ".join(folder.path.name for folder in known)
        raise InputError(f"there is no run {run!r} in {runs}; known: {names}")
    return found
