"""Markets and their prices: what can be rented, what it cost, when it was available, how it is charged.

Imports nothing from the rooms above it (jobs, policies, engine).
"""
