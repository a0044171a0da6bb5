"""Hermes (hermes-agent) as an inspan harness."""
