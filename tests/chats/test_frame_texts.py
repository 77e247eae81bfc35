"""What SmolVLM's processor writes around frames, by transformers' own words."""

import importlib

import pytest

from vlmplan.chats.frame_rules import FrameRule
from vlmplan.chats.frame_texts import SMOLVLM_TEMPLATE, frame_texts, number_words
from vlmplan.chats.samplers import Sampler
from vlmplan.chats.video_files import VideoHeader


def test_numbers_of_frames_are_written_as_num2words_writes_them():
    num2words = pytest.importorskip("num2words").num2words
    for number in (*range(1, 2500), 10_000, 12_345, 100_001, 999_999, 1_000_000, 1_000_100, 2_345_678):
        assert number_words(number) == num2words(number)


def test_chats_with_videos_have_the_template_that_transformers_takes_for_them():
    smolvlm = pytest.importorskip("transformers.models.smolvlm.processing_smolvlm")
    assert smolvlm.DEFAULT_CHAT_TEMPLATE == SMOLVLM_TEMPLATE
    for name in ("DEFAULT_VIDEO_INTRO", "FRAME_TIMESTAMP_MESSAGE", "DEFAULT_MEDIA_OUTTRO"):
        assert hasattr(importlib.import_module(smolvlm.__name__), name)
    rule = FrameRule(sampler=Sampler.SMOLVLM, fps=1, num_frames=64)
    header = VideoHeader(width=64, height=64, num_frames=750, seconds=75.0)
    first, second, end = frame_texts(rule, [0, 745], header, num_shown=21).texts
    begin = smolvlm.DEFAULT_VIDEO_INTRO.format(frame_count="twenty-one", video_duration="0:01:15")
    assert first == begin + smolvlm.FRAME_TIMESTAMP_MESSAGE.format(timestamp="00:00")
    assert (second, end) == (smolvlm.FRAME_TIMESTAMP_MESSAGE.format(timestamp="01:14"), smolvlm.DEFAULT_MEDIA_OUTTRO)
