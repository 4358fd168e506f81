"""The dispatcher: queues, merging of requests, runs, sequences, remembered answers."""
