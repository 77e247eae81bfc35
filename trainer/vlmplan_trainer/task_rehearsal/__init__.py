"""A plan's task on fake tensors: TRL's own trainers as ``trl_training`` runs them, one rank of any number.

run       the whole rehearsal; __main__ is its process
rows      preferences, prompts and micro batches as long as the plan says, and what stands for tokenizer and processor
meter     phases of a step of a trainer of TRL's
"""
