"""Files that a demo copies as they are: what is here is what its user reads, edits and imitates."""
