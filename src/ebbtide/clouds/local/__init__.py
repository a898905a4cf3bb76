"""A cloud on this machine: instances are process groups; prices and revocations come from a replayed market.

The cloud is a process of its own, so that a controller can be killed and restarted while machines run.
"""
