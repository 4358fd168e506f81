"""Reports: summaries, differences, tables, latency, accuracy and HTML pages of models."""
