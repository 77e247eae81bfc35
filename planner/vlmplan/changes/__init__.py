"""What to change of a setup so that it fits, what changes the training least first.

kinds     the changes there are, by kind, as options of the command line
least     the least combination of them that fits
trials    setups of options, each estimated once: what fits, in how many seconds
"""
