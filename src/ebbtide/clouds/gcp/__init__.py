"""Google Cloud as the cloud of a live run."""
