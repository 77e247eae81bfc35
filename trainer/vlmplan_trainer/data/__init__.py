"""From lines of chats to micro batches.

forms.py      the two forms of a chat in JSON, as turns of texts and image references
images.py     image files and base64: found, checked by their header, opened
chats.py      a JSONL file as checked samples, or a sentence for each bad line
templates.py  a sample as the text of the model's chat template, and where the assistant speaks in it
fitting.py    images made no larger than the plan's
encode.py     a sample as the tensors that the model's forward takes, with labels
sampler.py    the order of an epoch, and the part of it that is one rank's
batches.py    micro batches of one rank: padded, prefetched, resumable
dummy.py      synthetic samples
"""
