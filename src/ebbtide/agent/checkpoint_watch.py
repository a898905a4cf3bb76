"""Watches, copies and stores the checkpoint folder of a program that does not use `ebbtide.trial`.

A save counts as complete once no file has changed for a moment, no process is writing a file, no file has a
temporary name, and no file that former saves had is missing. The folder is copied before it is uploaded, so that
the program can write the next checkpoint meanwhile; a copy during which anything changed is discarded. Before the
program is asked to end, it is paused for an instant: if nothing is being saved then, the folder is complete, even
if the signal kills the program. Logs and databases may change at any time: they are stored with each checkpoint,
but delay none (see `logs`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ebbtide.agent.leaving import Leaving
from ebbtide.agent.logs import Logs
from ebbtide.agent.open_files import KeptOpen, copy_databases, open_for_writing
from ebbtide.agent.saves import FormerSaves, is_of_one_save
from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.storage.checkpoints.tree import Tree, TreeEntry, copy_tree, remove_tree, tree_of

_LOGGER = logging.getLogger(__name__)

# A folder unchanged for this long is at rest: between the files of one checkpoint, programs pause less.
QUIET_S = 1.0
_LOOK_S, _LOOK_SHARE = 0.2, 10.0
# A folder that never comes to rest is copied anyway after this time; otherwise it would never be stored.
_RESTLESS_S = 6.0
# Logs alone are stored no more often than this.
_LOGS_EVERY_S = 10.0
# A file or folder with a temporary name counts as being saved for this long after its last change.
_TEMPORARY_S = 5.0
# Longest wait for a program to finish a save before it is asked to end.
MOST_WAIT_S = 10.0
# A step this long after a save began shows that the save is over, unless the program saves beside the training.
_GOES_ON_S = 0.2
# A file that changes again after this long without a change is being rewritten.
_GROWS_S = 0.5
# If a save is not stored for this long after its last change, the program's log says why.
_TOLD_AFTER_S = 30.0
_HOLD_S = 0.1
_AGAIN_S = 0.05
# A copy is made only if the free space on the disk is this multiple of its size.
_ROOM = 1.2

# When the first and the last change of a save were seen, in monotonic seconds.
Span = tuple[float, float]


class Mirror:
    """Watches the checkpoint folder of one program, in a thread of its own.

    Args:
        folder: Folder in which the program writes checkpoints; its present content is stored already.
        copies: Folder for copies, on the same disk.
        pid: Process id of the program, which leads a process group.
        found: Called, from the thread, with the folder of a complete copy, and when its save was written.
        is_busy: Whether an upload is under way, during which no copy is made.
        say: Called, from the thread, with a line for the program's log.
        bad: Folders from which training has failed before its first step.
        quiet_s: Seconds without a change after which the folder is at rest.
        runtime: Gives the time and the threads.

    Attributes:
        written: When the last save was written, set by `has_new`; None: it was written as the program ended.
    """

    def __init__(
        self,
        folder: Path,
        copies: Path,
        pid: int,
        found: Callable[[Path, Span], None],
        is_busy: Callable[[], bool],
        *,
        say: Callable[[str], None] = lambda _line: None,
        bad: Sequence[Tree] = (),
        quiet_s: float = QUIET_S,
        runtime: Runtime = RUNTIME,
    ) -> None:
        if pid <= 1:
            raise ValueError(f"{pid} is no id of a program's process")
        self._runtime = runtime
        self._folder, self._copies, self._pid = folder, copies, pid
        self._found, self._is_busy, self._say, self._quiet_s = found, is_busy, say, quiet_s
        # The folder as it is stored, as it was before the newest save began, and as of the last look.
        self._stored = self._before_save = self._last = tree_of(folder) or Tree()
        self._saves = FormerSaves(self._stored, bad)
        self._logs = Logs(folder)
        self._logs.look(self._last)
        self._kept_open = KeptOpen(self._logs.is_log)
        self._since_s = self._began_s = self._stored_s = self._rested_s = runtime.monotonic_s()
        # Times of the last step, and of the first two steps well after the newest save began; ns since 1970.
        self._stepped_ns = 0
        self._gone_on_ns: list[int] = []
        self._newest_s = self._began_s
        self._saves_beside = False
        self.written: Span | None = None
        # Since when the newest save at rest has been held back as incomplete; None: it is not.
        self._lacks_since_s: float | None = None
        self._at_rest: frozenset[TreeEntry] | None = None
        self._copied: Path | None = None
        self._number = 0
        self._told: set[str] = set()
        self._closed = runtime.flag()
        self._lock, self._judging = threading.Lock(), threading.Lock()
        self._leaving = Leaving(pid, folder, say)
        runtime.begin(self._watch)

    def close(self) -> None:
        """Stop watching; a copy under way is discarded."""
        self._closed.set()

    def stepped(self) -> None:
        """Note that the program has made a step: it is not saving, unless it does so beside the training."""
        self._stepped_ns = round(self._runtime.epoch_s() * 1e9)
        if len(self._gone_on_ns) < 2 and self._runtime.monotonic_s() >= self._began_s + _GOES_ON_S:
            self._gone_on_ns.append(self._stepped_ns)

    def ask_to_leave(self) -> None:
        """Ask the program to end, at a moment when it saves nothing, if there is one soon. Returns at once."""
        self._runtime.begin(self._leave)

    @property
    def has_asked(self) -> bool:
        """True once the program has been asked to end; it may have ended before, during the wait for a save."""
        return self._leaving.has_asked

    def is_running(self) -> bool:
        """Return whether a process of the program, other than its first, still runs after a request to end."""
        return self._leaving.is_running()

    def kill_rest(self) -> None:
        """Note that the program's remaining processes are killed: files still being written are incomplete."""
        self._leaving.killed = True

    def has_new(self, exit_code: int) -> bool:
        """Return whether the program, which has ended, left a complete checkpoint that is not copied yet.

        Args:
            exit_code: Exit code of the program; negative: it was ended by a signal.
        """
        with self._lock:
            tree = tree_of(self._folder)
            if tree is None or not tree.entries or self._state(tree) == self._state(self._stored):
                return False
            self._logs.look(tree)
            if self._at_rest is not None and self._state(tree, of_logs=False) == self._at_rest:
                self.written = self._newest_s, self._since_s
            if exit_code == 0 or self._state(tree, of_logs=False) == self._at_rest:
                return True
            # SIGTERM came while nothing was being saved, so everything written since was saved in response to it,
            # and is complete, unless the program failed meanwhile or was killed.
            is_told = self._at_rest is not None and exit_code == -signal.SIGTERM and not self._leaving.killed
            if exit_code < 0 and not is_told:
                return False
            changed = self._changed(tree, self._before_save)
            return not any(map(self._saves.is_temporary, changed)) and not self._saves.missing(
                changed, _paths(tree)
            )

    def _watch(self) -> None:
        cpu_s = 0.0
        # Large folders are scanned less often: scanning takes a tenth of a core at most.
        while not self._closed.wait(max(_LOOK_S, _LOOK_SHARE * cpu_s)):
            began_s = time.thread_time()
            try:
                self._look(self._runtime.monotonic_s())
            except OSError as error:
                self._tell(f"checkpoints are not stored: {error}")
            cpu_s = time.thread_time() - began_s

    def _look(self, now_s: float) -> None:
        tree = tree_of(self._folder)
        if tree is None:
            self._since_s = now_s
            return
        if tree == self._last and tree == self._stored:
            self._rested_s = now_s
            return
        logs = self._kept_open.paths
        with self._judging:
            self._see(tree, now_s)
        waits_s = now_s - self._since_s
        if waits_s >= self._quiet_s:
            self._rested_s = now_s
        elif now_s - self._rested_s < _RESTLESS_S:
            return
        if self._state(tree) == self._state(self._stored) or not tree.entries or self._is_busy():
            return
        is_log_alone = self._state(tree, logs, of_logs=False) == self._state(self._stored, logs, of_logs=False)
        if is_log_alone and now_s - self._stored_s < _LOGS_EVERY_S:
            return
        with self._judging:
            why = self._why_not(tree, now_s)
        if not why:
            with self._lock:
                self._copy(tree, now_s)
        elif waits_s >= _TOLD_AFTER_S:
            self._tell(f"checkpoints are not stored: {why}")

    def _see(self, tree: Tree, now_s: float) -> None:
        """Note what has changed since the last look, and whether a new save has begun."""
        before, self._last = self._last, tree
        self._logs.look(tree)
        logs = self._kept_open.paths
        now, then, stored = (self._state(each, logs, of_logs=False) for each in (tree, before, self._stored))
        if now == then:
            return
        if then == stored:
            self._begin(now_s)
        elif self._writes_beside(before, tree):
            self._saves_beside = True
        elif self._begins_again(before, tree, now_s):
            # The previous save was not stored in time, but its set of files is learned all the same.
            if self._saves.learn(self._changed(before, self._before_save, logs), self._began_s, self._since_s):
                self._before_save = before
            self._begin(now_s)
        self._since_s = now_s

    def _begin(self, now_s: float) -> None:
        self._began_s = self._newest_s = now_s
        self._gone_on_ns = []

    def _begins_again(self, before: Tree, tree: Tree, now_s: float) -> bool:
        """Return whether a new save begins: the last one was over, or it was complete and a file is rewritten."""
        written = self._changed(before, self._before_save)
        missing = self._saves.missing(written, _paths(before))
        if self._has_gone_on(missing):
            # Files of the last save may be seen only after the step that follows it.
            gone_on_ns = self._gone_on_ns[1 if missing else 0]
            if any(entry.mtime_ns > gone_on_ns for entry in set(tree.of("file")).difference(before.entries)):
                return True
        if not written or missing or not self._saves.knows(written):
            return False
        former = {entry.path: entry for entry in before.of("file") if entry.path in set(written)}
        again = [entry for entry in tree.of("file") if entry.path in former and entry != former[entry.path]]
        return any(
            entry.inode != former[entry.path].inode
            or entry.size_bytes <= former[entry.path].size_bytes
            or now_s - self._since_s >= _GROWS_S
            for entry in again
        )

    def _why_not(self, tree: Tree, now_s: float) -> str:
        """Return why the folder holds no complete save now; empty: it holds one, or the wait has timed out."""
        opened = open_for_writing({entry.inode for entry in tree.of("file")})
        saving = self._kept_open.look(tree, opened, now_s)
        if saving:
            inode = next(entry.inode for entry in tree.of("file") if entry.path == saving[0])
            return f"{saving[0]} is open for writing in process {opened[inode]}"
        rest_s = now_s - self._since_s
        changed = self._changed(tree, self._before_save, self._kept_open.paths)
        young = _written_since(tree, self._runtime.epoch_s() - _TEMPORARY_S)
        temporary = [path for path in changed if path in young and self._saves.is_temporary(path)]
        if temporary:
            return f"{temporary[0]} has a temporary name"
        missing = self._saves.missing(changed, _paths(tree))
        why = ""
        if not changed or self._has_gone_on(missing):
            pass
        elif missing:
            why = f"former saves had {missing[0]}, too"
        elif self._saves.knows(changed):
            pass
        elif self._stepped_ns and not self._saves_beside:
            # The number of files is unknown, but a program that waits for its save makes no step meanwhile.
            why = f"the program has made no step since it wrote {changed[0]}"
        elif rest_s < self._saves.pause_s:
            why = f"the files of former saves came up to {self._saves.pause_s:.1f} s apart"
        if not why:
            self._lacks_since_s = None
            return ""
        if self._lacks_since_s is None:
            self._lacks_since_s = now_s
        return why if now_s - self._lacks_since_s < self._saves.patience_s else ""

    def _writes_beside(self, before: Tree, tree: Tree) -> bool:
        """Return whether a save begun before the last step still goes on: a file with its number was added."""
        if not self._has_gone_on():
            return False
        begun = set(self._changed(before, self._before_save))
        new = {
            entry.path
            for entry in tree.of("file")
            if entry.mtime_ns > self._stepped_ns and entry.path not in begun
        }
        return is_of_one_save(begun, new.intersection(self._changed(tree, self._before_save)))

    def _has_gone_on(self, missing: Sequence[str] = ()) -> bool:
        """Return whether the program has made a step since it began to save, and does not save beside training.

        A step made before the save may be reported after it began, so two are needed if something is missing.
        """
        return not self._saves_beside and len(self._gone_on_ns) >= (2 if missing else 1)

    def _copy(self, tree: Tree, now_s: float) -> None:
        if self._copied is None:
            remove_tree(self._copies)
            self._copies.mkdir(parents=True)
        if self._copied is not None and not self._has_room(tree):
            # No upload of it is under way; without it there may be room.
            remove_tree(self._copied)
            self._copied = None
        if not self._has_room(tree):
            # `has_new` finds what is there when the program has ended.
            self._tell("there is no room on the disk for a copy of the checkpoint folder; it is stored at its end")
            return
        self._number += 1
        copy = self._copies / f"{self._number:06d}"
        logs = self._kept_open.paths
        try:
            # A database's journal comes and goes.
            copy_tree(tree, self._folder, copy, self._stored, self._copied, may_be_gone=self._logs.is_log)
            copy_databases(tree, self._folder, copy)
            # The folder of a program that has died is judged by `has_new`: its last file may be incomplete.
            after = tree_of(self._folder)
            is_whole = (
                _state_of(self._pid) not in ("Z", "")
                and after is not None
                and self._state(after, logs, of_logs=False) == self._state(tree, logs, of_logs=False)
                and not self._kept_open.look(
                    after, open_for_writing({entry.inode for entry in after.of("file")}), now_s
                )
            )
        except FileNotFoundError:
            is_whole = False
        except OSError:
            remove_tree(copy)
            raise
        if not is_whole or self._closed.is_set():
            # `has_new` judges what is there when the program has ended.
            remove_tree(copy)
            return
        if self._copied is not None:
            remove_tree(self._copied)
        self._lacks_since_s = None
        self._saves.keep(tree)
        if self._saves.learn(self._changed(tree, self._before_save, logs), self._began_s, self._since_s):
            self._before_save = tree
        self._stored, self._stored_s, self._copied = tree, now_s, copy
        self._found(copy, (self._newest_s, self._since_s))

    def _has_room(self, tree: Tree) -> bool:
        """Return whether the disk has room for a copy, which shares unchanged files with the previous one."""
        shared = () if self._copied is None else self._stored.entries
        needed = sum(entry.data_bytes for entry in set(tree.of("file")).difference(shared))
        return needed * _ROOM <= shutil.disk_usage(self._copies).free

    def _is_at_rest(self, tree: Tree, now_s: float) -> bool:
        with self._judging:
            self._see(tree, now_s)
            return not self._why_not(tree, now_s)

    def _state(self, tree: Tree, kept_open: Collection[str] = (), *, of_logs: bool = True) -> frozenset[TreeEntry]:
        """Entries of a folder without the times of its folders, which may change while the content does not.

        Args:
            tree: The entries of the folder.
            kept_open: Paths of files that are left out.
            of_logs: Whether logs and databases count.
        """
        return frozenset(
            replace(entry, mtime_ns=0) if entry.kind == "folder" else entry
            for entry in tree.entries
            if entry.kind != "file"
            or (entry.path not in kept_open and (of_logs or not self._logs.is_log(entry.path)))
        )

    def _changed(self, tree: Tree, before: Tree, kept_open: Collection[str] = ()) -> list[str]:
        """Paths of files and links that are new or have changed, without logs."""
        new = self._state(tree, kept_open, of_logs=False) - self._state(before, of_logs=False)
        return sorted(entry.path for entry in new if entry.kind != "folder")

    def _tell(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._say(f"ebbtide: {line}")

    def _leave(self) -> None:
        until_s = self._runtime.monotonic_s() + MOST_WAIT_S
        while not self._closed.is_set() and (now_s := self._runtime.monotonic_s()) < until_s:
            with held(self._pid) as is_held:
                if not is_held:
                    break
                tree = tree_of(self._folder)
                if tree is not None and self._is_at_rest(tree, now_s):
                    self._at_rest = self._state(tree, of_logs=False)
                    # The paused program writes nothing before it receives the signal.
                    self._leaving.begin()
                    break
            self._runtime.sleep(_AGAIN_S)
        self._leaving.begin()
        while not self._closed.is_set() and self._leaving.go_on():
            self._runtime.sleep(_LOOK_S)


@contextlib.contextmanager
def held(pid: int) -> Iterator[bool]:
    """Pause a process group inside the `with` block. Gives False if the group does not exist."""
    try:
        os.killpg(pid, signal.SIGSTOP)
    except ProcessLookupError:
        yield False
        return
    try:
        until_s = time.monotonic() + _HOLD_S
        while _state_of(pid) not in ("T", "t", "Z", "") and time.monotonic() < until_s:
            time.sleep(0.001)
        yield True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGCONT)


def _written_since(tree: Tree, time_s: float) -> set[str]:
    """Paths of entries that have changed since a time, seconds since 1970."""
    return {entry.path for entry in tree.entries if entry.mtime_ns / 1e9 >= time_s}


def _paths(tree: Tree) -> list[str]:
    return [entry.path for entry in tree.entries]


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
