"""The work to be done on rented machines: jobs, sweeps and workflows, their speed and their checkpoints."""
