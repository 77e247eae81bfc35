"""Anybody's training script, one rank of it on fake tensors: what ``vlmplan rehearse ... -- python train.py`` runs.

run             the whole rehearsal; __main__ is its process
launchers       what torchrun, accelerate and others would start, by their own parsers
programs        what a program would start as ranks runs here instead
card            CUDA for a torch without a card: device guard and accelerator; queries answers torch.cuda's questions
mode            what is unknown reads as zero, and who asked; bounds for shapes that depend on data
generation      runs to its length limit
weights         from_pretrained by configuration and the header of safetensors
checkpoints     saving by counting
phases          load, init, forward, backward, step, evaluation and save, found from calls
ranks           process groups of which one rank runs
compiling       no kernel is built; those that update in place do nothing
loaders         data loaders: in this process, an end after the last step
longest         batches of the longest samples
side_effects    folders, trackers and networks that are not touched
"""
