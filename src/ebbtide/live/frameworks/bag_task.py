"""One task of a bag: adds up numbers, a unit at a time; saves when it is told to. Run by `bag.BagFramework`."""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import time
from pathlib import Path

from ebbtide._files import write_text


def main() -> None:
    """Do the units that are left, telling of each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--units", type=int, required=True)
    parser.add_argument("--unit-s", type=float, required=True)
    parser.add_argument("--state", type=Path, required=True)
    arguments = parser.parse_args()
    asked: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    done, total = 0, 0
    if arguments.state.exists():
        state = json.loads(arguments.state.read_text())
        done, total = state["done"], state["total"]
    while done < arguments.units:
        time.sleep(arguments.unit_s)
        total += arguments.number + done
        done += 1
        _tell(done=done)
        if not asked.empty():
            asked.get()
            write_text(arguments.state, json.dumps({"done": done, "total": total}))
            _tell(saved=done)
    _tell(result=total)


def _listen(asked: queue.Queue[str]) -> None:
    for line in sys.stdin:
        asked.put(line)


def _tell(**said: float) -> None:
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
