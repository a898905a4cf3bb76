"""Stage `solve`: models/price-chain.safetensors -> models/cookbook.safetensors."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.solve import solve_cookbook

    solve_cookbook(
        parameters("solve"),
        parameters("tracking"),
        Path("models/price-chain.safetensors"),
        Path("models/cookbook.safetensors"),
    )


if __name__ == "__main__":
    run_stage(main)
