"""ExoSphere: spread a cluster over markets as an investor would, and tell applications what is coming."""

from ebbtide.policies.exosphere.solving import solve_portfolio

__all__ = ["solve_portfolio"]
