"""verl and EasyR1: GRPO with FSDP and vLLM on the same GPUs

hydra      keys with dots of nested files and of overrides, and values that refer to others
common     what both trainers' keys mean alike
reading    verl's keys
easyr1     EasyR1's
"""
