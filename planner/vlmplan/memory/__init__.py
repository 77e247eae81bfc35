"""Bytes: what one GPU, a host and a disk hold in every phase of a run."""
