"""Train models on the ebb and flow of the cloud's spot markets.

import ebbtide as eb

prices = eb.PriceHistory.read("prices.parquet")
job = eb.Job.read("examples/one-day.yaml")
result = eb.backtest([eb.Reactive(), eb.CheapestSpot(), eb.OnDemand()], job, prices,
                     billing="ec2-second", starts=200, seed=1)
print(result)        # a table: cost, makespan, revocations, refunds, with spread
result.plot()        # prices with leases drawn on them, cost by policy, progress over time
job = eb.Job(command="python train.py", budget_usd=20)
run = eb.run(job, eb.Reactive(), provider="local")   # the same policy, for real: a handle
run.status(), run.logs(), run.stop(), run.result()
"""

from importlib.metadata import version as _version

import lazy_loader as _lazy

# What the stub beside this file names is imported when it is first used: a training process needs little of it.
__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)

__version__ = _version("ebbtide")
