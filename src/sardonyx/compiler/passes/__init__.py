"""Rewrites of Core graphs ahead of scheduling."""
