"""Train models on the ebb and flow of the cloud's spot markets.

import ebbtide as eb

prices = eb.PriceHistory.read("prices.parquet")
job = eb.Job.read("examples/one-day.yaml")
policies = [eb.policy(name) for name in ("ebbtide", "reactive", "on-demand")]
result = eb.backtest(job, policies, prices, billing="ec2-second", starts=200, seed=1)
print(result)        # a table: cost, makespan, revocations, refunds, with spread
result.plot()        # prices with leases drawn on them, cost by policy, progress over time
job = eb.Job(command="python train.py", budget_usd=20)
run = eb.run(job, "ebbtide", provider="local")   # the same policy, for real: a handle
run.status(), run.logs(), run.stop(), run.result()

What an author of a policy needs is in `eb.policies`, and types for annotations are in `eb.types`.
"""

import warnings as _warnings
from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import Any as _Any

import lazy_loader as _lazy

# What the stub beside this file names is imported when it is first used: a training process needs little of it.
_of_stub, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)

# Modules with names that stood here before, and still work.
_FORMERLY_HERE = ("policies", "types", "errors", "market.billing", "runs.functions")


def __getattr__(name: str) -> _Any:
    try:
        return _of_stub(name)
    except AttributeError:
        if (name[:1].islower() and name != "sweep") or name.startswith("_"):
            raise
    for place in _FORMERLY_HERE:
        module = _import_module(f"{__name__}.{place}")
        if hasattr(module, name):
            _warnings.warn(f"ebbtide.{name} is now ebbtide.{place}.{name}", FutureWarning, stacklevel=2)
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = _version("ebbtide")
