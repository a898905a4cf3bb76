"""Stage `solve`: models/manifest.json and what it names -> models/solved."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.solve import solve_cookbook

    solve_cookbook(parameters("solve"), parameters("tracking"), Path("models"))


if __name__ == "__main__":
    run_stage(main)
