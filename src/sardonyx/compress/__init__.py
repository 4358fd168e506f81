"""Compression: fewer bits per number, a Model in and a Model out."""
