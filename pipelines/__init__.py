"""The commands that DVC runs, one for each stage of `dvc.yaml`."""
