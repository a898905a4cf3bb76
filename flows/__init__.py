"""Prefect flows, one for each stage of the pipeline."""
