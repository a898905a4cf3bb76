"""The set of files that a program writes at each save, learned from its former saves.

Names that differ in their numbers alone are the same file of different saves: `checkpoint-4/model.pt` and
`checkpoint-8/model.pt`. A save that lacks a file that former saves had is not complete yet. Where no former save
is known, a save counts as complete once nothing changes any more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ebbtide.agent.logs import is_log
from ebbtide.storage.checkpoints.tree import Tree, TreeEntry

_REMEMBERED = 4
# A save that lacks files is waited for this many times as long as former saves took, within these limits.
_PATIENCE, _LEAST_PATIENCE_S, _MOST_PATIENCE_S = 3.0, 10.0, 60.0
# Files of one save may be apart by up to this multiple of the longest pause that was seen.
_PAUSE, _MOST_PAUSE_S = 1.5, 15.0
# Files of a restored checkpoint count as those of one save if their times of change are this close.
_TOGETHER_NS = 10_000_000_000

_NUMBER = re.compile(r"\d+")
# What differs between the names of one file of several saves: a count, or a value such as `val_loss=-1.5e-05`.
_VALUE = re.compile(r"(?:(?<==)[-+])?\d+(?:\.\d+)?(?:e[-+]?\d+)?|(?<==)[-+]?(?:nan|inf)\b", re.IGNORECASE)
# Hashes and random names, as Orbax uses them; there may be any number of such files.
_HASH = re.compile(r"(?<![0-9a-z])(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,})(?![0-9a-z])", re.I)
_ANY = "*"
# A shard's name states how many shards its save has; a folder with such a name is one of several runs.
_SHARD = re.compile(r"^(?P<before>.*?)(?P<number>\d+)-of-(?P<count>\d{1,6})(?P<after>[^/]*)$", re.IGNORECASE)
_MOST_SHARDS = 100_000

# Names of files and folders that are renamed once they are complete.
_TEMPORARY = re.compile(
    r"\.(?:tmp|temp|partial|part|incomplete|swp|writing)$|[-_.]tmp[-_.\d]|orbax-checkpoint-tmp|^tmp[-_.]"
    r"|[-_.]tmp$|[-_.](?:saving|uncommitted|in_?progress)$|^tmp\w{8}$|~$",
    re.IGNORECASE,
)
# Known names that begin with a dot; others, at the top of the folder, are often renamed.
_DOTTED = frozenset({".metadata", ".zgroup", ".zarray", ".zattrs", ".zmetadata"})


def is_temporary(path: str, lasting: Collection[str] = ()) -> bool:
    """Return whether an entry, or a folder on the way to it, has a temporary name, to be renamed later.

    Args:
        path: Path of the entry in the checkpoint folder.
        lasting: Names, with # for numbers, that begin with a dot and were not renamed in a former save.
    """
    names = path.split("/")
    hidden = names[0].startswith(".") and names[0] not in _DOTTED and _name(names[0]) not in lasting
    return hidden or any(_TEMPORARY.search(name) for name in names)


@dataclass(frozen=True)
class _Save:
    """The files that changed together.

    Attributes:
        paths: Their paths.
        names: Number of files with each name, numbers aside.
        numbers: The first numbers in their names.
        began_s: When the first of them changed, in monotonic seconds.
        ended_s: When the last of them changed.
    """

    paths: tuple[str, ...]
    names: Counter[str]
    numbers: frozenset[str]
    began_s: float
    ended_s: float

    def joined(self, other: _Save) -> _Save:
        return _Save(
            paths=self.paths + other.paths,
            names=self.names + other.names,
            numbers=self.numbers | other.numbers,
            began_s=self.began_s,
            ended_s=other.ended_s,
        )


class FormerSaves:
    """Files and durations of a program's former saves, by which it is judged whether a new save is complete.

    Args:
        tree: The folder when the program starts, with the checkpoint that it resumes from.
        bad: Folders with checkpoints from which training has failed before its first step.
    """

    def __init__(self, tree: Tree, bad: Iterable[Tree] = ()) -> None:
        self._lasting: set[str] = set()
        self.keep(tree)
        newest = _newest(tree)
        self._saves = [self._save(newest, 0.0, 0.0)] if newest else []
        self._bad = [self._save(_newest(each), 0.0, 0.0).names for each in bad]
        self._longest_s = 0.0
        self._pause_s = 0.0

    def keep(self, tree: Tree) -> None:
        """Note the content of a folder that is stored: what begins with a dot there is not going to be renamed."""
        tops = {entry.path.split("/")[0] for entry in tree.entries}
        self._lasting |= {_name(top) for top in tops if top.startswith(".")}

    def is_temporary(self, path: str) -> bool:
        """Return whether an entry has a temporary name, by what former saves had."""
        return is_temporary(path, self._lasting)

    def knows(self, changed: Iterable[str]) -> bool:
        """Return whether former saves had files of all these names, numbers aside."""
        return set(map(_name, changed)) <= {name for save in self._saves for name in save.names}

    @property
    def patience_s(self) -> float:
        """Seconds for which the rest of a save that lacks files is waited for."""
        return min(max(_LEAST_PATIENCE_S, _PATIENCE * self._longest_s), _MOST_PATIENCE_S)

    @property
    def pause_s(self) -> float:
        """Longest pause between the files of one save, as far as known."""
        return min(_PAUSE * self._pause_s, _MOST_PAUSE_S)

    def missing(self, changed: Iterable[str], present: Iterable[str]) -> list[str]:
        """Names, with # for numbers, that a save lacks.

        Args:
            changed: Paths of the files that have changed since the last complete save.
            present: Paths of all files.
        """
        new = self._save(changed, 0.0, 0.0)
        if not new.names:
            return []
        names = new.names
        if self._saves and not names & self._saves[-1].names:
            # The changed files may be the rest of the last save.
            names = names + self._saves[-1].names
        needed: dict[str, int] = {}
        for name in {name for save in self._saves for name in save.names}:
            counts = [save.names[name] for save in self._saves if name in save.names]
            # Only what most saves have is needed: a file may be written once, or with the best save only.
            if 2 * len(counts) > len(self._saves):
                needed[name] = 1 if _ANY in name else min(counts)
        lacking = [name for name, count in needed.items() if names[name] < count]
        if names in self._bad and not any(save.names == names for save in self._saves):
            lacking.append("more files than those that training has failed from")
        return sorted(lacking) + _missing_shards(new.paths, set(present))

    def learn(self, changed: Iterable[str], began_s: float, ended_s: float) -> bool:
        """Remember which files have changed together.

        Args:
            changed: Paths of the files that have changed since the last complete save.
            began_s: When the first of them was seen to have changed, in monotonic seconds.
            ended_s: When the last of them was.

        Returns:
            Whether they are a save; False: by now they are known to be only the beginning of one.
        """
        new = self._save(changed, began_s, ended_s)
        if not new.names:
            return True
        last = self._saves[-1] if self._saves else None
        if last is not None and not last.names & new.names:
            if last.numbers & new.numbers:
                # The rest of a save whose beginning was taken for all of it.
                self._replace(last.joined(new), new.began_s - last.ended_s)
                return True
            before = self._saves[-2] if len(self._saves) > 1 else None
            if before is not None and before.names == new.names:
                pause_s = last.began_s - before.ended_s
                if pause_s < new.began_s - last.ended_s:
                    self._replace(before.joined(last), pause_s)
                    return False
        self._saves = [*self._saves, new][-_REMEMBERED:]
        self._longest_s = max(self._longest_s, ended_s - began_s)
        return True

    def _save(self, changed: Iterable[str], began_s: float, ended_s: float) -> _Save:
        # Files that a killed save left under temporary names belong to no save.
        paths = tuple(path for path in changed if not self.is_temporary(path))
        numbers = frozenset(found[0] for path in paths if (found := _NUMBER.search(path)))
        return _Save(paths, Counter(map(_name, paths)), numbers, began_s, ended_s)

    def _replace(self, save: _Save, pause_s: float) -> None:
        # Earlier saves may be incomplete, too.
        self._saves = [save]
        self._pause_s = max(self._pause_s, pause_s)
        self._longest_s = max(self._longest_s, save.ended_s - save.began_s)


def is_of_one_save(begun: Iterable[str], new: Iterable[str]) -> bool:
    """Return whether new files share a number with begun ones, as files of one save do: `step-8/a`, `step-8/b`."""
    return not set(filter(None, map(_numbers, begun))).isdisjoint(map(_numbers, new))


def _numbers(path: str) -> tuple[str, ...]:
    """The numbers in the first part of a path that has any."""
    return next((found for part in path.split("/") if (found := tuple(_NUMBER.findall(part)))), ())


def _name(path: str) -> str:
    return _VALUE.sub("#", _HASH.sub(_ANY, path))


def _newest(tree: Tree) -> list[str]:
    """Paths of the entries that seem to make up the newest save in a restored folder."""
    files = sorted((each for each in tree.of("file") if not is_log(each.path)), key=lambda each: -each.mtime_ns)
    found: list[TreeEntry] = []
    number = next((match[0] for each in files if (match := _NUMBER.search(each.path))), "")
    for each in files:
        if found and found[-1].mtime_ns - each.mtime_ns > _TOGETHER_NS:
            break
        if _may_be_of(each, number):
            found.append(each)
    # Links may not have kept their times, so these do not count.
    return [each.path for each in found] + [each.path for each in tree.of("link") if _may_be_of(each, number)]


def _may_be_of(entry: TreeEntry, number: str) -> bool:
    """Return whether an entry has no number, or that of the newest save."""
    match = _NUMBER.search(entry.path)
    return match is None or match[0] == number


def _missing_shards(changed: Iterable[str], present: set[str]) -> list[str]:
    """Names of shards that are missing, by the number of shards that others of the same save state."""
    found = set()
    for path in changed:
        match = _SHARD.match(path)
        if match is None or not 0 < int(match["count"]) <= _MOST_SHARDS:
            continue
        count, digits = int(match["count"]), len(match["number"])
        before, after = match["before"], f"-of-{match['count']}{match['after']}"
        names = (f"{before}{each:0{digits}d}{after}" for each in range(count + 1))
        # Shards are counted from 0 or from 1.
        if sum(name in present for name in names) < count:
            found.add(_name(path))
    return sorted(found)
