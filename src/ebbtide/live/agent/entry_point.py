"""Calls a sweep's entry point, a Python function.

`python -m ebbtide.live.agent.entry_point package.module:function '{"lr": 0.1}'`
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def main() -> None:
    """Call the function; its module may be in the working directory, as with `python script.py`."""
    place, values = sys.argv[1], json.loads(sys.argv[2])
    module, _, name = place.partition(":")
    sys.path.insert(0, os.getcwd())
    getattr(importlib.import_module(module), name)(**values)


if __name__ == "__main__":
    main()
