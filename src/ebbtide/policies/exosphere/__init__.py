"""ExoSphere: clusters spread over markets as an investor would spread money, and warnings to applications."""

from ebbtide.policies.exosphere.solving import solve_portfolio

__all__ = ["solve_portfolio"]
