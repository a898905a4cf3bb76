"""Calls a sweep's entry point.

`python -m ebbtide.live.agent.entry_point package.module:function '{"lr": 0.1}'`
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def main() -> None:
    """The function is looked for in the working directory, too, as `python script.py` would."""
    place, values = sys.argv[1], json.loads(sys.argv[2])
    module, _, name = place.partition(":")
    sys.path.insert(0, os.getcwd())
    getattr(importlib.import_module(module), name)(**values)


if __name__ == "__main__":
    main()
