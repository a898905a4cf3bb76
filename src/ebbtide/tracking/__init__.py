"""MLflow, the model registry, and the stages of the nightly pipeline."""
