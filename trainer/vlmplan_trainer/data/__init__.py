"""From lines of chats to micro batches.

embedded.py       what stands in base64 in a file of samples
images.py         images of files and base64, opened
videos.py         videos: the frames that are planned, decoded, and their tokens
sounds.py         sounds: decoded, and their tokens
templates.py      a sample as the text of the model's chat template, and where the assistant speaks in it
downscaling.py    what a processor makes of an image, and images made smaller
encode.py         a sample as the tensors that the model's forward takes, with labels
fenced_images.py  Idefics2's, whose images stand between two tokens that neighbours share
queried_images.py BLIP-2's and InstructBLIP's, whose image comes before the text
pairs.py          a sample as a prompt for an encoder and an answer for a decoder
scan.py           a whole dataset encoded once: what is trained on, cut or left out
batches.py        micro batches of one rank: padded, prefetched, resumable
dummy.py          synthetic samples
"""
