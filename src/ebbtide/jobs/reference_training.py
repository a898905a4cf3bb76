"""A small real training program, for live runs without a model of one's own.

Logistic regression by stochastic gradient descent on generated data, in plain Python so that it starts at once.
Each step depends on its number and on the weights alone, so that a run resumed from a checkpoint ends with exactly
the weights of one that was never interrupted.

    python -m ebbtide.jobs.reference_training --steps 24000 --checkpoint DIR/state.json [--steps-per-s 1000]

It reports its progress as lines of JSON on standard output. It saves at the end, and on SIGTERM before it exits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import signal
import sys
import time
from pathlib import Path

from ebbtide._files import write_text

FEATURES = 8
_REPORT_EVERY_S = 0.05
_LEARNING_RATE = 0.05


def main(arguments: list[str] | None = None) -> int:
    """Train to the last step, or until SIGTERM, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, required=True, help="train to this step")
    parser.add_argument("--checkpoint", type=Path, required=True, help="file to continue from and to save to")
    parser.add_argument("--steps-per-s", type=float, default=math.inf, help="go no faster than this")
    parser.add_argument("--save-every-s", type=float, default=math.inf, help="checkpoint this often")
    options = parser.parse_args(arguments)

    stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    step, weights = load(options.checkpoint)
    _report(started=step)
    began, first = time.monotonic(), step
    reported_at = saved_at = began
    while step < options.steps and not stopping:
        weights = train_step(step, weights)
        step += 1
        now = time.monotonic()
        ahead_s = (step - first) / options.steps_per_s - (now - began)
        if ahead_s > 0.002:
            time.sleep(min(ahead_s, 0.05))
        if now - reported_at >= _REPORT_EVERY_S:
            reported_at = now
            _report(step=step)
        if now - saved_at >= options.save_every_s:
            saved_at = now
            _save(options.checkpoint, step, weights)
    _save(options.checkpoint, step, weights)
    _report(finished=step, loss=loss(weights)) if step >= options.steps else _report(stopped=step)
    return 0


def train_step(step: int, weights: list[float]) -> list[float]:
    """The weights after one more example, shape (FEATURES,)."""
    features, label = _example(step)
    score = sum(weight * value for weight, value in zip(weights, features, strict=True))
    error = 1.0 / (1.0 + math.exp(-max(min(score, 30.0), -30.0))) - label
    return [weight - _LEARNING_RATE * error * value for weight, value in zip(weights, features, strict=True)]


def loss(weights: list[float], examples: int = 500) -> float:
    """Mean cross entropy over examples that are never trained on."""
    total = 0.0
    for number in range(1, examples + 1):
        features, label = _example(-number)
        score = sum(weight * value for weight, value in zip(weights, features, strict=True))
        total += math.log1p(math.exp(-abs(score))) + max(score, 0.0) - score * label
    return total / examples


def load(path: Path) -> tuple[int, list[float]]:
    """Step and weights of a checkpoint; 0 and zeros where it is missing or damaged."""
    try:
        envelope = json.loads(path.read_text(encoding="utf-8"))
        body = envelope["body"]
        if hashlib.sha256(body.encode()).hexdigest() == envelope["sha256"]:
            state = json.loads(body)
            return int(state["step"]), [float(weight) for weight in state["weights"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0, [0.0] * FEATURES


def _save(path: Path, step: int, weights: list[float]) -> None:
    body = json.dumps({"step": step, "weights": weights})
    write_text(path, json.dumps({"body": body, "sha256": hashlib.sha256(body.encode()).hexdigest()}))
    _report(saved=step)


def _example(number: int) -> tuple[list[float], float]:
    source = random.Random(number)
    features = [source.gauss(0.0, 1.0) for _ in range(FEATURES)]
    signal_part = sum(value * (1.0 if place % 2 else -0.5) for place, value in enumerate(features))
    return features, float(signal_part + source.gauss(0.0, 0.5) > 0)


def _report(**message: float) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
