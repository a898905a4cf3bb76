"""Types of what the functions of `ebbtide` take and return, for annotations."""

from ebbtide.backtesting.comparison import Comparison as Comparison
from ebbtide.backtesting.result import BacktestResult as BacktestResult
from ebbtide.engine.explanation import Explanation as Explanation
from ebbtide.engine.outcome import Outcome as Outcome
from ebbtide.forecasts.bundle import ModelBundle as ModelBundle
from ebbtide.forecasts.learning_curves.curves import CurvePrediction as CurvePrediction
from ebbtide.market.availability import Availability as Availability
from ebbtide.market.billing import Billing as Billing
from ebbtide.market.catalogue import Catalogue as Catalogue
from ebbtide.runs.functions import TrainingFunction as TrainingFunction
from ebbtide.runs.handle import Run as Run
from ebbtide.runs.run import RunOptions as RunOptions

__all__ = [
    "Availability",
    "BacktestResult",
    "Billing",
    "Catalogue",
    "Comparison",
    "CurvePrediction",
    "Explanation",
    "ModelBundle",
    "Outcome",
    "Run",
    "RunOptions",
    "TrainingFunction",
]
