"""Services for all packages: threads, cancellation, caches. Imports the errors alone."""
