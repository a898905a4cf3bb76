"""A launcher: starts a program and waits for it, as many launchers do; SIGTERM is not passed on."""

import subprocess
import sys

sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)
