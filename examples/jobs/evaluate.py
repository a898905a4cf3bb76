"""Which of the trainings is better, by the reports that they left."""

from __future__ import annotations

import json
import os
from pathlib import Path


def main() -> None:
    reports = {
        file.parent.parent.name: json.loads(file.read_text())["accuracy"]
        for file in sorted(Path(os.environ["EBBTIDE_INPUTS"]).glob("*/outputs/report.json"))
    }
    best = max(reports, key=lambda name: reports[name])
    Path("best.json").write_text(json.dumps({"best": best, "accuracy": reports}))
    print(f"best: {best}, of {reports}")


if __name__ == "__main__":
    main()
