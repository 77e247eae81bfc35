"""The model as a tree of modules, and one micro batch through it on symbolic tensors."""
