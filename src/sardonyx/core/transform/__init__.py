"""Rewrites of Core graphs: simplification, differentiation, cost."""
