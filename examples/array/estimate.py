"""One task of an array: an estimate of pi from random points, with a seed of the task's own."""

import argparse
import json
import random
import time
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--part", type=int, required=True)
parser.add_argument("--points", type=int, default=20_000)
parser.add_argument("--rest-s", type=float, default=0.0, help="seconds that every fortieth task rests")
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()

time.sleep(options.rest_s * (options.part % 40 == 0))
draw = random.Random(options.part)
inside = sum(draw.random() ** 2 + draw.random() ** 2 < 1 for _ in range(options.points))
(options.out / "estimate.json").write_text(json.dumps({"part": options.part, "inside": inside}))
print(json.dumps({"pi": 4 * inside / options.points}))
