"""SpotTune's policy: hyper-parameter sweeps on spot machines, bad trials ended early."""
