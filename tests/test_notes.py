"""Sentences about an answer: what changes it is told from what explains it."""

import json

from vlmplan.notes import Caveat, caveats, footnotes

SENTENCES = ["from a default", Caveat("images are not counted"), "of the model", Caveat("images are not counted")]


def test_each_sentence_is_in_the_headline_or_below():
    assert caveats(SENTENCES) == ["images are not counted"]
    assert footnotes(SENTENCES) == ["from a default", "of the model"]


def test_a_caveat_is_a_text_like_any_other():
    assert json.dumps([Caveat("a")]) == '["a"]'
    assert Caveat("a") == "a"
