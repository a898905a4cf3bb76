"""The table of all cases: `make cases`, or `python -m tests.cases.run FILE.json`.

Exit code 1 if a program did not end as the undisturbed one does, or more was repeated than its saves allow. What
failed beside others runs once more, alone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from tests.cases.harness import ROWS_VARIABLE
from tests.run import run

_ALL = "long or not long"
_COLUMNS = ("case", "revocations", "steps", "steps_lost", "steps_repeated", "same_result", "seconds")


def main() -> None:
    """Run the tests of this folder, and write what each program came to."""
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "reports/cases.json")
    with tempfile.TemporaryDirectory() as folder:
        os.environ[ROWS_VARIABLE] = folder
        arguments = [str(Path(__file__).parent), *sys.argv[2:]]
        # Programs wait for most of their time, so there is room for more of them than cores.
        found = run(_ALL, 2 * len(os.sched_getaffinity(0)), arguments, "worksteal")
        failed = [one.test for one in found.outcomes if one.failure]
        if failed and found.all_collected:
            print("once more, one at a time: those that failed", flush=True)
            found = run(_ALL, 0, failed)
        rows = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print("  ".join(f"{name:>18}" for name in _COLUMNS))
    for row in rows:
        print("  ".join(f"{row[name]!s:>18}" for name in _COLUMNS))
    print(f"wrote {file}")
    sys.exit(found.code)


if __name__ == "__main__":
    main()
