"""One of four parts of the digits, each image moved a little: `python prepare.py 0`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

PARTS = 4


def main() -> None:
    part = int(sys.argv[1])
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    rows = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")[part::PARTS]
    images = rows[:, :-1].reshape(-1, 8, 8) / 16.0
    moves = np.random.default_rng(part).integers(-1, 2, (len(images), 2))
    moved = np.stack([np.roll(image, move, (0, 1)) for image, move in zip(images, moves, strict=True)])
    np.savez(
        Path(os.environ["EBBTIDE_RESULT_DIR"]) / "part.npz", images=moved, labels=rows[:, -1].astype(np.int64)
    )
    print(f"{len(images)} images")


if __name__ == "__main__":
    main()
