"""Page ranks of a random web, by the rounds of Brin and Page, with joins and sums of Spark."""

import argparse
import hashlib
import json
import random
import time

from pyspark.sql import SparkSession

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--pages", type=int, default=400)
parser.add_argument("--rounds", type=int, default=20)
parser.add_argument("--parts", type=int, default=8)
parser.add_argument("--task-s", type=float, default=0.0, help="seconds that each part of a round takes at least")
options = parser.parse_args()
DAMPING, ONE = 0.85, 10**12


def links(page):
    """The pages that a page leads to."""
    draw = random.Random(page)
    return page, sorted(draw.sample(range(options.pages), 5))


def given(entry):
    """What a page gives to others; whole numbers, so that the order of sums does not matter."""
    _, (to, rank) = entry
    return [(page, rank // len(to)) for page in to]


def slowly(part):
    """The same entries, after a while."""
    time.sleep(options.task_s)
    return part


context = SparkSession.builder.appName("ranks").getOrCreate().sparkContext
web = context.parallelize(range(options.pages), options.parts).map(links).cache()
ranks = web.mapValues(lambda _: ONE)
for number in range(options.rounds):
    sums = web.join(ranks, options.parts).flatMap(given).reduceByKey(lambda one, other: one + other, options.parts)
    new = sums.mapPartitions(slowly).mapValues(lambda got: int(ONE * (1 - DAMPING) + DAMPING * got))
    before, ranks = ranks, new.cache()
    total = ranks.values().sum()
    before.unpersist()
    print(json.dumps({"step": number + 1, "total": total / ONE}), flush=True)
found = json.dumps(sorted(ranks.collect()))
print("ranks", hashlib.sha256(found.encode()).hexdigest(), flush=True)
