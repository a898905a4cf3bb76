"""Experiments: policies x starts -> tables, figures and tracked runs."""
