"""`dvc repro` with one Prefect server for all stages: `python -m pipelines repro [--keep-lock] [STAGE ...]`."""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ebbtide.base.files import replacing

_LOCK = Path("dvc.lock")


def main(words: Sequence[str]) -> None:
    """Run the pipeline.

    With `--keep-lock`, `dvc.lock` is afterwards what it was: weights trained on another processor differ in their
    last digits, and a demonstration is no reason to commit other models than those that were reviewed. What was
    computed stays in DVC's cache of runs, so that the next `dvc repro` computes nothing again.
    """
    from flows.parameters import check_parameters
    from flows.pipeline import pipeline

    check_parameters()
    targets = [word for word in words if word != "--keep-lock"]
    if len(targets) == len(words):
        state = pipeline(targets, return_state=True)
    else:
        with _lock_kept():
            state = pipeline(targets, return_state=True)
    sys.exit(0 if state.is_completed() else 1)


@contextmanager
def _lock_kept() -> Iterator[None]:
    """Put `dvc.lock` back at the end, also when this process is asked to end or its terminal is closed."""
    kept = _LOCK.read_bytes() if _LOCK.exists() else None
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        yield
    finally:
        if kept is not None:
            with replacing(_LOCK) as temporary:
                temporary.write_bytes(kept)
