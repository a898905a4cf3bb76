"""Tools for tests of policies, clouds and live runs."""
