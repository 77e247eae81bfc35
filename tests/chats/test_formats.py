"""The two forms of a chat: what is in them is read as it is, and what is not in order is one sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chat_files import ANSWER, asked, text
from vlmplan.chats.formats import RawTurn, raw_sample
from vlmplan.chats.references import Reference
from vlmplan.errors import InputError

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)


def read(values: dict) -> tuple[RawTurn, ...]:
    return raw_sample(values, source="some.jsonl:7").turns


def user(*content: str | Reference) -> RawTurn:
    return RawTurn(role="user", content=content)


def assistant(said: str = "A cat.") -> RawTurn:
    return RawTurn(role="assistant", content=(said,))


def human(said: str, **more: object) -> dict:
    return {"conversations": [{"from": "human", "value": said}, {"from": "gpt", "value": "A cat."}], **more}


SAID = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": "a.png"},
        {"type": "image", "path": "a.png"},
        {"type": "image", "url": "a.png"},
        {"type": "image_url", "image_url": {"url": "a.png"}},
        {"type": "image_url", "image_url": "a.png"},
        {"type": "image", "image": None, "path": "a.png"},
    ],
)
def test_every_way_to_name_an_image_in_a_part_is_read(part: dict):
    assert read(asked(part, text("Hm?"))) == (user(Reference(text="a.png"), "Hm?"), assistant())


def test_the_key_base64_says_what_it_holds():
    [first, _] = read(asked({"type": "image", "base64": "AAAA"}))
    assert first.content == (Reference(text="AAAA", is_base64=True),)


@pytest.mark.parametrize("images", [["a.png", "b.png"], ("a.png", "b.png")])
@pytest.mark.parametrize("key", ["images", "image"])
def test_parts_and_tags_without_an_image_take_the_samples_own_in_order(key: str, images: object):
    parts = asked({"type": "image"}, text("and"), {"type": "image"}, **{key: list(images)})
    expected = (user(Reference(text="a.png"), "and", Reference(text="b.png")), assistant())
    assert read(parts) == expected
    assert read(asked("<image>\nand\n<image>", **{key: list(images)})) == expected
    assert read(human("<image>\nand\n<image>", **{key: list(images)})) == expected


def test_a_single_image_of_a_llava_sample_needs_no_list():
    assert read(human("<image>\nWhat?", image="a.png")) == (user(Reference(text="a.png"), "What?"), assistant())


def test_the_names_of_the_sides_in_llavas_form_are_roles():
    values = {
        "conversations": [{"from": name, "value": name} for name in ("system", "human", "gpt", "user", "assistant")]
    }
    assert [turn.role for turn in read(values)] == ["system", "user", "assistant", "user", "assistant"]


@given(WORDS, WORDS)
def test_text_without_images_is_kept_to_the_letter(said: str, answer: str):
    values = {"messages": [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]}
    if "<image>" not in said:
        assert read(values) == (user(said), assistant(answer))


def test_a_tag_in_what_the_assistant_says_is_text():
    values = {"messages": [{"role": "user", "content": "SVG?"}, {"role": "assistant", "content": "Use <image>."}]}
    assert read(values) == (user("SVG?"), assistant("Use <image>."))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"text": "x"}, 'none of messages, conversations, instruction, query, prompt, but "text"; one is needed'),
        ({**asked("x"), **human("x")}, "messages and conversations; one is needed"),
        ({"messages": "x"}, 'messages is "x"; a list is needed'),
        ({"messages": []}, "no turn is the assistant's"),
        ({"messages": ["x"]}, r"messages\[0\] is \"x\"; an object"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no turn is the assistant's"),
        ({"messages": [ANSWER]}, "the assistant speaks before the user"),
        (
            {"messages": [{"role": "robot", "content": "x"}, ANSWER]},
            'messages\\[0\\].role is "robot"; one of system, user',
        ),
        ({"messages": [{"content": "x"}, ANSWER]}, r"messages\[0\].role is missing"),
        ({"messages": [{"role": "user"}, ANSWER]}, r"messages\[0\].content is missing"),
        ({"messages": [{"role": "user", "content": 5}, ANSWER]}, "content is 5; text, or a list of parts is needed"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": " "}]},
            "turn 2.* is empty",
        ),
        ({"conversations": [{"from": "bot", "value": "x"}]}, r'conversations\[0\].from is "bot"; one of human'),
        ({"conversations": [{"from": "human", "value": ["x"]}]}, r"value is \[\"x\"\]; text is needed"),
        (asked({"type": "video", "video": "a.mp4"}), "a turn shows a video; samples of text and images are read"),
        (asked({"type": "text", "text": None}), r"content\[0\].text is null; text is needed"),
        (asked({"type": "image", "path": "a", "url": "b"}), "names its image twice, by path and url"),
        (asked({"type": "image", "image": 7}), r"content\[0\].image is 7; text is needed"),
        (asked("<image>"), "an image tag has no image: 1 tag, 0 images"),
        (asked({"type": "image"}, {"type": "image"}, image="a"), "an image tag has no image: 2 tags, 1 image"),
        (human("What?", image="a.png"), "more images than tags: 0 tags, 1 image .*a.png"),
        (human("<image>", image=["a", "b"]), "more images than tags: 1 tag, 2 images"),
        (human("<image>", image=[1]), r"image is \[1\]; a text or a list of texts"),
        (human("<image>", image="a", images=["a"]), "both image and images"),
        (human("<image>", image=[{"file": "a"}]), "an object with one of image, path"),
        ({"prompt": "x"}, "completion is missing"),
        ({"prompt": "x", "chosen": "a", "rejected": "b"}, "a pair of answers, on which --task dpo trains; supervised"),
        ({"chosen": [ANSWER], "rejected": [ANSWER]}, "the sample has chosen and rejected, a pair of answers, on which"),
        ({"prompt": "x", "completion": [ANSWER]}, r"completion is \[.*; a text, or a list of messages, and the same"),
        ({"prompt": 5, "completion": "y"}, "prompt is 5; a text, or a list of messages"),
        ({"prompt": "x", "completion": " "}, "the completion is empty"),
        ({"prompt": "x", "completion": "y", "image": "a.png"}, "a prompt that is a text shows no images"),
        ({"prompt": "x", "completion": "y", "label": False}, "label is false; samples that are marked"),
        ({"prompt": [SAID], "completion": []}, "a completion that begins with one of the assistant's .* 0 messages"),
        ({"prompt": [SAID], "completion": [SAID]}, "a completion that begins with one of the assistant's"),
        (
            {"prompt": [{"role": "robot", "content": "x"}], "completion": [ANSWER]},
            r'prompt\[0\].role is "robot"; one of',
        ),
        ({"instruction": "x"}, "output is missing"),
        ({"instruction": "x", "output": ""}, "turn 2, the assistant's, is empty"),
        ({"instruction": "", "input": "", "output": "y"}, 'instruction is ""; a text that is not empty, or an input'),
        ({"instruction": ["x"], "output": "y"}, "instruction is .*; text is needed"),
        ({"instruction": "x", "output": "y", "history": [["a"]]}, "history is .*; a list of pairs of texts"),
    ],
)
def test_what_is_not_in_order_is_one_sentence_with_file_and_line(values: dict, sentence: str):
    with pytest.raises(InputError, match=f"^some.jsonl:7.*{sentence}"):
        read(values)


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_only_the_user_shows_images(role: str):
    shown = {"role": role, "content": [{"type": "image", "path": "a.png"}, text("x")]}
    with pytest.raises(InputError, match=f"a turn of the {role} shows an image"):
        read({"messages": [{"role": "user", "content": "x"}, shown, ANSWER]})


def test_an_instruction_and_its_input_are_a_turn_after_those_that_came_before():
    sample = {"instruction": "Translate.", "input": "Katze", "output": "cat", "system": "Be brief.",
              "history": [["Hello", "Hi"]]}  # fmt: skip
    assert read(sample) == (
        RawTurn(role="system", content=("Be brief.",)),
        user("Hello"),
        assistant("Hi"),
        user("Translate.\nKatze"),
        assistant("cat"),
    )
    assert read({"instruction": "Hello", "input": None, "output": "Hi"}) == (user("Hello"), assistant("Hi"))
    shown = {"instruction": "<image>What?", "output": "A cat.", "images": ["a.png"]}
    assert read(shown) == (user(Reference(text="a.png"), "What?"), assistant())


def test_of_a_prompt_and_its_completion_the_turns_of_the_prompt_are_counted():
    chat = [{"role": "system", "content": "s"}, SAID, ANSWER, SAID]
    found = raw_sample({"prompt": chat, "completion": [ANSWER]}, source="f:1")
    assert (len(found.turns), found.num_prompt_turns, found.is_plain) == (5, 4, False)
    found = raw_sample({"prompt": "The sky is", "completion": " <image> blue."}, source="f:1")
    assert found.turns == (user("The sky is"), assistant(" <image> blue."))
    assert (found.num_prompt_turns, found.is_plain) == (1, True)


@pytest.mark.parametrize("images", [["a.png"], [{"path": "a.png", "bytes": None}], "a.png", {"path": "a.png"}])
def test_messages_without_tags_show_their_images_before_the_users_first_text(images: object):
    """As TRL's ``prepare_multimodal_messages`` has it."""
    chat = [{"role": "system", "content": "s"}, SAID, ANSWER, SAID, ANSWER]
    expected = (RawTurn(role="system", content=("s",)), user(Reference(text="a.png"), "x"), assistant(), user("x"))
    assert read({"messages": chat, "images": images}) == (*expected, assistant())
    assert read({"prompt": chat[:-1], "completion": [ANSWER], "images": images}) == (*expected, assistant())


def test_conversations_may_be_messages_by_another_name():
    assert read({"conversations": [SAID, ANSWER]}) == (user("x"), assistant())


# -- videos ----------------------------------------------------------------------------------------------------------


def shown_videos(values: dict) -> list[str | Reference]:
    """The parts of the user's turn, where videos are read."""
    return [*raw_sample(values, source="some.jsonl:7", no_videos=None).turns[0].content]


CLIP = Reference(text="a.mp4", is_video=True)


@pytest.mark.parametrize(
    "values",
    [
        asked({"type": "video", "video": "a.mp4"}, {"type": "text", "text": "What?"}),
        asked({"type": "video", "path": "a.mp4"}, {"type": "text", "text": "What?"}),
        asked({"type": "video"}, {"type": "text", "text": "What?"}, videos=["a.mp4"]),
        asked("<video>What?", video="a.mp4"),
        human("<video>What?", videos=["a.mp4"]),
    ],
)
def test_a_video_is_a_part_with_its_path_or_a_tag_with_the_samples_own(values: dict):
    assert shown_videos(values) == [CLIP, "What?"]


FRAMES = ("1.jpg", "2.PNG")
LISTED = Reference(text="1.jpg", is_video=True, frames=FRAMES)


def test_a_list_of_images_is_one_video():
    for values in (
        asked({"type": "video", "video": [*FRAMES]}, text("What?")),
        asked("<video>What?", video=[*FRAMES]),
        human("<video>What?", videos=[[*FRAMES]]),
    ):
        assert shown_videos(values) == [LISTED, "What?"]
    assert shown_videos(asked("<video><video>", videos=[[*FRAMES], "a.mp4"])) == [LISTED, CLIP]
    [timed] = shown_videos(asked({"type": "video", "video": [*FRAMES], "sample_fps": 4}))
    assert timed == Reference(text="1.jpg", is_video=True, frames=FRAMES, frames_per_second=4.0)


def test_images_and_videos_of_a_sample_are_told_apart():
    mixed = shown_videos(asked("<image><video>What?", image="a.png", video="a.mp4"))
    assert mixed == [Reference(text="a.png"), CLIP, "What?"]


def test_a_tag_of_a_page_is_text_where_a_sample_has_no_videos():
    assert shown_videos(asked("Why does <video> not play?")) == ["Why does <video> not play?"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (asked("<video>", video=["a", "b"]), "1 <video> tag, but 2 videos"),
        (asked({"type": "video", "video": ["1.jpg", 2]}), "the path of a video file, or a list of the paths of its fr"),
        (
            asked({"type": "video", "video": ["1.mp4"]}),
            "the path of a video file, or a list of the paths of its frames",
        ),
        (asked({"type": "video", "video": ["1.jpg"], "sample_fps": 0}), "a number of frames a second above 0"),
        (asked("<video>", videos=[["1.jpg"], 2]), "a list of the paths of its frames, or a list of either"),
        (asked({"type": "video", "video": "a", "path": "b"}), "names its video twice, by video and path"),
        (asked({"type": "video", "video": "a", "use_audio_in_video": True}), "the sound of a video is not read w"),
        (asked("<video>", video="a", load_audio_from_video=True), "load_audio_from_video is true; the sound of"),
        (asked({"type": "video", "video": "a", "use_audio_in_video": 1}), "use_audio_in_video is 1; true or false"),
        ({"prompt": "x", "completion": "y", "video": "a"}, "a prompt that is a text shows no videos"),
        (
            {"messages": [SAID, {"role": "assistant", "content": [{"type": "video", "video": "a"}]}]},
            "shows a video; vid",
        ),
    ],
)
def test_videos_that_are_not_in_order_are_one_sentence(values: dict, sentence: str):
    with pytest.raises(InputError, match=f"^some.jsonl:7.*{sentence}"):
        shown_videos(values)


# -- sounds ----------------------------------------------------------------------------------------------------------


def shown_sounds(values: dict) -> list[str | Reference]:
    """The parts of the user's turn, where sounds are read."""
    return [*raw_sample(values, source="some.jsonl:7", no_sounds=None).turns[0].content]


BARK = Reference(text="a.wav", is_sound=True)
HEARD = Reference(text="UklGRg==", is_base64=True, is_sound=True)


@pytest.mark.parametrize(
    "values",
    [
        asked({"type": "audio", "audio": "a.wav"}, {"type": "text", "text": "What?"}),
        asked({"type": "audio", "path": "a.wav"}, {"type": "text", "text": "What?"}),
        asked({"type": "audio", "url": "a.wav"}, {"type": "text", "text": "What?"}),
        asked({"type": "audio_url", "audio_url": {"url": "a.wav"}}, {"type": "text", "text": "What?"}),
        asked({"type": "audio"}, {"type": "text", "text": "What?"}, audios=["a.wav"]),
        asked({"type": "audio"}, {"type": "text", "text": "What?"}, audios=[{"path": "a.wav"}]),
        asked("<audio>What?", audio="a.wav"),
        human("<audio>What?", audios=["a.wav"]),
    ],
)
def test_a_sound_is_a_part_with_its_file_or_a_tag_with_the_samples_own(values: dict):
    assert shown_sounds(values) == [BARK, "What?"]


def test_a_sound_in_a_sample_itself_is_openais_part_or_base64():
    part = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    assert shown_sounds(asked(part, text("What?"))) == [HEARD, "What?"]
    assert shown_sounds(asked({"type": "audio", "base64": "UklGRg=="}, text("What?"))) == [HEARD, "What?"]


@pytest.mark.parametrize("key", ["text", "sentence", "transcription"])
@pytest.mark.parametrize("sound", ["a.wav", {"path": "a.wav"}])
def test_a_sound_beside_what_is_said_is_a_sample_of_speech(key: str, sound: str | dict[str, str]):
    read = raw_sample({"audio": sound, key: "Good morning."}, source="one", no_sounds=None)
    assert read.form == "audio, text (speech)"
    assert [turn.content for turn in read.turns] == [(BARK,), ("Good morning.",)]


@pytest.mark.parametrize("key", ["text", "caption"])
def test_an_image_beside_what_is_written_about_it_is_a_sample(key: str):
    read = raw_sample({"image": "a.png", key: "A red square."}, source="one")
    assert read.form == "image, text"
    assert [turn.content for turn in read.turns] == [(Reference(text="a.png"),), ("A red square.",)]
    with pytest.raises(InputError, match="one is needed"):
        raw_sample({"image": "a.png", "text": "x", "caption": "y"}, source="one")
    with pytest.raises(InputError, match="more images than tags: 1 tag, 2 images"):
        raw_sample({"images": ["a.png", "b.png"], key: "x"}, source="one")


def test_what_is_said_without_a_sound_or_twice_is_no_form():
    for values in ({"text": "Good morning."}, {"audio": "a.wav", "text": "x", "sentence": "y"}):
        with pytest.raises(InputError, match="one is needed"):
            raw_sample(values, source="one", no_sounds=None)


def test_images_and_sounds_of_a_sample_are_told_apart():
    mixed = shown_sounds(asked("<image><audio>What?", image="a.png", audio="a.wav"))
    assert mixed == [Reference(text="a.png"), BARK, "What?"]
    assert shown_sounds(asked("Why does <audio> not play?")) == ["Why does <audio> not play?"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (asked("<audio>", audio=["a", "b"]), "1 <audio> tag, but 2 sounds"),
        (asked("<audio>", audio="a", audios=["b"]), "the sample has both audio and audios; one of the two has to go"),
        (asked({"type": "audio", "audio": "a", "path": "b"}), "names its sound twice, by audio and path"),
        (asked("<audio>", audios=[2]), "a text or a list of texts, or objects with one of path, url and base64"),
        ({"prompt": "x", "completion": "y", "audio": "a"}, "a prompt that is a text shows no sounds"),
        (
            {"messages": [SAID, {"role": "assistant", "content": [{"type": "audio", "audio": "a"}]}]},
            "shows a sound; sounds belong to the user's turns",
        ),
    ],
)
def test_sounds_that_are_not_in_order_are_one_sentence(values: dict, sentence: str):
    with pytest.raises(InputError, match=r"^some\.jsonl:7") as caught:
        shown_sounds(values)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("values", [asked({"type": "audio", "audio": "a.wav"}), asked("<audio>", audio="a.wav")])
def test_sounds_are_refused_where_they_are_not_read(values: dict):
    with pytest.raises(InputError, match="video and sound are not"):
        raw_sample(values, source="some.jsonl:7")
