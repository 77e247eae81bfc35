"""The label of a token that counts in no loss."""

IGNORED_LABEL = -100
"""What torch's cross entropy leaves out (``ignore_index``), transformers' and Liger's losses too."""
TARGET_LABELS = "target_labels"
"""Answers that a decoder of its own writes, beside ``input_ids`` of prompts that an encoder reads, ..."""
HEARD = "input_features"
"""... or spectrograms that it hears (samples, mel bins, frames), or what it sees."""
DECODER_INPUTS = "decoder_input_ids"
"""What a decoder is given before each of them, where it is not only the answers shifted by one."""
