"""Operators of ``com.microsoft`` that real files hold."""
