"""Plans of a job before it begins: cost, time, places, feasibility."""
