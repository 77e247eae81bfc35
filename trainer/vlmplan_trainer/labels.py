"""The label of a token that counts in no loss."""

IGNORED_LABEL = -100
"""What torch's cross entropy leaves out (``ignore_index``), transformers' and Liger's losses too."""
