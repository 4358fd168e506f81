"""Operators of ``com.microsoft`` that occur in practice."""
