"""The agent: runs training on a rented machine, saves before the machine is revoked, and reports.

Agent and controller never call each other. Orders and reports are objects in the same storage as checkpoints, so
either may be killed and started again, and neither needs to be reachable over the network.
"""
