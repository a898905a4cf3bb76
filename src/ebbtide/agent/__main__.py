"""`python -S -m ebbtide.agent CONFIG.json`: runs on a rented machine, from the bundle that was fetched.

`-S` hides the machine's own packages, so that no other version of a library is imported, and none is changed.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from ebbtide.agent.agent import Agent
from ebbtide.agent.config import AgentConfig
from ebbtide.errors import InputError

# Libraries in the bundle, not on `PYTHONPATH`: training programs inherit that, and use their own libraries.
_LIBRARIES = Path(__file__).parents[3] / "libraries"


def main() -> int:
    """Run the agent; returns the exit code: 0, 42 if the machine should end, 2 if the configuration is wrong."""
    if (_LIBRARIES / "boto3").is_dir():
        sys.path.insert(0, str(_LIBRARIES))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m ebbtide.agent CONFIG.json\n")
        return 2
    try:
        return Agent(AgentConfig.read(Path(sys.argv[1]))).run()
    except InputError as error:
        sys.stderr.write(f"ebbtide.agent: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
