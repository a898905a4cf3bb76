"""Markets and their prices: what can be rented, what it cost, when it was there, how it is charged.

Knows nothing of jobs, policies or engines.
"""
