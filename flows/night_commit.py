"""A night as a commit: parameters, lock file, batches and reports on a branch of their own.

The working tree, the index and the branch that is checked out stay as they are: the commit is made with an index
of its own. `git checkout` of it and `dvc pull` bring back the data, models and reports of that night.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from ebbtide.base.utc import iso
from ebbtide.errors import InputError

# What DVC and the parameters say of a night, beside its reports.
_KEPT = ("params.yaml", "dvc.yaml", "dvc.lock")
_INPUTS = Path("pipelines/inputs")


def versioned_files(reports: Path, jobs: Sequence[Path] = ()) -> list[Path]:
    """The files by which a night is found again, and those of its reports that DVC does not keep.

    Args:
        reports: Folder of the reports.
        jobs: Files of jobs and own policies, also if Git does not track them; those outside this folder are left
            out.
    """
    found = [Path(name) for name in _KEPT]
    for file in jobs:
        found += _with_links(Path(os.path.abspath(file)))
    found += sorted(_INPUTS.glob("*/*.dvc")) + sorted(_INPUTS.glob("speeds/*.json"))
    found += sorted(reports.glob("*.json")) + sorted(reports.glob("*.csv"))
    return [file for file in dict.fromkeys(found) if file.exists()]


def _with_links(file: Path) -> Iterator[Path]:
    """A file below this folder as Git names it, and the links on the way to it."""
    here = Path.cwd()
    if not file.is_relative_to(here):
        # This folder may be named by a link to it.
        file = file.resolve()
    if not file.is_relative_to(here):
        return
    path, parts = here, file.relative_to(here).parts
    for number, part in enumerate(parts, start=1):
        path = path / part
        if path.is_symlink():
            yield path.relative_to(here)
            yield from _with_links(Path(os.path.abspath(path.parent / path.readlink()), *parts[number:]))
            return
    yield file.relative_to(here)


def commit_night(branch: str, began_s: float, files: Sequence[Path]) -> str:
    """Commit some files, and all changes of files that Git tracks, to a branch; returns the commit.

    A night that is continued after a kill makes one commit: that of the same night is replaced.

    Args:
        branch: Name of the branch; it begins at the commit that is checked out.
        began_s: Start of the night, seconds since 1970, for the commit's message and date.
        files: Files to add, also those that Git ignores.

    Raises:
        InputError: This is no Git repository, it has no commit, or the branch is checked out.
    """
    head, newest = check_branch(branch)
    message = f"Night of {iso(began_s)}"
    parent = newest
    if newest and _git("log", "-1", "--format=%s", newest) == message:
        parent = _git("rev-parse", "--verify", "--quiet", f"{newest}^1", may_fail=True)
    with tempfile.TemporaryDirectory(prefix="ebbtide-night-") as folder:
        own = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        _git("read-tree", head, environment=own)
        _git("add", "--update", environment=own)
        _git("add", "--force", "--", *map(str, files), environment=own)
        tree = _git("write-tree", environment=own)
    date = {name: f"@{int(began_s)} +0000" for name in ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE")}
    parents = ["-p", parent] if parent else []
    # The code of the night, which may be newer than that of the last.
    parents += ["-p", head] if head != parent and not _is_ancestor(head, parent) else []
    commit = _git("commit-tree", tree, *parents, "-m", message, environment=_identity() | date)
    _git("update-ref", f"refs/heads/{branch}", commit, newest)
    return commit


def check_branch(branch: str) -> tuple[str, str]:
    """Return the commit that is checked out and the newest of the branch, empty if there is no such branch yet.

    Raises:
        InputError: This is no Git repository, it has no commit, the name is not one that a branch can have here,
            or the branch is checked out, here or elsewhere.
    """
    head = _git("rev-parse", "--verify", "HEAD^{commit}")
    # It expands names such as @{-1}.
    if branch == "HEAD" or _git("check-ref-format", "--branch", branch, may_fail=True) != branch:
        raise InputError(f"is {branch!r}, which Git allows for no branch", field="nightly.branch")
    above = [f"refs/heads/{parent}" for parent in list(PurePosixPath(branch).parents)[:-1]]
    listed = _git("for-each-ref", "--format=%(refname)", f"refs/heads/{branch}/", *above).splitlines()
    if others := [name for name in listed if name in above or name.startswith(f"refs/heads/{branch}/")]:
        other = others[0].removeprefix("refs/heads/")
        raise InputError(f"is {branch}, which cannot stand beside branch {other}", field="nightly.branch")
    places = _git("worktree", "list", "--porcelain").splitlines()
    if f"branch refs/heads/{branch}" in places:
        raise InputError(f"is {branch}, which is checked out; name a branch of its own", field="nightly.branch")
    return head, _git("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}", may_fail=True)


def _is_ancestor(commit: str, of: str) -> bool:
    if not of:
        return False
    command = ["git", "merge-base", "--is-ancestor", commit, of]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _identity() -> dict[str, str]:
    """The author of commits, where Git has none: a service's account often has no name."""
    if _git("config", "user.email", may_fail=True):
        return {}
    who = {"NAME": "Ebbtide", "EMAIL": "ebbtide@localhost"}
    return {f"GIT_{role}_{key}": text for role in ("AUTHOR", "COMMITTER") for key, text in who.items()}


def _git(*words: str, may_fail: bool = False, environment: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            ["git", *words], env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise InputError("git is not installed; set nightly.branch to null in params.yaml") from None
    if done.returncode and not may_fail:
        raise InputError(f"git {words[0]} failed: {done.stderr.strip()[-300:]}; nightly.branch may be null")
    return done.stdout.strip() if not done.returncode else ""
