"""What transformers' own model does with images, captured once and run here on symbolic tensors.

``vlmplan_trainer/capture`` writes it; a family describes the same by hand.
"""
