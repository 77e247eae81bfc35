"""The loss of a micro batch: whole logits, or head and cross-entropy chunk by chunk, bundled or Liger's."""
