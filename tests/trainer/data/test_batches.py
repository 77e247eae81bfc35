"""Micro batches: as many on every rank, no sample lost or doubled, and the losses are those of the samples alone."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_cases import chat, question
from hypothesis import given, settings
from hypothesis import strategies as st
from other_processors import FAMILIES

from chat_files import png
from vlmplan.chats.samples import ImagePart, Sample, TextPart, Turn
from vlmplan.errors import InputError
from vlmplan.sampler import Shares
from vlmplan_trainer.data.batches import Batches, collated, with_blank
from vlmplan_trainer.data.dummy import dummy_samples
from vlmplan_trainer.data.encode import IGNORED_LABEL, Encoder, PlannedSamples

Step = tuple[int, ...]


def encoder(processor: Any, *, model_type: str = "qwen2_vl", skips_bad: bool = False, **changes: Any) -> Encoder:
    planned = PlannedSamples(**{"seq_len": 128, "image_size": (56, 56)} | changes)
    return Encoder(processor, planned, model_type=model_type, skips_bad=skips_bad)


@pytest.fixture(scope="module")
def texts(llama: Any) -> Encoder:
    return encoder(llama, model_type="llama", image_size=None)


def numbered(count: int) -> list[Sample]:
    """Samples that can be told apart by how often they say one word, and so by their length."""
    return [question(answer="." + " ." * index, source=f"some.jsonl:{index + 1}") for index in range(count)]


def batches(
    samples: list[Sample],
    made: Encoder,
    *,
    micro_batch: int = 2,
    num_ranks: int = 1,
    rank: int = 0,
    grad_accum: int = 1,
    **more: Any,
) -> Batches:
    shares = Shares(micro_batch=micro_batch, num_ranks=num_ranks, rank=rank, grad_accum=grad_accum)
    return Batches(samples, made, shares, **more)


def shared(samples: list[Sample], made: Encoder, *, num_ranks: int, **changes: Any) -> list[Batches]:
    return [batches(samples, made, num_ranks=num_ranks, rank=rank, **changes) for rank in range(num_ranks)]


def rows(batch: dict[str, torch.Tensor]) -> list[int]:
    """The lengths of the samples in a batch, which name them."""
    return batch["attention_mask"].sum(dim=1).tolist()


# Whose turn it is


@settings(max_examples=20)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.integers(0, 9), st.booleans())
def test_no_sample_is_lost_or_doubled_when_a_run_goes_on_with_other_ranks(
    texts: Encoder, micro_batch: int, first_ranks: int, grad_accum: int, later_ranks: int, stop: int, groups: bool
):
    samples = numbered(20)
    common = {"micro_batch": micro_batch, "grad_accum": grad_accum, "groups_by_length": groups}
    before = shared(samples, texts, num_ranks=first_ranks, **common)
    had: Counter[int] = Counter()
    running = [iter(rank) for rank in before]
    for _ in range(min(stop, len(before[0]))):
        had.update(length for rank in running for length in rows(next(rank)))
    position = len(had)
    after = shared(samples, texts, num_ranks=later_ranks, **common)
    for rank in after:
        rank.resume(position)
        had.update(length for batch in rank for length in rows(batch))
    assert set(had.values()) <= {1}
    assert 20 - len(had) < micro_batch * grad_accum * later_ranks


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_all_ranks_have_as_many_micro_batches_and_the_rest_is_counted(
    texts: Encoder, micro_batch: int, num_ranks: int, grad_accum: int
):
    made = shared(numbered(27), texts, num_ranks=num_ranks, micro_batch=micro_batch, grad_accum=grad_accum)
    global_batch = micro_batch * num_ranks * grad_accum
    assert {len(rank) for rank in made} == {27 // global_batch * grad_accum}
    assert {rank.num_left_over for rank in made} == {27 % global_batch}


def test_every_epoch_has_its_own_order_and_the_same_epoch_the_same(texts: Encoder):
    made = batches(numbered(12), texts)
    orders = []
    for epoch in (0, 1, 0):
        made.set_epoch(epoch)
        orders.append([length for batch in made for length in rows(batch)])
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_a_position_is_for_the_next_iteration_alone_whatever_is_said_of_the_epoch(texts: Encoder):
    made = batches(numbered(12), texts)
    made.resume(8)
    made.set_epoch(3)
    assert len(list(made)) == (12 - 8) // 2
    assert len(list(made)) == len(made) == 12 // 2


def test_grouped_batches_have_less_padding(texts: Encoder):
    samples = numbered(60)
    waste = {}
    for groups in (False, True):
        found = list(batches(samples, texts, micro_batch=4, groups_by_length=groups))
        waste[groups] = sum(int((batch["attention_mask"] == 0).sum()) for batch in found)
    assert waste[True] < waste[False] / 2


def test_a_run_does_not_go_on_behind_the_end_of_its_data(texts: Encoder):
    with pytest.raises(InputError, match="stopped after 99 samples of an epoch, but the data has 12"):
        batches(numbered(12), texts).resume(99)


def test_less_data_than_a_step_takes_is_refused_with_what_was_left_out(texts: Encoder):
    with pytest.raises(InputError, match="the data has 7 samples, but one step of the plan takes 8"):
        batches(numbered(7), texts, micro_batch=4, grad_accum=2)
    samples = [*numbered(7), question("why " * 200, source="some.jsonl:8")]
    with pytest.raises(InputError, match=r"7 samples after 1 was left out \(the first: some.jsonl:8: .*takes 8"):
        batches(samples, texts, micro_batch=8)


# Padding


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 32))
def test_rows_are_padded_on_the_right_to_a_multiple_and_never_over_the_plan(lengths: list[int], pads_to: int):
    made = [
        {name: torch.full((1, length), 7) for name in ("input_ids", "attention_mask", "labels")} for length in lengths
    ]
    batch = collated(made, pad_id=5, pads_to=pads_to, seq_len=40)
    width = batch["input_ids"].shape[1]
    assert max(lengths) <= width <= 40
    assert width == 40 or (width % pads_to == 0 and width - max(lengths) < pads_to)
    for name, fill in (("input_ids", 5), ("attention_mask", 0), ("labels", IGNORED_LABEL)):
        expected = [[7] * length + [fill] * (width - length) for length in lengths]
        assert batch[name].tolist() == expected


def test_the_plans_length_as_multiple_gives_every_batch_that_length(texts: Encoder):
    assert {batch["input_ids"].shape for batch in batches(numbered(12), texts, pads_to=128)} == {(2, 128)}


def broken(folder: Path) -> Sample:
    file = folder / "a.png"
    file.write_bytes(png(56, 56)[:-30])
    shown = Turn(role="user", content=(ImagePart(source=file, width=56, height=56),))
    return Sample(source="some.jsonl:9", turns=(shown, Turn(role="assistant", content=(TextPart(text="A cat."),))))


def test_an_image_that_breaks_later_stops_with_file_and_line_or_leaves_ranks_in_step(qwen: Any, tmp_path):
    samples = [*dummy_samples(3, num_images=1, image_size=(56, 56), seed=0), broken(tmp_path)]
    with pytest.raises(InputError, match=r"^some.jsonl:9: image 1 cannot be read"):
        list(batches(samples, encoder(qwen)))
    made = encoder(qwen, skips_bad=True)
    found = list(batches(samples, made))
    assert (len(found), made.num_skipped) == (2, 1)
    assert sum(int((batch["labels"] != IGNORED_LABEL).any(dim=1).sum()) for batch in found) == 3


def test_a_micro_batch_whose_only_image_breaks_later_has_a_blank_one_so_that_ranks_stay_in_step(qwen: Any, tmp_path):
    samples = [*dummy_samples(3, num_images=1, image_size=(56, 56), seed=0), broken(tmp_path)]
    found = list(batches(samples, encoder(qwen, skips_bad=True), micro_batch=1))
    assert ["pixel_values" in batch for batch in found] == [True] * 4


# What the model makes of them


@pytest.fixture(scope="module")
def model(qwen_folder: Path) -> Any:
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(qwen_folder, dtype=torch.float32).eval()


def loss_sum(model: Any, batch: dict[str, torch.Tensor]) -> float:
    with torch.no_grad():
        logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
    return float(losses)


MIXED = [
    question("Short?", "Yes.", sizes=((56, 56),)),
    question("Two?", "No, three.", sizes=((28, 56), (56, 28))),
    chat(("user", "No image"), ("assistant", "None."), ("user", "Still?"), ("assistant", "Still none at all.")),
    question("One more?", "One.", sizes=((30, 90),)),
]


def test_a_batch_of_images_and_texts_gives_the_losses_of_its_samples(model: Any, qwen: Any):
    made = encoder(qwen)
    together = [made.encode(sample) for sample in MIXED]
    batch = collated(together, pad_id=made.pad_id, pads_to=64, seq_len=128)
    assert batch["image_grid_thw"].shape == (1 + 2 + 1, 3)
    alone = [loss_sum(model, row) for row in together]
    assert loss_sum(model, batch) == pytest.approx(sum(alone), rel=1e-5)


def test_patches_of_all_images_in_one_row_stay_in_one_row():
    """MiniCPM-V: every image's patches are side by side in the last dimension, their grids in a tensor beside."""
    ids = {name: torch.ones(1, 4, dtype=torch.int64) for name in ("input_ids", "attention_mask", "labels")}
    made = [
        {**ids, "pixel_values": torch.full((1, 3, 2, 2 * count), count), "target_sizes": torch.tensor([[1, count]])}
        for count in (4, 6)
    ]
    batch = collated([made[0], ids, made[1]], pad_id=0, pads_to=4, seq_len=4)
    assert batch["target_sizes"].tolist() == [[1, 4], [1, 6]]
    assert batch["pixel_values"].shape == (1, 3, 2, 2 * 10)
    assert batch["pixel_values"][0, 0, 0].tolist() == [4] * 8 + [6] * 12


def test_a_blank_image_behind_a_text_changes_nothing_but_that_the_vision_tower_runs(model: Any, qwen: Any):
    made = encoder(qwen)
    text = made.encode(MIXED[2])
    shown = with_blank(text, made, made.blank_image)
    assert loss_sum(model, shown) == pytest.approx(loss_sum(model, text), rel=1e-5)
    seen = []
    handle = model.model.visual.register_forward_hook(lambda *_: seen.append(1))
    loss_sum(model, shown)
    handle.remove()
    assert seen == [1]


def test_every_micro_batch_of_mixed_data_has_an_image_and_of_pure_data_none_is_added(qwen: Any):
    text = [question(source=f"text:{index}") for index in range(6)]
    images = [question(source=f"image:{index}", sizes=((56, 56),)) for index in range(2)]
    mixed = list(batches([*text, *images], encoder(qwen), micro_batch=1))
    assert all("pixel_values" in batch for batch in mixed)
    assert not any("pixel_values" in batch for batch in batches(text, encoder(qwen)))


def test_a_text_as_long_as_the_plan_gives_way_to_the_blank_image(qwen: Any):
    made = encoder(qwen, seq_len=40)
    row = with_blank(made.encode(question(answer="long " * 40)), made, made.blank_image)
    assert row["input_ids"].shape == row["labels"].shape == row["mm_token_type_ids"].shape == (1, 40)
    assert int((row["input_ids"] == qwen.image_token_id).sum()) == 1
    with pytest.raises(InputError, match="--seq-len 1 has no room for an image"):
        with_blank(row, encoder(qwen, seq_len=1), encoder(qwen, seq_len=1).blank_image)


@pytest.mark.parametrize("family", ["llava_next", "idefics3"])
def test_images_of_other_families_are_padded_to_one_number_of_tiles(family: str):
    made = encoder(FAMILIES[family](), model_type=family, image_size=None)
    found = [made.encode(question(sizes=sizes)) for sizes in [((56, 56),), (), ((28, 90),), ((90, 28), (20, 20))]]
    batch = collated(found, pad_id=0, pads_to=8, seq_len=128)
    rows_of_images = sum(row["pixel_values"].shape[0] for row in found if "pixel_values" in row)
    assert batch["pixel_values"].shape[0] == rows_of_images
    assert float(batch["pixel_values"].sum()) == pytest.approx(
        sum(float(row["pixel_values"].sum()) for row in found if "pixel_values" in row), rel=1e-4
    )


def test_tiles_that_phi_4_does_not_have_see_each_other_and_are_zeros():
    """A mask that lets none of them see any would make attention divide by nothing."""
    ids = torch.ones(1, 8, dtype=torch.long)
    rows = [
        {
            "input_ids": ids,
            "image_pixel_values": torch.ones(1, n, 3, 4, 4),
            "image_attention_mask": torch.zeros(1, n, 2, 2),
        }
        for n in (2, 3)
    ]
    batch = collated(rows, pad_id=0, pads_to=8, seq_len=8)
    assert batch["image_pixel_values"][0].sum((1, 2, 3)).tolist() == [48, 48, 0]
    assert batch["image_attention_mask"][0].sum((1, 2)).tolist() == [0, 0, 4]


def test_places_of_patches_count_those_of_the_samples_before():
    """As Molmo 2's processor makes them of several samples at once; of text alone there are none."""
    ids = {"input_ids": torch.ones(1, 3, dtype=torch.int64)}
    places = torch.tensor([[0, 1, -1, -1], [4, 5, 8, 9]], dtype=torch.int32)
    seen = {**ids, "pixel_values": torch.zeros(2, 9, 12), "image_token_pooling": places}
    batch = collated([seen, ids, seen], pad_id=0, pads_to=4, seq_len=4)
    expected = torch.cat([places, torch.where(places >= 0, places + 18, -1)])
    assert torch.equal(batch["image_token_pooling"], expected)
    assert batch["image_token_pooling"].dtype is torch.int32


def test_what_experts_a_token_goes_to_is_padded_like_the_token():
    """ERNIE 4.5 VL's processor says so of every token of a sample with images; of text alone nothing is said."""
    ids = torch.ones(1, 3, dtype=torch.int64)
    kinds = {"moe_mm_token_type_ids": torch.tensor([[1, 1, 0]])}
    rows = [{"input_ids": ids, **kinds}, {"input_ids": torch.ones(1, 5, dtype=torch.int64)}]
    batch = collated(rows, pad_id=0, pads_to=4, seq_len=8)
    assert batch["moe_mm_token_type_ids"].tolist() == [[1, 1, 0, 0, 0, 0, 0, 0], [0] * 8]
