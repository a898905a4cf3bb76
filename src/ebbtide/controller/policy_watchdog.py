"""Looks after a controller from a second thread while its policy thinks, which may take long, or never end.

Meanwhile machines are told that their controller lives, a request of the user to stop is answered, and the limits
are kept: the policy is interrupted, as if it had answered nothing, and the run saves and gives back what it has.
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
# A policy may still answer for so long after its user has asked for the end.
_PATIENCE_S = 3.0
# One that has thought for so long without an answer is not kept alive any more: nothing comes of it.
_LONGEST_S = 3600.0


class PolicyInterruptedError(BaseException):
    """Raised in the middle of a policy; no `Exception`, since policies may catch those."""


class Attendant:
    """Knows whether a policy thinks, and interrupts it.

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
        # Held while it is decided whether to interrupt, and by the policy's thread as it enters and leaves.
        self._lock = threading.Lock()
        self._thinks_since_s: float | None = None
        self._asked_since_s: float | None = None
        self._thread_id = 0
        self._ended = threading.Event()

    def begin(self) -> None:
        """Look after the calling thread until `end`."""
        self._thread_id = threading.get_ident()
        threading.Thread(target=self._attend, name="ebbtide attendant", daemon=True).start()

    def end(self) -> None:
        """Look no more."""
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
                    # An interruption that was decided on arrives here at the latest.
                    with self._lock:
                        self._thinks_since_s = None
            except StopIteration:
                return
            except PolicyInterruptedError:
                # It may have arrived before that was noted.
                self._thinks_since_s = None
                _LOGGER.warning("the policy was interrupted, since the run is to end and it did not answer")
                return
            yield answer

    def look(self) -> None:
        """Look once: tell the machines, and interrupt a policy that does not answer while the user waits."""
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
                # What it looks at changes in another thread; without it no machine would hear of its controller.
                _LOGGER.warning("a look after the controller failed: %s", error)
