"""Served models: sessions with their interface, their proof of batching, and the folder from which they come."""
