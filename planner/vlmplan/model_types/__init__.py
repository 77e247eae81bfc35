"""What the type of a model alone tells: whether it has an encoder or a thinker, and what Liger has for it."""
