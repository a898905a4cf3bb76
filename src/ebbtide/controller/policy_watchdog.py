"""Watches a controller from a second thread while its policy decides, which may take long or never end.

Meanwhile it sends heartbeats to the machines. If the user requests a stop, or a limit is reached, it interrupts
the policy as if that had answered nothing, so that the run saves its work and releases its machines.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator

from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.policies.api.actions import Action

_LOGGER = logging.getLogger(__name__)

_LOOK_S = 0.5
# Seconds that a policy has to answer after its user has requested a stop.
_PATIENCE_S = 3.0
# After this many seconds without an answer, heartbeats stop: nothing will come of the policy.
_LONGEST_S = 3600.0


class PolicyInterruptedError(BaseException):
    """Raised in the middle of a policy; not an `Exception`, since policies may catch those."""


class Attendant:
    """Watches whether a policy is deciding, and interrupts it.

    Args:
        is_asked: Whether the user has requested the end of the run.
        beat: Tells the machines that their controller lives.
        runtime: Gives the time.
        is_spent: Whether a limit is reached, so that the run has to end at once.
    """

    def __init__(
        self,
        is_asked: Callable[[], bool],
        beat: Callable[[], None],
        runtime: Runtime = RUNTIME,
        is_spent: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_asked, self._beat, self._runtime, self._is_spent = is_asked, beat, runtime, is_spent
        # Held by the attendant while it interrupts, and by the policy's thread as it enters and leaves the policy.
        self._lock = threading.Lock()
        self._thinks_since_s: float | None = None
        self._asked_since_s: float | None = None
        self._thread_id = 0
        self._ended = threading.Event()

    def begin(self) -> None:
        """Watch the calling thread until `end`."""
        self._thread_id = threading.get_ident()
        threading.Thread(target=self._attend, name="ebbtide attendant", daemon=True).start()

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()

    def interruptible(self, answers: Iterator[Action]) -> Iterator[Action]:
        """The answers of a policy, up to where it is interrupted."""
        while True:
            try:
                with self._lock:
                    self._thinks_since_s = self._runtime.monotonic_s()
                try:
                    answer = next(answers)
                finally:
                    # A pending interruption arrives here at the latest.
                    with self._lock:
                        self._thinks_since_s = None
            except StopIteration:
                return
            except PolicyInterruptedError:
                # The interruption may have come before this was reset above.
                self._thinks_since_s = None
                _LOGGER.warning("the policy was interrupted, since the run is to end and it did not answer")
                return
            yield answer

    def look(self) -> None:
        """Check once: send heartbeats, and interrupt a policy if a limit is reached or the user waits too long."""
        now_s = self._runtime.monotonic_s()
        if not self._is_asked():
            self._asked_since_s = None
        elif self._asked_since_s is None:
            self._asked_since_s = now_s
        since_s = self._thinks_since_s
        if since_s is None:
            return
        if now_s - since_s < _LONGEST_S:
            self._beat()
        is_patient = self._asked_since_s is None or now_s - max(since_s, self._asked_since_s) < _PATIENCE_S
        if is_patient and not self._is_spent():
            return
        with self._lock:
            if self._thinks_since_s is not None:
                # In CPython, the only way to end what another thread does; a call into C is ended when it returns.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread_id), ctypes.py_object(PolicyInterruptedError)
                )
                self._asked_since_s = now_s

    def _attend(self) -> None:
        while not self._ended.wait(_LOOK_S):
            try:
                self.look()
            except Exception as error:
                # The state changes in another thread, so a check may fail; heartbeats must not stop for that.
                _LOGGER.warning("a look after the controller failed: %s", error)
