"""SpotTune: hyper-parameter tuning on spot machines."""
