"""What a run leaves: whole checkpoints, and a result that others load."""
