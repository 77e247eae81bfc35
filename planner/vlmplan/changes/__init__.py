"""What to change of a setup so that it fits, what changes the training least first.

change    one of them, as options of the command line
kinds     the changes there are, by kind
rollouts  those of GRPO alone
least     the least combination of them that fits
trials    setups of options, each estimated once: what fits, in how many seconds
"""
