"""`dvc repro` with one Prefect server for all stages: `python -m pipelines.repro [--keep-lock] [STAGE ...]`."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebbtide._files import replacing
from pipelines.stage import run_stage

_LOCK = Path("dvc.lock")
# DVC's folder of what is of this checkout alone.
_KEPT = Path(".dvc/tmp/dvc.lock.kept")


def main() -> None:
    """Run the pipeline.

    With `--keep-lock`, `dvc.lock` is afterwards what it was: weights trained on another processor differ in their
    last digits, and a demonstration is no reason to commit other models than those that were reviewed. What was
    computed stays in DVC's cache of runs, so that the next `dvc repro` computes nothing again.
    """
    from flows.pipeline import pipeline

    targets = [word for word in sys.argv[1:] if word != "--keep-lock"]
    if len(targets) == len(sys.argv) - 1:
        sys.exit(pipeline(targets))
    with _lock_kept():
        code = pipeline(targets)
    sys.exit(code)


@contextmanager
def _lock_kept() -> Iterator[None]:
    """Put `dvc.lock` back at the end; one that an earlier, killed demonstration left there is put back, too."""
    if not _KEPT.exists() and _LOCK.exists():
        _copy(_LOCK, _KEPT)
    try:
        yield
    finally:
        if _KEPT.exists():
            _copy(_KEPT, _LOCK)
            os.unlink(_KEPT)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)


if __name__ == "__main__":
    run_stage(main)
