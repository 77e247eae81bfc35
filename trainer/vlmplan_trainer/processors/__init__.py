"""The processors of models that see, without their checkpoint: which tensors they make of images, how many tokens."""
