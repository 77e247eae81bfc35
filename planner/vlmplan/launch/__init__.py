"""Starting a plan: look whether it can run here, keep what is run beside its results, start it and follow it.

facts        what this machine has; the one impure part of the look
preflight    whether the plan can run here, in sentences (devices.py: its GPUs; hosts.py: its nodes)
run_folder   the files of a run
start        command, environment, process group and signals
demo         a tiny model to try everything with
"""
