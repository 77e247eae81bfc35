"""From lines of chats to micro batches.

chat_formats.py   the forms of a sample in JSON, as turns of texts and image references
images.py         image files and base64: found, checked by their header, opened
chats.py          a JSONL file as checked samples, or a sentence for each bad line
templates.py      a sample as the text of the model's chat template, and where the assistant speaks in it
downscaling.py    images made no larger than the plan's
encode.py         a sample as the tensors that the model's forward takes, with labels
scan.py           a whole dataset encoded once: what is trained on, cut or left out
sampler.py        a distributed sampler: the order of an epoch, and the part of it that is one rank's
batches.py        micro batches of one rank: padded, prefetched, resumable
dummy.py          synthetic samples
"""
