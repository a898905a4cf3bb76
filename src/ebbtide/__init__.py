"""Train models on the ebb and flow of the cloud's spot markets.

import ebbtide as eb

prices = eb.PriceHistory.read("prices.parquet")
job = eb.Job.read("examples/one-day.yaml")
result = eb.backtest([eb.Reactive(), eb.CheapestSpot(), eb.OnDemand()], job, prices,
                     billing="ec2-second", starts=200, seed=1)
print(result)        # a table: cost, makespan, revocations, refunds, with spread
result.plot()        # prices with leases drawn on them, cost by policy, progress over time
eb.run(eb.Reactive(), job, provider="local")   # the same policy, for real
"""

from importlib.metadata import version as _version

from ebbtide.errors import InputError
from ebbtide.execution.outcome import Outcome
from ebbtide.execution.run import run
from ebbtide.experiments.backtest import backtest
from ebbtide.experiments.planning import plan
from ebbtide.experiments.result import BacktestResult
from ebbtide.learning_curves.fit import fit_curve
from ebbtide.learning_curves.predictions import CurvePrediction
from ebbtide.market.availability import Availability
from ebbtide.market.billing import PRESETS, Billing, billing_preset
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.generator import MarketProfile, generate_prices
from ebbtide.market.ingestion import ingest_ec2, ingest_files
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.baselines import CheapestSpot, FastestSpot, OnDemand, Reactive
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.deepspotcloud import DeepSpotCloud
from ebbtide.policies.dynamic_pricing import DynamicPricing
from ebbtide.policies.protocol import Policy
from ebbtide.policies.registry import policies, policy
from ebbtide.policies.spottune import SpotTune
from ebbtide.workloads.job import Job
from ebbtide.workloads.sweep import Sweep

__version__ = _version("ebbtide")

__all__ = [
    "PRESETS",
    "Availability",
    "BacktestResult",
    "Billing",
    "Catalogue",
    "CheapestSpot",
    "CurvePrediction",
    "DeepSpotCloud",
    "DynamicPricing",
    "FastestSpot",
    "InputError",
    "Job",
    "Market",
    "MarketProfile",
    "OnDemand",
    "Outcome",
    "Policy",
    "PriceHistory",
    "Reactive",
    "SpotTune",
    "Sweep",
    "WithinBudget",
    "backtest",
    "billing_preset",
    "default_catalogue",
    "fit_curve",
    "generate_prices",
    "ingest_ec2",
    "ingest_files",
    "plan",
    "policies",
    "policy",
    "run",
]
