"""Processors as data: vector width, registers, caches, alignment."""
