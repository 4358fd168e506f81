"""Training data: batches of arrays, files, folders and loaders."""
