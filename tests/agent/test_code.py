"""The user's code on its way to machines."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from functools import partial
from pathlib import Path

import pytest

from ebbtide.agent import folders
from ebbtide.agent.code_files import code_files
from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.errors import InputError
from ebbtide.storage.objects import FolderStore


def test_it_comes_out_as_it_went_in(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    (folder / "package").mkdir(parents=True)
    (folder / "train.py").write_text("print()\n")
    (folder / "package" / "run.sh").write_text("true\n")
    (folder / "package" / "run.sh").chmod(0o755)
    for hidden in (".git", "__pycache__"):
        (folder / hidden).mkdir()
        (folder / hidden / "x").write_text("not code")
    content = folders.packed(folder)
    assert content == folders.packed(folder)
    store = FolderStore(tmp_path / "objects")
    store.put_once("runs/a/code.tar.gz", content)
    folders.unpack(store, "runs/a/code.tar.gz", tmp_path / "out")
    assert sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")) == [
        "package",
        "package/run.sh",
        "train.py",
    ]
    assert (tmp_path / "out" / "package" / "run.sh").stat().st_mode & 0o100
    # Again changes nothing.
    folders.unpack(store, "runs/a/code.tar.gz", tmp_path / "out")


def test_no_code_is_an_empty_folder(tmp_path: Path) -> None:
    """Of a command that needs none."""
    (tmp_path / "none").mkdir()
    store = FolderStore(tmp_path / "objects")
    store.put_once("code", folders.packed(tmp_path / "none"))
    folders.unpack(store, "code", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_what_would_leave_the_folder_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))
    store = FolderStore(tmp_path / "objects")
    store.put_once("bad", buffer.getvalue())
    with pytest.raises(tarfile.TarError):
        folders.unpack(store, "bad", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "outside").exists()


def test_links_lead_to_code_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "code"
    (folder / "inside").mkdir(parents=True)
    (folder / "inside" / "real.py").write_text("x = 1\n")
    (folder / "link.py").symlink_to("inside/real.py")
    (folder / "data").symlink_to(tmp_path)
    with tarfile.open(fileobj=io.BytesIO(folders.packed(folder))) as tar:
        assert tar.getnames() == ["inside/real.py", "link.py"]
        assert all(member.isreg() for member in tar)
    assert "data is a link to a folder, and is not sent" in caplog.text


@pytest.mark.parametrize("target", ["../credentials", "inside", ".env", "{absolute}"])
def test_a_link_to_what_is_no_code_is_refused_by_name(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (tmp_path / "credentials").write_text("secret")
    (folder / ".env").write_text("secret")
    # By way of another link, too.
    (folder / "inside").symlink_to("../credentials")
    (folder / "data.txt").symlink_to(target.format(absolute=tmp_path / "credentials"))
    with pytest.raises(InputError, match=r"is a link to .* would be sent to machines"):
        folders.packed(folder)


@pytest.mark.parametrize("target", ["conf/secrets.yaml", "prod.env", "private.txt", "vault/a.txt"])
def test_a_link_to_what_is_left_out_is_refused(target: str, tmp_path: Path) -> None:
    """The link has a harmless name; a target that the user says is code may be linked."""
    folder = tmp_path / "code"
    for name in ("conf/secrets.yaml", "prod.env", "private.txt", "vault/a.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("password: hunter2hunter2\n")
    (folder / ".ebbtideignore").write_text("private.txt\nvault/\n")
    (folder / "settings.txt").symlink_to(target)
    with pytest.raises(InputError, match=rf"settings.txt is a link to {target}, which is no code"):
        code_files(folder)
    (folder / ".ebbtideignore").write_text("!prod.env\n!secrets.yaml\n")
    assert folder / "settings.txt" in code_files(folder).files


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_an_archive_with_links_is_none_of_ours(tmp_path: Path, kind: bytes) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        entry = tarfile.TarInfo("inside")
        entry.type, entry.linkname = kind, "/etc/passwd"
        tar.addfile(entry)
    store = FolderStore(tmp_path / "objects")
    store.put_once("bad", buffer.getvalue())
    with pytest.raises(tarfile.TarError, match="no plain file"):
        folders.unpack(store, "bad", tmp_path / "out")


def test_data_are_not_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MOST_BYTES", 10)
    (tmp_path / "images.bin").write_bytes(b"0" * 11)
    with pytest.raises(InputError, match=r"the largest file is images\.bin"):
        folders.packed(tmp_path)


def test_only_the_code_that_the_run_began_with_is_unpacked(tmp_path: Path) -> None:
    """Whoever has a machine's role can write to storage, and all machines of the run would run it."""
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(f"print({name!r})\n")
    ours = folders.packed(tmp_path / "ours")
    store, key = FolderStore(tmp_path / "objects"), folders.code_key("a", ours)
    store.put_once(key, folders.packed(tmp_path / "theirs"))
    with pytest.raises(tarfile.TarError, match="not what was stored"):
        folders.unpack(store, key, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    store.delete(key)
    store.put_once(key, ours)
    folders.unpack(store, key, tmp_path / "out")
    assert (tmp_path / "out" / "train.py").read_text() == "print('ours')\n"


def test_a_hundred_mebibytes_are_sent_to_each_machine_at_most(tmp_path: Path) -> None:
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(101 << 20)
    with pytest.raises(InputError, match=r"holds 101 MiB, and 100 are sent to each machine at most"):
        folders.packed(tmp_path)


def code_of(folder: Path) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(folders.packed(folder))) as tar:
        return set(tar.getnames())


def written(folder: Path, *names: str, text: str = "x") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_keys_and_credentials_stay_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secrets = (
        *("keys/id_rsa", "keys/server.pem", "tls.key", "credentials.env", "credentials.json", ".aws/credentials"),
        *(".netrc", ".env", "kubeconfig", "deploy/prod.kubeconfig", "client_secret_12.json", "secrets.yaml"),
    )
    written(tmp_path, *secrets)
    written(tmp_path, "my-project-1234.json", text='{"type": "service_account", "private_key": "-----BEGIN"}')
    written(tmp_path, "deploy_key", text="-----BEGIN OPENSSH PRIVATE KEY-----\n")
    code = ("train.py", "credentials.py", "secrets.py", "tokenizer.json", "data/tokens.npy", "monkey.txt")
    written(tmp_path, *code)
    written(tmp_path, "hub_token.txt")
    assert code_of(tmp_path) == {*code, "hub_token.txt"}
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("left out" in line and "client_secret_12.json" in line and "more" in line for line in told)
    assert any("credentials.py, hub_token.txt, secrets.py: sent to machines" in line for line in told)
    # Who names a file as none is believed; a .gitignore that takes all JSON back names no secret.
    written(tmp_path, ".gitignore", text="!*.json\n")
    assert "credentials.json" not in code_of(tmp_path)
    written(tmp_path, ".ebbtideignore", text="!credentials.json\nhub_token.txt\n")
    assert {"credentials.json", *code} == code_of(tmp_path)


def test_folders_of_earlier_runs_stay_here(tmp_path: Path) -> None:
    """Before, a folder of runs beside the code went to machines and storage, with each run's key and orders."""
    (tmp_path / "train.py").write_text("print()\n")
    (tmp_path / "runs" / "notes.txt").parent.mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("mine")
    begun = RunFolder(tmp_path / "runs" / "first")
    begun.begin(LiveSettings("first", "local", "reactive", {}, ".", str(begun.path / "objects"), {}))
    assert begun.fingerprint
    (begun.path / "objects").mkdir()
    (begun.path / "objects" / "order").write_text("sealed")
    found = code_files(tmp_path)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in found.files) == ["runs/notes.txt", "train.py"]
    assert found.suspects == ()


def test_what_is_ignored_stays_here_as_git_has_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(
        tmp_path,
        ".gitignore",
        text="# data\n/data/\n*.pt\n!keep.pt\nbuild/\nlogs/**/*.txt\nnote[0-9].md\n\\#odd\nsub/here.csv\nspace\\ \n",
    )
    sent = ("train.py", "keep.pt", "other/data/a.csv", "build", "logs/a.csv", "notes.md", "here.csv")
    written(tmp_path, *sent)
    written(tmp_path, "data/a.csv", "model.pt", "deep/model.pt", "deep/build/x.o", "logs/a.txt", "logs/b/c/d.txt")
    written(tmp_path, "note1.md", "#odd", "sub/here.csv", "deep/own/x.csv", "deep/own/y.csv")
    written(tmp_path, "deep/own/.gitignore", text="x.csv\n")
    with caplog.at_level("INFO", "ebbtide.progress"):
        assert code_of(tmp_path) == {*sent, "deep/own/y.csv"}
    assert "code: 8 files, less than 0.1 MiB sent to machines; ignored: " in caplog.text
    written(tmp_path, ".ebbtideignore", text="!model.pt\n!data/\nother\n")
    assert code_of(tmp_path) == {*sent, "deep/own/y.csv", "data/a.csv", "model.pt", "deep/model.pt"} - {
        "other/data/a.csv"
    }


_PATTERNS = """foo/**/bar.txt
**/deep.txt
dir/*
!dir/keep.txt
\\#hash
x?z
t*
[!a]b.txt
/rooted.txt
sub/rooted2.txt
abc/**
up.TXT
/private/
"""
_NAMES = (
    *("foo/bar.txt", "foo/q/bar.txt", "q/deep.txt", "dir/k.txt", "dir/keep.txt", "#hash", "xyz", "tttt"),
    *(
        "cb.txt",
        "ab.txt",
        "rooted.txt",
        "q/rooted.txt",
        "sub/rooted2.txt",
        "q/sub/rooted2.txt",
        "abc/x/y",
        "up.txt",
    ),
    *("excluded.txt", "plain.txt", "private/customers.csv", "q/private/x", "of_root.ini", "settings_local.py"),
)


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_ignored_is_what_git_ignores_in_the_whole_repository(tmp_path: Path) -> None:
    """Rules of folders above that of the code were not read: databases and keys went to machines."""
    repository, code = tmp_path / "repository", tmp_path / "repository" / "deep" / "code"
    code.mkdir(parents=True)
    run = partial(subprocess.run, cwd=code, check=False, capture_output=True, text=True)
    run(["git", "init", "-q", repository], check=True)
    (repository / ".git/info").mkdir(exist_ok=True)
    (repository / ".git/info/exclude").write_text("excluded.txt\n")
    (repository / ".gitignore").write_text("of_root.ini\n")
    # Some editors begin files with a mark of their encoding.
    (repository / "deep/.gitignore").write_text("\ufeffsettings_local.py\n", encoding="utf-8")
    (code / ".gitignore").write_text(_PATTERNS)
    for name in _NAMES:
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("x")
    ignored = set(run(["git", "check-ignore", "-z", "--stdin"], input="\0".join(_NAMES)).stdout.split("\0")) - {""}
    sent = {path.relative_to(code).as_posix() for path in code_files(code).files}
    assert {"of_root.ini", "settings_local.py", "excluded.txt", "private/customers.csv"} <= ignored
    assert sent == set(_NAMES) - ignored
    # Who names a folder that the repository ignores as a whole has it sent.
    (repository / ".gitignore").write_text("/deep/code/\n")
    assert "of_root.ini" in {path.name for path in code_files(code).files}


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize(
    ("of_root", "of_folder"),
    [
        ("*\n!*/\n!*.py\n", ""),
        ("*\n!*.py\n!*/\n", ""),
        ("*.csv\n", "!data/\n"),
        ("*.csv\n", "!data\n"),
        ("!\nfoo\\\n[z-a]\n[a-\\]\n*.csv\n", "!keep.csv\n"),
        ("[[:digit:]].csv\n/pkg/[!a-m]*.py\n", "**/x.csv\n"),
    ],
)
def test_what_is_taken_back_is_as_git_has_it(of_root: str, of_folder: str, tmp_path: Path) -> None:
    names = ("train.py", "pkg/a.py", "pkg/z.py", "pkg/data/x.csv", "pkg/data/1.csv", "pkg/keep.csv", "notes.txt")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / ".gitignore").write_text(of_root)
    (tmp_path / "pkg/.gitignore").write_text(of_folder)
    run = partial(subprocess.run, cwd=tmp_path, check=False, capture_output=True, text=True)
    run(["git", "init", "-q"], check=True)
    listed = run(["git", "ls-files", "--others", "--exclude-standard"]).stdout.split()
    sent = {path.relative_to(tmp_path).as_posix() for path in code_files(tmp_path).files}
    assert sent == {name for name in listed if not name.rpartition("/")[2].startswith(".")}


def test_a_repository_that_ignores_the_code_s_folder_keeps_its_other_rules(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("experiments/\nmy_keys.txt\n*.secret\n")
    folder = tmp_path / "experiments" / "a"
    folder.mkdir(parents=True)
    for name in ("train.py", "my_keys.txt", "db.secret"):
        (folder / name).write_text("x")
    assert [path.name for path in code_files(folder).files] == ["train.py"]


def test_what_may_be_a_secret_by_its_name_or_folder_is_named(tmp_path: Path) -> None:
    suspects = ("secrets/prod.yaml", "credentials/db.txt", "passwords.txt", "api_keys.json", "apikeys.yaml")
    plain = ("tokens.json", "tokenizer/vocab.txt", "keys.txt", "secrets/load.py")
    for name in (*suspects, *plain):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert sorted(path.as_posix() for path in code_files(tmp_path).suspects) == sorted(suspects)


def test_what_may_be_a_secret_by_its_content_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "config.yaml").write_text("aws_access_key_id: AKIAIOSFODNN7EXAMPLE\n")
    (tmp_path / "database.ini").write_text("url = postgresql://me:hunter2hunter2@host/db\n")
    (tmp_path / "settings.py").write_text("HF = 'hf_abcdefghijklmnopqrstuv'\n")
    (tmp_path / "secrets.py").write_text("WANDB = '0123456789abcdef'\n")
    (tmp_path / "train.py").write_text("url = f'postgresql://{user}:{password}@host/db'\n")
    (tmp_path / "bundle.txt").write_text("Bag Attributes\n-----BEGIN PRIVATE KEY-----\n")
    (tmp_path / "README.md").write_text("A key looks like this:\n-----BEGIN PRIVATE KEY-----\n")
    found = code_files(tmp_path)
    suspects = ["config.yaml", "database.ini", "secrets.py", "settings.py"]
    assert [path.name for path in found.files] == ["README.md", *suspects, "train.py"]
    assert ([str(path) for path in found.secrets], [str(path) for path in found.suspects]) == (
        ["bundle.txt"],
        suspects,
    )
    found.warn()
    assert (
        "config.yaml, database.ini, secrets.py, settings.py: sent to machines with the code, and by name or content perhaps a secret"
        in caplog.text
    )
