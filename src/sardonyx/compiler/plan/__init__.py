"""Plans: steps of a program, the tape and arena of each segment, and prepared constants."""
