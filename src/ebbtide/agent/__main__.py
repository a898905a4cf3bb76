"""`python -m ebbtide.agent CONFIG.json`: runs on a rented machine."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from ebbtide.agent.agent import Agent
from ebbtide.agent.config import AgentConfig
from ebbtide.errors import InputError


def main() -> int:
    """Returns the exit code: 0, 42 if the machine is to be ended, 2 if the configuration is wrong."""
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
