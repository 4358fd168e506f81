"""Services under every package: threads, cancellation, caches and counters; imports nothing but the errors."""
