"""EC2 as the cloud of a live run."""
