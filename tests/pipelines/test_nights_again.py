"""A night that is had back: its commit, its data in a store, and the same report byte for byte in a fresh clone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest
import yaml
from flows.cache_store import pull_cache, push_cache
from flows.collect import ACCEPTED as BATCHES
from flows.night_commit import check_branch, commit_night, versioned_files
from tests.pipelines.project import ROOT

from ebbtide.base.utc import DAY_S
from ebbtide.errors import InputError
from ebbtide.storage.objects import object_store

STAGES = {
    "stages": {
        "prices": {"cmd": "cp input prices", "deps": ["input"], "outs": ["prices"]},
        "models": {
            "cmd": "mkdir models && cp prices models/a && cp prices models/b",
            "deps": ["prices"],
            "outs": ["models"],
        },
        "report": {
            "cmd": "mkdir -p reports && cp models/a reports/report.html && cp models/b reports/metrics.json",
            "deps": ["models"],
            "outs": ["reports/report.html"],
            "metrics": [{"reports/metrics.json": {"cache": False}}],
        },
    }
}
NIGHT_S = 1_772_000_000.0


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def dvc(*words: str) -> str:
    return run(sys.executable, "-m", "dvc", *words)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a pipeline of three stages, committed."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{name}_NAME", "test")
        monkeypatch.setenv(f"{name}_EMAIL", "test@localhost")
    run("git", "init", "--quiet", "--initial-branch", "main")
    dvc("init", "--quiet")
    Path("dvc.yaml").write_text(yaml.safe_dump(STAGES))
    Path("params.yaml").write_text("seed: 1\n")
    (tmp_path / "outside.yaml").write_text("a secret")
    Path("behind.yaml").symlink_to(tmp_path / "outside.yaml")
    Path(".gitignore").write_text("/prices\n/models/\n/reports/\n")
    # As in this project.
    BATCHES.mkdir(parents=True)
    (BATCHES / ".gitignore").write_bytes((ROOT / BATCHES / ".gitignore").read_bytes())
    Path("input").write_text("the first night\n")
    run("git", "add", ".")
    run("git", "commit", "--quiet", "-m", "begin")
    return folder


@pytest.fixture
def bucket(aws_server: str, aws_credentials: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket of a server on this machine."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws_server)
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="nights")
    return "s3://nights"


def night(number: int, content: str) -> str:
    """One night: a new batch and new prices; what it made is committed, and pushed to a store by the test."""
    Path("input").write_text(content)
    Path("own.yaml").write_text(f"a job of {content}")
    batch = BATCHES / f"{number:06d}-b.csv"
    batch.write_text(f"batch {content}")
    dvc("add", "--quiet", str(batch))
    assert run("git", "diff", "--name-only", "--", str(BATCHES)) == ""
    dvc("repro", "--quiet")
    outside = Path("../outside.yaml")
    jobs = [Path("own.yaml").resolve(), outside, outside.resolve(), Path("behind.yaml"), Path("nowhere.yaml")]
    return commit_night("nightly", NIGHT_S + number * DAY_S, versioned_files(Path("reports"), jobs))


@pytest.mark.long
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("kind", ["s3", "folder"])
def test_a_night_two_weeks_old_is_restored_in_a_fresh_clone(
    project: Path, kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{request.getfixturevalue('bucket')}/pipeline" if kind == "s3" else str(tmp_path / "store")
    store = object_store(url)
    commits = [night(0, "the first night\n")]
    assert push_cache(store) == 3
    commits.append(night(14, "two weeks later\n"))
    assert push_cache(store) == 3
    assert push_cache(store) == 0
    # What was checked out, and its index, are as they were.
    assert run("git", "symbolic-ref", "--short", "HEAD") == "main"
    assert run("git", "diff", "--name-only") == "input"
    assert run("git", "log", "--format=%s", "nightly").splitlines()[:2] == [
        "Night of 2026-03-11T06:13:20Z",
        "Night of 2026-02-25T06:13:20Z",
    ]
    clone = tmp_path / "clone"
    run("git", "clone", "--quiet", str(project), str(clone))
    monkeypatch.chdir(clone)
    run("git", "checkout", "--quiet", commits[0])
    assert pull_cache(store) == 3
    dvc("checkout", "--quiet")
    assert Path("reports/report.html").read_text() == "the first night\n"
    assert Path("reports/metrics.json").read_text() == "the first night\n"
    assert Path("pipelines/inputs/batches/000000-b.csv").read_text() == "batch the first night\n"
    assert Path("own.yaml").read_text() == "a job of the first night\n"
    assert not Path("pipelines/inputs/batches/000014-b.csv").exists()
    assert dvc("repro") == "" or "up to date" in dvc("repro")
    # Code and parameters of that night, too.
    assert Path("input").read_text() == "the first night\n"


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_night_that_is_continued_makes_one_commit(project: Path, tmp_path: Path) -> None:
    night(0, "x")
    night(1, "y")
    # Killed after its commit, and continued with another report.
    Path("reports/nightly.json").write_text("{}")
    again = commit_night("nightly", NIGHT_S + DAY_S, versioned_files(Path("reports")))
    nights = run("git", "log", "--first-parent", "--format=%s", "nightly").splitlines()
    assert [line for line in nights if line.startswith("Night")] == [
        "Night of 2026-02-26T06:13:20Z",
        "Night of 2026-02-25T06:13:20Z",
    ]
    assert run("git", "show", f"{again}:reports/nightly.json") == "{}"
    for branch, place in (("main", "here"), ("nightly", "elsewhere")):
        if place == "elsewhere":
            run("git", "worktree", "add", "--quiet", str(tmp_path / "night"), "nightly")
        with pytest.raises(InputError, match=f"is {branch}, which is checked out; name a branch of its own"):
            commit_night(branch, NIGHT_S, [])


@pytest.mark.usefixtures("processes")
def test_a_job_behind_links_is_kept_with_them(project: Path, tmp_path: Path) -> None:
    Path("real").mkdir()
    Path("real/job.yaml").write_text("a job")
    Path("folder").symlink_to("real")
    Path("link.yaml").symlink_to("folder/job.yaml")
    (tmp_path / "other-name").symlink_to(project)
    found = versioned_files(Path("reports"), [Path("link.yaml"), tmp_path / "other-name" / "own.yaml"])
    assert {Path("link.yaml"), Path("folder"), Path("real/job.yaml")} <= set(found)
    commit = commit_night("nightly", NIGHT_S, found)
    run("git", "worktree", "add", "--quiet", str(tmp_path / "night"), commit)
    assert (tmp_path / "night" / "link.yaml").read_text() == "a job"
    Path("own.yaml").write_text("own")
    assert Path("own.yaml") in versioned_files(Path("reports"), [tmp_path / "other-name" / "own.yaml"])


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("branch", "problem"),
    [
        ("a b", "is 'a b', which Git allows for no branch"),
        ("-x", "is '-x', which Git allows for no branch"),
        ("HEAD", "is 'HEAD', which Git allows for no branch"),
        ("main/x", "is main/x, which cannot stand beside branch main"),
        ("kept", "is kept, which cannot stand beside branch kept/one"),
    ],
)
def test_a_branch_that_cannot_be_is_told_before_the_night(project: Path, branch: str, problem: str) -> None:
    run("git", "branch", "kept/one")
    run("git", "branch", "mainly")
    with pytest.raises(InputError, match=f"nightly.branch: {problem}"):
        check_branch(branch)
    check_branch("nightly/own")


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_the_code_of_a_later_commit_hides_no_night(project: Path) -> None:
    first = night(0, "x")
    run("git", "commit", "--quiet", "--allow-empty", "--date", "2026-03-01T00:00:00Z", "-m", "code B")
    night(1, "y")
    found = run("git", "rev-list", "-1", "--first-parent", "--before=2026-02-26 00:00 +0000", "nightly")
    assert found == first


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_what_a_store_lacks_or_has_instead_is_told(project: Path, tmp_path: Path) -> None:
    night(0, "x")
    store = object_store(tmp_path / "store")
    push_cache(store)
    keys = list(store.keys())
    cache = project / ".dvc" / "cache"
    spoilt: list[tuple[Callable[[Path], object], str]] = [
        (lambda path: path.write_bytes(b"other"), "has something else under"),
        (lambda path: path.unlink(), "the store lacks"),
    ]
    for spoil, problem in spoilt:
        for key in keys:
            (cache / key).unlink(missing_ok=True)
        os.chmod(tmp_path / "store" / keys[0], 0o600)
        spoil(tmp_path / "store" / keys[0])
        with pytest.raises(InputError, match=problem):
            pull_cache(store)
        assert not (cache / keys[0]).exists()


@pytest.mark.usefixtures("processes")
def test_without_a_repository_a_night_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(InputError, match=r"git rev-parse failed: .*; nightly.branch may be null"):
        commit_night("nightly", NIGHT_S, [])
