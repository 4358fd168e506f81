"""What is said of a model and of what was done to it: summary, differences, tables, latency, pages."""
