"""The worker agent: runs training on a rented machine, saves before the machine is taken, reports.

Agent and controller never call each other. Orders and reports are objects in the same storage as checkpoints, so
either may be killed and started again, and neither need be reachable.
"""
