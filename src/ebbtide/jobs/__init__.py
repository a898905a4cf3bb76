"""What is to be done on rented machines: jobs, their rates and their checkpoints."""
