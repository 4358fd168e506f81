"""Profiles of sessions: timelines, kernels and their provenance."""
