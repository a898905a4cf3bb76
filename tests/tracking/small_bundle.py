"""A small model bundle that is trained in a second, for tests of what is solved and executed with it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from dvc.utils.hydra import apply_overrides
from flows.execute import job_run
from flows.parameters import Execute

from ebbtide.base.utc import DAY_S
from ebbtide.forecasts.bundle import ModelBundle, part_of, write_manifest, write_solved
from ebbtide.forecasts.learning_curves.calibration import default_calibration, write_calibration
from ebbtide.forecasts.price_chain import PriceChain, save_chain
from ebbtide.jobs.parsing import validated
from ebbtide.market.generator import generate_auction_prices
from ebbtide.market.markets import MARKET_FIELDS
from ebbtide.market.prices import PriceHistory
from ebbtide.tracking.execute_stage import JobRun
from ebbtide.tracking.solve_stage import SOLVERS, Known

ROOT = Path(__file__).parents[2]
DAYS, TRAINED_DAYS = 22.0, 8.0


def section(name: str) -> dict[str, Any]:
    """A section of the project's params.yaml for auctions, with paths that hold from any folder, and small problems."""
    overrides = (ROOT / "pipelines" / "auction.txt").read_text(encoding="utf-8").splitlines()
    with TemporaryDirectory() as folder:
        params = Path(shutil.copy(ROOT / "params.yaml", folder))
        apply_overrides(params, overrides)
        found: dict[str, Any] = yaml.safe_load(params.read_text(encoding="utf-8"))[name]
    for part in found["runs"].values() if name == "execute" else found.values():
        part["job"] = str(ROOT / part["job"])
    if name == "solve":
        found["cookbook"]["most"] = 12
    return found


def runs() -> dict[str, JobRun]:
    """The jobs that `execute` replays, by name."""
    settings = validated(Execute, section("execute"))
    return {name: job_run(name, settings) for name in settings.runs}


def trained(folder: Path) -> Known:
    """A bundle with EarlyCurve and a price chain, and the prices of its training days."""
    file = folder / "prices.parquet"
    generate_auction_prices(days=DAYS, seed=5).write(file)
    history = PriceHistory.read(file)
    known = history.window(history.start_s, history.start_s + TRAINED_DAYS * DAY_S)
    models = folder / "models"
    write_calibration(default_calibration(), models / "earlycurve.json")
    name = section("solve")["cookbook"]["market"]
    market = next(each for each in known if str(each) == name)
    chain = PriceChain.fit(known[market], known.start_s, known.end_s)
    (models / "price-chains").mkdir()
    about = {"fields": [getattr(market, field) for field in MARKET_FIELDS]}
    save_chain(chain, models / "price-chains" / "0000.safetensors", about)
    window = known.start_s, known.end_s
    parts = {
        "earlycurve": part_of(models, "earlycurve.json"),
        "price-chains": part_of(models, "price-chains", window_s=window),
    }
    return Known(write_manifest(models, parts), known, file)


def solved(known: Known, settings: Mapping[str, Any]) -> ModelBundle:
    """The bundle with everything that is solved from it."""
    folder = known.models.folder
    parts = {kind: SOLVERS[kind](known, settings[kind], folder).part(folder) for kind in SOLVERS}
    return write_solved(known.models, parts)
