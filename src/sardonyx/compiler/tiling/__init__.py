"""Schedules as data: tile sizes, panel widths and costs of products, convolutions and windows."""
