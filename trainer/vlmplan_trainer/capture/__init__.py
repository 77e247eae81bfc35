"""What a model does with images, captured on fake tensors once, so that plans with images need no torch afterwards."""
