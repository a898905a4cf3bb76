"""A cloud on this machine: instances are process groups, prices and revocations those of a replayed market.

It is a process of its own, as a real cloud is: a controller may be killed and started again while machines run.
"""
