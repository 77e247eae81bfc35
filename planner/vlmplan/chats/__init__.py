"""Chats in files: what planning and training both read of them.

data_files.py     which files are meant: one, a folder's, or the data sets of a dataset_info.json
formats.py        the forms of a sample in JSON, as turns of texts and references to images and videos
other_forms.py    the same under other names
messages.py       lists of messages as turns
turn_parts.py     parts of a turn: texts, tags, and what is shown in their place
references.py     where images, videos and sounds of a sample are
turn_keys.py      which turns are learnt, and thoughts, by what stands beside their roles
tools.py          tools that may be called, calls and answers
learnt.py         what of a chat's text is learnt, by the model's chat template
learnt_tokens.py  the tokens of it
pairs.py          what an encoder is given and a decoder is to write
unread.py         what nobody reads, and is refused by name
thoughts.py       whether the template writes thoughts
image_files.py    image files and base64: found, and their size read from the header
video_files.py    videos: their length and size by the container's header
sound_files.py    sounds: their length
frame_places.py   places that are evenly spread over a video, as processors round them
samplers.py       whose videos are read, and which class of transformers samples them
frame_rules.py    which frames of a video a model is given
frame_texts.py    what is written between them
preferences.py    what DPO, reward models and GRPO train on
labelled.py       what KTO trains on
preference_forms.py  preferences of other trainers
named_columns.py  samples whose columns a dataset_info.json names
samples.py        a file as checked samples, or a sentence for each bad one
downscaling.py    images made no larger than the plan's
"""
