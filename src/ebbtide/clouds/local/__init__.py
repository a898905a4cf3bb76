"""A cloud on this machine: instances are process groups, prices and revocations come from a replayed market.

It is a process of its own, so that a controller may be killed and started again while machines run.
"""
