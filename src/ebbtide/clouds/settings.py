"""The settings that a live run was started with, and the folder in which the run is kept."""

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
from ebbtide.clouds.unique_names import fingerprint_of, unique_name
from ebbtide.errors import InputError
from ebbtide.jobs.job_list import split_by_kind
from ebbtide.market.catalogue import Catalogue, default_catalogue

# Stands for the newest run in place of an id.
LATEST = "latest"

# Default folder of runs, relative to the working directory.
RUNS = Path(".ebbtide") / "runs"

# Name of the provider that combines several single ones.
SEVERAL = "several"
# Providers that rent nothing: prices are replayed, and costs are what they would have been.
SIMULATED = ("local", "replay")
RENTED = ("ec2", "gcp", "skypilot", SEVERAL)

# State shown for a run that cannot be read.
UNREADABLE = "cannot be read"

# Value of `schema_version` in run.json; a file without that field has version 0. It is raised whenever an older
# Ebbtide would misread the file.
SCHEMA_VERSION = 6

# Default real seconds without a controller after which machines end themselves.
_LOCAL_CONTROLLER_LIMIT_S, _CONTROLLER_LIMIT_S = 60.0, 900.0

# Length of a run's key.
_KEY_BYTES = 32


@dataclass(frozen=True)
class LiveSettings:
    """Settings that a run was started with; written once, when it begins.

    Attributes:
        run: Id of the run, as its user names it; unique in its folder.
        provider: Provider of machines: `local`, `ec2`, `gcp`, `skypilot`, or `several` for more than one cloud.
        policy: Name of the policy; if a file defines it, with the file's absolute path.
        sweep: The sweep as plain values, defaults filled in.
        sweep_folder: Absolute path of the user's code.
        store: Folder or `s3://bucket/prefix` for checkpoints, orders and reports of this run alone.
        options: Further settings that the provider needs, by name.
        seed: Seed of all random numbers of the run.
        parameters: Parameters of the policy that differ from its defaults, by name.
        journal: Address of the Postgres database that keeps its journal; empty: the folder has it as a file.
        fingerprint: Fingerprint of its key, which distinguishes it from other runs with the same id; empty: an
            older Ebbtide began it, and its machines and storage are named by its id alone.
        journal_name: Name of its journal in that database; empty: an older Ebbtide began it, and it is its id.
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
    journal_name: str = ""

    @property
    def unique_name(self) -> str:
        """Name of the run where it shares a place with other people's runs: an account, a bucket, MLflow."""
        return unique_name(self.run, self.fingerprint)

    @property
    def controller_limit_s(self) -> float:
        """Real seconds without a controller after which machines save and end themselves."""
        if self.provider == "local":
            return _LOCAL_CONTROLLER_LIMIT_S
        # Several clouds have the same limit (`_check_shared`), so the first one serves.
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
        """Settings that the run was started with, from `run.json`; an older schema version is migrated on reading.

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
        """Make the folder and write the catalogue, then the settings, whose presence marks the run as begun.

        Args:
            settings: Settings that the run was started with.
            catalogue: Instance types and list prices; None: those that ship with Ebbtide.
        """
        (self.path / "logs").mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)
        # The shipped catalogue is not copied, so that a later version that resumes the run has its new types.
        if catalogue is not None and catalogue is not default_catalogue():
            catalogue.write(self.catalogue_file)
        content = {"schema_version": SCHEMA_VERSION} | asdict(settings)
        write_text(self.path / "run.json", json.dumps(content, indent=2) + "\n", mode=0o600)

    @property
    def is_begun(self) -> bool:
        """True if the run was written completely; False: a killed process left the folder."""
        return (self.path / "run.json").exists()

    @property
    def catalogue_file(self) -> Path:
        """Path of the run's own catalogue; if there is no such file, the run uses the shipped one."""
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
        """The run's key, which seals messages to and from its machines; made if there is none.

        Raises:
            InputError: It cannot be read or made.
        """
        path = self.path / "key"
        try:
            with suppress(FileExistsError):
                write_secret(path, secrets.token_hex(_KEY_BYTES))
            key = bytes.fromhex(path.read_text(encoding="ascii"))
            if len(key) != _KEY_BYTES:
                raise ValueError(f"it has {len(key)} bytes of {_KEY_BYTES}")
            return key
        except (OSError, ValueError) as error:
            raise InputError(f"the run's key cannot be read or made: {error}", file=path) from None

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the run's key.

        Raises:
            InputError: The key cannot be read or made.
        """
        return fingerprint_of(self.key)

    @property
    def unique_name(self) -> str:
        """Name of the run where it shares a place with other people's runs, known before the run is begun.

        Raises:
            InputError: The run's key cannot be read or made.
        """
        return unique_name(self.path.name, self.fingerprint)

    @property
    def journal(self) -> Path:
        """Path of the journal's file, which may not exist; `journal_of` also finds a journal in a database."""
        return self.path / "journal.sqlite"

    def log_of(self, trial_id: str) -> Path:
        """Path of the file with the output of a trial's program."""
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
    """Decode the settings in a `run.json`.

    Args:
        content: The file's content as plain values, of this schema version or an older one.
        file: Path of the file, for errors.

    Raises:
        InputError: A newer Ebbtide wrote the file, or it holds no settings of a run.
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
    if version < 6:
        values.setdefault("journal_name", "")
        if isinstance(values.get("sweep"), dict):
            values["sweep"] = split_by_kind(values["sweep"])
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
        file: Path or description of the file, for errors.

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


# Counts the ids that this process has made.
_given = itertools.count()


def new_run_id(name: str) -> str:
    """Make an id from a name, the time, the process id, and the number of ids this process made before."""
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
        run_id: Id of the run; empty: an id made by `new_run_id`.
        keep: Writes further files that the run needs into its folder, before the run counts as begun.
        journal: Address of the database that keeps its journal; empty: the journal is a file in its folder.
    """

    runs: Path
    run_id: str = ""
    keep: Callable[[RunFolder], None] = _nothing
    journal: str = ""

    def folder(self, name: str) -> RunFolder:
        """Return the folder of the run, made if needed; a killed process may have left one without a run.

        Args:
            name: Name of the sweep or list of jobs.

        Raises:
            InputError: A run with that id exists, or the id has characters that a folder's name must not have.
        """
        run_id = self.run_id
        if run_id and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", run_id):
            raise InputError(f"{run_id!r} is no name of a run; use letters, digits, - and _", field="name")
        folder = RunFolder((self.runs / (run_id or new_run_id(name))).resolve())
        if folder.is_begun:
            raise InputError(f"run {run_id} exists; `ebbtide resume {run_id}` continues it", field="name")
        folder.path.mkdir(parents=True, exist_ok=True)
        # Commands and programs' output may hold secrets, so other users of this machine get no access.
        folder.path.chmod(0o700)
        return folder


def known_runs(runs: Path) -> list[RunFolder]:
    """Return all runs in a folder, the newest last.

    Raises:
        InputError: There is no run.
    """
    known = sorted((path for path in runs.glob("*/run.json")), key=lambda path: path.stat().st_mtime)
    if not known:
        raise InputError(f"there is no run in {runs}; `ebbtide run -- python train.py` begins one")
    return [RunFolder(path.parent) for path in known]


def find_run(runs: Path, run: str | None) -> RunFolder:
    """Find a run by its id; without an id, or for `latest`, the newest.

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
