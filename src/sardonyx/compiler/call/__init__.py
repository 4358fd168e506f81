"""Execution of a program: contexts of calls, the native entry, stepwise and interpreted execution."""
