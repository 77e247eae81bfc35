"""A run: what its launcher and the trainer agree on, from the trainer's options to the files in its folder."""
