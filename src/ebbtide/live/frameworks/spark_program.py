"""A small Spark program: data in memory, changed again and again; saved when it is told to. Run by `spark`."""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial

_VALUES = 64


def begun(partition: int) -> list[float]:
    """A partition's first values."""
    return [math.sin(partition * _VALUES + place) for place in range(_VALUES)]


def changed(values: Iterable[float]) -> list[float]:
    """One iteration of them."""
    return [math.cos(1.5 * value) + 0.1 for value in values]


def main() -> None:
    """Iterate, telling of each; save after the iteration under way when told to."""
    from pyspark import SparkConf, SparkContext

    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--task-s", type=float, required=True)
    parser.add_argument("--checkpoints", required=True)
    arguments = parser.parse_args()
    asked = threading.Event()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    context = SparkContext(conf=SparkConf().setMaster(arguments.master).setAppName("ebbtide"))
    context.setLogLevel("ERROR")
    context.setCheckpointDir(arguments.checkpoints)
    data = context.parallelize(range(arguments.partitions), arguments.partitions).flatMap(begun).cache()
    data.count()
    for iteration in range(1, arguments.iterations + 1):
        before, data = data, data.mapPartitions(partial(_iterate, arguments.task_s)).cache()
        saves = asked.is_set()
        if saves:
            asked.clear()
            data.checkpoint()
        data.count()
        before.unpersist()
        _tell(iteration=iteration)
        if saves:
            _tell(saved=iteration)
    _tell(result=data.sum())
    context.stop()


def _iterate(task_s: float, values: Iterator[float]) -> list[float]:
    kept = list(values)
    time.sleep(task_s)
    return changed(kept)


def _listen(asked: threading.Event) -> None:
    for _ in sys.stdin:
        asked.set()


def _tell(**said: float) -> None:
    print(json.dumps(said), flush=True)


def expected_result(iterations: int, partitions: int) -> float:
    """The same, here."""
    values = [value for partition in range(partitions) for value in begun(partition)]
    for _ in range(iterations):
        values = changed(values)
    return math.fsum(values)


if __name__ == "__main__":
    main()
