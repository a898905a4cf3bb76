"""Allocation matrices: which share of its time each job spends on each instance type (Dynamic Pricing, 4)."""
