"""Dynamic Pricing ("Training on a Dime"): the share of its time that each job spends on each instance type."""
