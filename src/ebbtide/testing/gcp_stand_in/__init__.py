"""A stand-in for Google Cloud on loopback: Compute Engine's API, object storage, tokens, running machines."""
