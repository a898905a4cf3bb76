"""The files of a folder that are code: not hidden, not ignored, and no keys or credentials."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path, PurePosixPath

from ebbtide.errors import InputError

_LOGGER = logging.getLogger(__name__)
# Logger for what a run in the foreground shows.
_SHOWN = logging.getLogger("ebbtide.progress")

_NOT_CODE = frozenset({"__pycache__", "node_modules"})
# Files with patterns of what is not sent, in the syntax of .gitignore; the second takes precedence.
_IGNORING = (".gitignore", ".ebbtideignore")

# Files of a run's folder.
_RUN_FILES = ("run.json", "key")

# Names of files with keys and credentials, in lower case.
_SECRETS = (
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks"),
    *("*.keystore", "*.kdbx", "*.ppk", "*.env", "netrc", "_netrc", "pgpass", "pgpass.conf", "htpasswd"),
    *("kubeconfig", "kubeconfig.*", "*.kubeconfig", "credentials", "*credentials.json", "credentials.csv"),
    *("credentials.y*ml", "credentials.ini", "credentials.toml", "client_secret*.json"),
    *("service[-_]account*.json", "rootkey.csv", "*accesskeys.csv", "secrets.json", "secrets.y*ml"),
    *("secrets.toml", "secrets.ini", "env", "dotenv", "*.env.local", "rclone.conf", "boto.cfg", "*.tfstate"),
    *("*.tfstate.backup", "kaggle.json"),
)
# Content of private keys and service-account files; larger files are not read.
_KEY = re.compile(rb"^\s*-----BEGIN [A-Z ]*PRIVATE KEY", re.MULTILINE)
_ACCOUNT = re.compile(rb'"private_key"\s*:|"refresh_token"\s*:')
_MOST_READ_BYTES = 64 << 10
# Suffixes of programs and texts, which may have a key as an example in them.
_TEXTS = frozenset({".py", ".pyi", ".ipynb", ".md", ".rst"})
_PROGRAMS = frozenset({".py", ".ipynb", ".js", ".ts", ".r", ".jl"})

# A file with one of these words in its name may be a secret, if its suffix is not that of a program or of data; a
# program may be one by its content.
_WORDS = frozenset(
    {"token", "password", "passwords", "passwd", "secret", "secrets", "credential", "credentials"}
    | {"apikey", "apikeys"}
)
# Names of programs that hold little else.
_SECRET_PROGRAMS = frozenset({"secrets", "credentials", "passwords"})
_PAIRS = frozenset({"apikey", "privatekey", "accesskey", "secretkey"})
_PLAIN = frozenset(
    {"", ".txt", ".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".csv", ".sh", ".tfvars"}
)
_MOST_NAMED = 5
# Beginnings of keys and tokens: Hugging Face, OpenAI, GitHub, GitLab, Slack, AWS, Google, JWTs, private keys.
_VALUE = re.compile(
    r"(hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abps]-)\S{8}|(AKIA|ASIA)[0-9A-Z]{16}|AIza\S{30}|eyJ\S+\.eyJ"
    r"|\s*-----BEGIN [A-Z ]*PRIVATE KEY"
)
# The same within a text or a file, and an address with a password.
_WITHIN = re.compile(
    rb"\b(hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abps]-)[\w-]{16}|\b(AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza\S{30}"
    rb"|aws_secret_access_key\W+\w{16}|://[^/\s:@'\"]+:[^/\s:@'\"{}<>$]{6,}@"
)
# Named classes of characters in patterns of .gitignore.
_CLASSES = {
    "digit": "0-9",
    "alpha": "a-zA-Z",
    "alnum": "0-9a-zA-Z",
    "lower": "a-z",
    "upper": "A-Z",
    "space": " \t",
    "xdigit": "0-9a-fA-F",
}
# Value of a variable with the name of a secret. Shorter text, or text such as <|endoftext|>, is not secret.
_NAMED_VALUE = re.compile(r"[^<\[]\S{5}")


@dataclass(frozen=True)
class CodeFiles:
    """Files of a code folder that are sent to machines, and those that are left out.

    Attributes:
        files: Paths of the files that are sent.
        secrets: Paths below the folder of files that are left out as keys or credentials.
        suspects: Paths below the folder of files that are sent, although by name or content they may be secrets.
        ignored: Number of files and folders that are left out by ignore rules.
    """

    files: tuple[Path, ...]
    secrets: tuple[Path, ...] = ()
    suspects: tuple[Path, ...] = ()
    ignored: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all files that are sent."""
        return sum(path.stat().st_size for path in self.files)

    def tell_size(self) -> None:
        """Log how much is sent."""
        ignored = f"; ignored: {self.ignored}" if self.ignored else ""
        mib = self.size_bytes / (1 << 20)
        count = "1 file" if len(self.files) == 1 else f"{len(self.files)} files"
        size = f"{mib:.1f} MiB" if mib >= 0.1 else "less than 0.1 MiB"
        _SHOWN.info("code: %s, %s sent to machines%s", count, size, ignored)

    def warn(self) -> None:
        """Log which files are not sent, or perhaps should not be."""
        if self.secrets:
            _LOGGER.warning(
                "%s: left out of the code that is sent to machines, as keys or credentials; hand secrets over by "
                "`secrets` (--secret), or name a file that is none in .ebbtideignore, as !FILE",
                _named(self.secrets),
            )
        if self.suspects:
            _LOGGER.warning(
                "%s: sent to machines with the code, and by name or content perhaps a secret; name it in "
                ".ebbtideignore if it is",
                _named(self.suspects),
            )


def code_files(folder: Path) -> CodeFiles:
    """The files of a folder that are sent to machines.

    Raises:
        InputError: A file is a link to one that would not be sent itself.
    """
    found = _Search(folder)
    files = tuple(found.below(folder, found.rules_above))
    return CodeFiles(files, tuple(found.secrets), tuple(found.suspects), found.ignored)


def is_secret(path: Path) -> bool:
    """Return whether a file holds a key or credentials, judged by its name or its content."""
    name = path.name.lower()
    if any(fnmatch(name, pattern) for pattern in _SECRETS):
        return True
    content, is_text = _content_of(path), path.suffix.lower() in _TEXTS
    has_key = _KEY.match(content) if is_text else _KEY.search(content)
    return bool(has_key or (".json" in name and _ACCOUNT.search(content)))


def _content_of(path: Path) -> bytes:
    """The content of a small file; empty for others."""
    try:
        return b"" if path.stat().st_size > _MOST_READ_BYTES else path.read_bytes()
    except OSError:
        return b""


def sounds_secret(name: str) -> bool:
    """Return whether a name contains a word such as `token` or `password`, but not `tokenizer` or `tokens`."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    pairs = {f"{first}{second}" for first, second in pairwise(words)}
    return bool(_WORDS.intersection(words) or _PAIRS.intersection(pair.removesuffix("s") for pair in pairs))


def is_like_secret(name: str, value: object) -> bool:
    """Return whether a named value, or one nested in it, may be a secret, by its name or by what is in it."""
    if isinstance(value, Mapping):
        return any(is_like_secret(str(key), one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return any(is_like_secret(name, one) for one in value)
    if not isinstance(value, str):
        return False
    if _VALUE.match(value) or _WITHIN.search(value.encode(errors="replace")):
        return True
    return bool(_NAMED_VALUE.match(value)) and sounds_secret(name)


class _Search:
    """Walks a folder, and records what it leaves out."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._home = folder, folder.resolve()
        self.rules_above = tuple(_rules_above(self._home))
        self.secrets: list[Path] = []
        self.suspects: list[Path] = []
        self.ignored = 0

    def below(self, place: Path, rules: tuple[_Rule, ...]) -> Iterator[Path]:
        rules += tuple(_rules_of(self._in_home(place)))
        for path in sorted(place.iterdir()):
            below = path.relative_to(self._folder)
            if not _is_code(below):
                continue
            in_home = self._in_home(path)
            answer = _answer(rules, in_home)
            if answer is True:
                self.ignored += 1
            elif path.is_symlink() and path.is_dir():
                _LOGGER.warning("%s is a link to a folder, and is not sent to machines", path)
            elif path.is_dir():
                if not _is_of_runs(path):
                    yield from self.below(path, rules)
            elif path.is_file():
                sure = _answer((each for each in rules if each.is_ours), in_home) is False
                if not sure and is_secret(path):
                    self.secrets.append(below)
                    continue
                self._check_link(path, below, sure=sure)
                if not sure and _is_suspect(path, below):
                    self.suspects.append(below)
                yield path

    def _in_home(self, path: Path) -> Path:
        """The path without links on the way to the folder of the code."""
        return self._home / path.relative_to(self._folder)

    def _check_link(self, path: Path, below: Path, *, sure: bool) -> None:
        """Check that a link leads to a file that is sent itself; `sure`: the user says that it is no secret."""
        if path.is_symlink() and (_leads_out(path, self._home) or not (sure or self._is_sent(path.resolve()))):
            raise InputError(
                f"{below} is a link to {os.readlink(path)}, which is no code of this folder (outside, hidden, "
                "ignored or secret) and would be sent to machines; put a copy in its place, put the data into "
                "storage, or name the link in .ebbtideignore",
                file=self._folder,
            )

    def _is_sent(self, path: Path) -> bool:
        """Return whether a file of the folder is neither ignored, nor within an ignored folder, nor a secret."""
        rules, place = self.rules_above, self._home
        for part in path.relative_to(self._home).parts:
            rules += tuple(_rules_of(place))
            place /= part
            if _answer(rules, place) is True:
                return False
        return _answer((each for each in rules if each.is_ours), path) is False or not is_secret(path)


def _is_suspect(path: Path, below: Path) -> bool:
    """Return whether a file that is sent may be a secret, by its name or content."""
    suffix = path.suffix.lower()
    if suffix in _PROGRAMS:
        return path.stem.lower() in _SECRET_PROGRAMS or _WITHIN.search(_content_of(path)) is not None
    if suffix not in _PLAIN:
        return False
    is_named = any(map(sounds_secret, (*below.parts[:-1], path.stem)))
    return is_named or _WITHIN.search(_content_of(path)) is not None


def _leads_out(path: Path, home: Path) -> bool:
    """Return whether the target of a link is outside the folder, or in a hidden or excluded part of it."""
    target = path.resolve()
    return not target.is_relative_to(home) or not _is_code(target.relative_to(home))


def _is_code(path: Path) -> bool:
    return not any(part.startswith(".") or part in _NOT_CODE for part in path.parts)


def _is_of_runs(folder: Path) -> bool:
    """Return whether a folder is kept for a run: with its key, its journal and the code that was sent before."""
    return all((folder / name).is_file() for name in _RUN_FILES)


def _named(paths: Iterable[Path]) -> str:
    names = [str(path) for path in paths]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


@dataclass(frozen=True)
class _Rule:
    """A line of .gitignore: the paths below its folder that it matches, and whether it re-includes them."""

    place: Path
    pattern: re.Pattern[str]
    only_folders: bool
    takes_back: bool
    is_ours: bool

    def names(self, path: Path) -> bool:
        below = PurePosixPath(path.relative_to(self.place)).as_posix()
        return self.pattern.fullmatch(below) is not None and (not self.only_folders or path.is_dir())


def _answer(rules: Iterable[_Rule], path: Path) -> bool | None:
    """Return whether the last rule that matches a path ignores it; None: no rule matches."""
    answer = None
    for rule in rules:
        if rule.names(path):
            answer = not rule.takes_back
    return answer


def _rules_of(place: Path) -> Iterator[_Rule]:
    for name in _IGNORING:
        yield from _read_rules(place / name, place, is_ours=name == _IGNORING[1])


def _rules_above(home: Path) -> Iterator[_Rule]:
    """Rules of the repository that the folder is in, from its root down, without those of the folder itself."""
    root = next((each for each in (home, *home.parents) if (each / ".git").exists()), None)
    if root is None:
        return
    above = [each for each in reversed(home.parents) if each.is_relative_to(root)]
    for file, place in [(root / ".git/info/exclude", root), *((each / _IGNORING[0], each) for each in above)]:
        rules = list(_read_rules(file, place))
        # Rules by which a repository ignores the folder as a whole say nothing about what is in it.
        on_the_way = [each for each in (home, *home.parents) if each != place and each.is_relative_to(place)]
        if any(_answer(rules, each) for each in on_the_way):
            rules = [rule for rule in rules if not any(rule.names(each) for each in on_the_way)]
        yield from rules


def _read_rules(file: Path, place: Path, *, is_ours: bool = False) -> Iterator[_Rule]:
    try:
        lines = file.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        text = re.sub(r"(?<!\\)\s+$", "", line)
        if not text or text.startswith("#"):
            continue
        takes_back, text = text.startswith("!"), text.removeprefix("!")
        only_folders, text = text.endswith("/"), text.rstrip("/")
        if text:
            anywhere = "/" not in text
            pattern = _pattern_of(text.lstrip("/"), anywhere=anywhere)
            yield _Rule(place, pattern, only_folders, takes_back, is_ours)


def _pattern_of(text: str, *, anywhere: bool) -> re.Pattern[str]:
    """The regular expression of a pattern of .gitignore."""
    text = re.sub(r"\[:([a-z]+):\]", lambda named: _CLASSES.get(named[1], named[0]), text)
    found, at = r"(?:.*/)?" if anywhere else "", 0
    while at < len(text):
        if text.startswith("**/", at):
            found, at = found + r"(?:.*/)?", at + 3
        elif text.startswith("**", at):
            found, at = found + ".*", at + 2
        elif text[at] == "[" and "]" in text[at + 2 :]:
            end = text.index("]", at + 2)
            inner = text[at + 1 : end].replace("\\", "\\\\").replace("[", r"\[")
            found, at = found + "[" + re.sub(r"^!", "^", inner) + "]", end + 1
        else:
            one = text[at]
            if one == "\\" and at + 1 < len(text):
                at += 1
                one = re.escape(text[at])
            else:
                one = {"*": "[^/]*", "?": "[^/]"}.get(one, re.escape(one))
            found, at = found + one, at + 1
    try:
        return re.compile(found, re.DOTALL)
    except re.error:
        return re.compile(re.escape(text))
