"""The samples of ``--data``: how long each is, and which images, videos and sounds it shows.

model_texts.py  the model's tokenizer and chat template, where they are at hand
pairs.py        tokens of prompts and answers apart
rendering.py    a chat through its template, in a sandbox
rendered_chats.py  a chat so, with what of it is learnt
counting.py     tokens of a text, exactly or estimated from its bytes
images.py       what a model's processor makes of images
videos.py       and of videos, by the rules of a trainer
sounds.py       and of sounds
media.py        for which model and trainer videos and sounds are read
scan.py         every sample looked at, by several processes
unseen.py       the samples of a text in memory, whose images are not looked at
kept.py         scans kept between runs, by content
record.py       ``Dataset``: what was found
progress.py     a bar meanwhile
"""

# pyright: reportUnusedImport=false
from vlmplan.dataset.kept import dataset
from vlmplan.dataset.record import Dataset, SampleSize
