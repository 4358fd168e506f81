"""Counts, times, metrics, traces and the access log of a server."""
