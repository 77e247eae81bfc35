"""The chunked loss beside the plain one: values, gradients, and the bytes of vocabulary-wide tensors."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_models import NUM_TOKENS, VOCAB_SIZE, batch, distance_fraction, exact_gradients, gradients, small_model
from torch.nn.functional import cross_entropy

from planned import BUNDLED_LOSSES
from vlmplan.errors import InputError
from vlmplan.recipe.choices import CHUNK_ELEMENTS, LossKind, chunk_tokens
from vlmplan_trainer.engines.base import LossModule
from vlmplan_trainer.labels import IGNORED_LABEL
from vlmplan_trainer.losses.cross_entropy import PIECES_PER_CHUNK, LogitRule, Product, chunked_cross_entropy
from vlmplan_trainer.losses.loss import language_loss, logit_rules, model_inputs, model_loss
from vlmplan_trainer.measure import LiveStorages

FUSED_OR_FULL = (LossKind.FULL, LossKind.CHUNKED, LossKind.LIGER)


def assert_equal_losses(model, inputs, *, chunk=5, tolerance=2e-6):
    """transformers' own loss, the plain path and the chunked one."""
    theirs = model(**inputs).loss
    expected = gradients(model, theirs)
    for options in ({"kind": LossKind.FULL}, {"kind": LossKind.CHUNKED, "chunk_tokens": chunk}):
        ours = language_loss(model, inputs, **options)
        assert ours.dtype == torch.float32
        assert float(ours) == pytest.approx(float(theirs), rel=tolerance)
        assert distance_fraction(gradients(model, ours), expected) < tolerance
    by_model = model_loss(model, inputs, num_items=int((inputs["labels"][:, 1:] != IGNORED_LABEL).sum()))
    assert distance_fraction(gradients(model, by_model), expected) < tolerance


# -- the function itself ---------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    num_tokens=st.integers(1, 40),
    vocab_size=st.integers(2, 60),
    chunk=st.integers(1, 50),
    cap=st.sampled_from([None, 0.5, 3.0]),
    scale=st.sampled_from([1.0, 0.25, -2.0]),
    ignored=st.floats(0, 1),
    num_products=st.integers(1, 2),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_chunks_of_any_size_give_the_loss_and_gradients_of_all_logits_at_once(
    num_tokens, vocab_size, chunk, cap, scale, ignored, num_products, has_bias, seed
):
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float32).requires_grad_()

    products = [Product(x=normal(num_tokens, 3 + i), weight=normal(vocab_size, 3 + i)) for i in range(num_products)]
    bias = normal(vocab_size) if has_bias else None
    labels = torch.randint(vocab_size, (num_tokens,), generator=random)
    labels[torch.rand(num_tokens, generator=random) < ignored] = IGNORED_LABEL
    rule = LogitRule(scale=scale, cap=cap)
    logits = rule(sum(p.x @ p.weight.T for p in products) + (bias if has_bias else 0))
    expected = cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    found = chunked_cross_entropy(products, bias, labels, rule=rule, chunk=chunk)
    leaves = [t for p in products for t in (p.x, p.weight)] + ([bias] if has_bias else [])
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
    pairs = zip(torch.autograd.grad(3 * found, leaves), torch.autograd.grad(3 * expected, leaves), strict=True)
    assert all(torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4) for ours, theirs in pairs)


def test_a_chunk_never_has_more_logits_than_it_may():
    for vocab_size in (32_000, 151_936, 256_000, 1_000_003):
        assert chunk_tokens(vocab_size) * vocab_size <= CHUNK_ELEMENTS
        assert 2 * chunk_tokens(vocab_size) * vocab_size > CHUNK_ELEMENTS


def test_gradients_are_computed_only_where_they_are_needed():
    x, weight = torch.randn(6, 4, requires_grad=True), torch.randn(9, 4)
    labels = torch.arange(6)
    chunked_cross_entropy([Product(x=x, weight=weight)], None, labels, rule=LogitRule(), chunk=4).backward()
    assert x.grad is not None
    assert weight.grad is None
    with torch.no_grad():
        loss = chunked_cross_entropy([Product(x=x, weight=weight)], None, labels, rule=LogitRule(), chunk=4)
    assert not loss.requires_grad


# -- in models -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 5, 2 * NUM_TOKENS, 1000])
@pytest.mark.parametrize("ties", [False, True])
def test_tied_and_untied_heads_give_the_plain_loss_for_every_chunk(ties, chunk):
    assert_equal_losses(small_model(tie_word_embeddings=ties), batch(), chunk=chunk)


@pytest.mark.parametrize(
    ("kind", "changes", "rule"),
    [
        ("llama", {}, LogitRule()),
        ("gemma2", {"final_logit_softcapping": 2.0}, LogitRule(cap=2.0)),
        ("gemma2", {"final_logit_softcapping": None}, LogitRule()),
        ("cohere", {"logit_scale": 0.25}, LogitRule(scale=0.25)),
        ("granite", {"logits_scaling": 4.0}, LogitRule(scale=1 / 4.0)),
        ("hyperclovax", {"logits_scaling": 0.5}, LogitRule(scale=0.5)),  # multiplies where Granite divides
        ("minicpm3", {"dim_model_base": 8, "num_key_value_heads": 4}, LogitRule()),  # divides hidden states
        ("recurrent_gemma", {"logits_soft_cap": 3.0, "lru_width": 32}, LogitRule(cap=3.0)),
    ],
)
def test_what_models_do_with_their_logits_is_done_to_chunks(kind, changes, rule):
    model = small_model(kind, **changes)
    assert rule in logit_rules(model)
    assert_equal_losses(model, batch(), tolerance=2e-5)


def test_what_a_models_forward_does_not_name_is_not_the_likeliest():
    from transformers import AutoConfig, AutoModelForImageTextToText

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {"model_type": "siglip_vision_model", **sizes, "image_size": 28, "patch_size": 14}
    text = {"model_type": "cohere2", **sizes, "vocab_size": 64, "num_key_value_heads": 1, "logit_scale": 0.25}
    seeing = AutoModelForImageTextToText.from_config(
        AutoConfig.for_model("aya_vision", text_config=text, vision_config=vision)
    )
    assert logit_rules(seeing) == [LogitRule(), LogitRule(scale=0.25)]
    assert logit_rules(small_model("cohere", logit_scale=0.25))[0] == LogitRule(scale=0.25)
    assert logit_rules(small_model("granite", logits_scaling=4.0))[0] == LogitRule(scale=1 / 4.0)
    assert logit_rules(small_model("hyperclovax", logits_scaling=4.0))[0] == LogitRule(scale=4.0)
    assert logit_rules(small_model("minicpm3", dim_model_base=8))[0] == LogitRule()  # a factor of hidden states
    assert logit_rules(small_model("gemma2", final_logit_softcapping=2.0))[0] == LogitRule(cap=2.0)


def test_another_treatment_of_logits_is_refused():
    model = small_model()
    head = model.lm_head
    model.get_output_embeddings = lambda: head
    model.lm_head = torch.nn.Sequential(head, torch.nn.Softsign())
    with pytest.raises(InputError, match="use --loss full"):
        language_loss(model, batch(), kind=LossKind.CHUNKED)
    assert language_loss(model, batch(), kind=LossKind.FULL).isfinite()


def test_a_head_that_runs_twice_in_a_forward_is_for_the_full_loss():
    model = small_model()
    whole = model.forward

    def twice(**inputs):
        whole(**inputs)
        return whole(**inputs)

    model.forward = twice
    with pytest.raises(InputError, match="LlamaForCausalLM runs its output head 2 times in a forward"):
        language_loss(model, batch(), kind=LossKind.CHUNKED)
    assert language_loss(model, batch(), kind=LossKind.FULL).isfinite()


@pytest.mark.parametrize("kind", [LossKind.CHUNKED, LossKind.FULL])
def test_backward_comes_by_the_result_of_a_model_before_the_weights_that_it_has_itself(kind):
    """ZeRO-3 brings them there: BLIP-2's ``query_tokens``."""
    model, order = small_model(), []
    model.factor = torch.nn.Parameter(torch.full((), 2.0))
    whole, table = model.forward, model.get_input_embeddings()

    def of_own(input_ids, **inputs):
        result = whole(inputs_embeds=table(input_ids) * model.factor, **inputs)
        result.logits.register_hook(lambda gradient: order.append("result"))
        return result

    model.forward = of_own
    model.factor.register_hook(lambda gradient: order.append("own"))
    language_loss(model, batch(), kind=kind).backward()
    assert order == ["result", "own"]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("options", [{"target_modules": ["lm_head"]}, {"modules_to_save": ["lm_head"]}], ids=str)
def test_adapters_on_and_copies_of_the_head_give_the_plain_loss(options, ties):
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=3, **({"target_modules": ["q_proj"]} | options), task_type="CAUSAL_LM")
    model = get_peft_model(small_model(tie_word_embeddings=ties), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # zero at first, which would hide a wrong A
                parameter.normal_(std=0.3)
    assert_equal_losses(model, batch())
    head = [name for name, p in model.named_parameters() if p.requires_grad and "lm_head" in name]
    assert head


def test_the_head_is_left_as_it_was():
    model = small_model()
    language_loss(model, batch(), kind=LossKind.CHUNKED)
    assert "forward" not in vars(model.lm_head)
    assert not model.lm_head._forward_hooks
    assert model(**batch()).logits.shape == (2, NUM_TOKENS, VOCAB_SIZE)


@pytest.mark.parametrize("kind", FUSED_OR_FULL)
def test_ignored_labels_alone_are_a_loss_of_zero_without_gradients(kind):
    model = small_model()
    loss = language_loss(model, batch(num_ignored=NUM_TOKENS), kind=kind)
    assert float(loss.detach()) == 0
    assert not any(gradient.any() for gradient in gradients(model, loss).values())


@pytest.mark.parametrize("kind", FUSED_OR_FULL)
def test_micro_batches_over_the_number_of_all_label_tokens_sum_to_the_loss_of_one_batch(kind):
    """Also where they have different numbers of labels, for which a mean of means would be wrong."""
    model = small_model()
    whole = batch(num_samples=3)
    whole["labels"][0, :15] = IGNORED_LABEL
    num_items = int((whole["labels"][:, 1:] != IGNORED_LABEL).sum())
    assert num_items == (NUM_TOKENS - 15) + 2 * (NUM_TOKENS - 7)
    expected = gradients(model, language_loss(model, whole, kind=kind))
    parts = [{name: value[i : i + 1] for name, value in whole.items()} for i in range(3)]
    total = sum(language_loss(model, part, kind=kind, num_items=num_items) for part in parts)
    assert float(total) == pytest.approx(float(model(**whole).loss), rel=1e-6)
    assert distance_fraction(gradients(model, total), expected) < 2e-6


# -- 16 bit ----------------------------------------------------------------------------------------------------------


PATHS = ({"kind": LossKind.FULL}, {"kind": LossKind.CHUNKED, "chunk_tokens": 5})


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bit_gradients_are_as_near_to_the_exact_ones_as_the_plain_ones_are(dtype, ties):
    """Sums over chunks round once per chunk more; half as much again is far from a wrong gradient."""
    model = small_model(dtype=dtype, tie_word_embeddings=ties)
    exact = exact_gradients(model)
    scale = 1024.0  # as a gradient scaler does
    distances = []
    for options in PATHS:
        found = gradients(model, scale * language_loss(model, batch(), **options))
        distances.append(distance_fraction({name: value.double() / scale for name, value in found.items()}, exact))
    plain, chunked = distances
    assert chunked < 1.5 * plain < 0.1


@pytest.mark.parametrize("caches", [False, True])
def test_under_autocast_gradients_are_float32_and_as_near_as_the_plain_ones(caches):
    model = small_model()
    exact = exact_gradients(model)
    distances = []
    for options in PATHS:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=caches):
            loss = language_loss(model, batch(), **options)
        found = gradients(model, loss)
        assert {value.dtype for value in found.values()} == {torch.float32}
        distances.append(distance_fraction(found, exact))
    plain, chunked = distances
    assert chunked < 1.5 * plain < 0.1


def test_float16_keeps_the_gradient_of_words_that_are_all_but_impossible():
    """p / n of a wide vocabulary is below float16's smallest number, 6e-8; the loss scale comes too late to help."""
    vocab_size, num_tokens = 20_000, 256
    random = torch.Generator().manual_seed(0)
    x = torch.randn(num_tokens, 4, generator=random).half().requires_grad_()
    weight = (0.01 * torch.randn(vocab_size, 4, generator=random)).half().requires_grad_()
    labels = torch.zeros(num_tokens, dtype=torch.int64)
    assert 1 / vocab_size / num_tokens < 2**-21
    loss = chunked_cross_entropy([Product(x=x, weight=weight)], None, labels, rule=LogitRule(), chunk=64) / num_tokens
    found = torch.autograd.grad(2.0**14 * loss, weight)[0].double() / 2**14
    exact_x, exact_weight = x.detach().double(), weight.detach().double().requires_grad_()
    expected = torch.autograd.grad(cross_entropy(exact_x @ exact_weight.T, labels), exact_weight)[0]
    rare = slice(1, None)
    assert (found[rare] - expected[rare]).norm() < 0.01 * expected[rare].norm()


# -- bytes -----------------------------------------------------------------------------------------------------------


WIDE_VOCAB, WIDE_TOKENS, WIDTH, CHUNK = 150_000, 48, 8, 16


def made_before(counter, *tensors) -> int:
    """Bytes of what is there already."""
    counter.count(*tensors)
    return counter.num_bytes


def peak_bytes(model, *, kind, autocast=None):
    inputs = batch(1, WIDE_TOKENS, WIDE_VOCAB)
    language_loss(model, batch(1, 2, WIDE_VOCAB, 0), kind=LossKind.CHUNKED)  # what is done once
    with LiveStorages() as counter:
        known = made_before(counter, *model.parameters(), *inputs.values())
        with torch.autocast("cpu", autocast) if autocast else nullcontext():
            loss = language_loss(model, inputs, kind=kind, chunk_tokens=CHUNK)
        loss.backward()
    return counter.peak_bytes - known


@pytest.mark.parametrize(
    ("kind", "dtype", "autocast"),
    [
        ("llama", torch.float32, None),
        ("llama", torch.float32, torch.bfloat16),
        ("gemma2", torch.bfloat16, None),
    ],
)
def test_of_float32_logits_the_plain_path_holds_several_copies_and_the_chunked_one_a_chunk(kind, dtype, autocast):
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8}
    sizes = {"vocab_size": WIDE_VOCAB, "hidden_size": WIDTH, "intermediate_size": 8, "num_hidden_layers": 1, **heads}
    model = small_model(kind, dtype=dtype, **sizes)
    logits_bytes, chunk_bytes = 4 * WIDE_TOKENS * WIDE_VOCAB, 4 * CHUNK * WIDE_VOCAB
    assert peak_bytes(model, kind=LossKind.FULL, autocast=autocast) > 3 * logits_bytes
    # Embedding and head: the gradient of each, and the head's weight cast once where types differ.
    weight_bytes = (2 * dtype.itemsize + (autocast.itemsize if autocast else 0)) * WIDE_VOCAB * WIDTH
    compute_bytes = (autocast or dtype).itemsize / 4 * chunk_bytes  # logits before, their gradient after
    allowed = chunk_bytes + max(compute_bytes, 2 * chunk_bytes / PIECES_PER_CHUNK)
    small = 0.1 * chunk_bytes
    assert peak_bytes(model, kind=LossKind.CHUNKED, autocast=autocast) < weight_bytes + allowed + small


def test_the_chunked_peak_does_not_grow_with_the_number_of_tokens():
    weight = torch.randn(WIDE_VOCAB, WIDTH, requires_grad=True)
    peaks = []
    for num_tokens in (CHUNK, 5 * CHUNK):
        x = torch.randn(num_tokens, WIDTH, requires_grad=True)
        labels = torch.arange(num_tokens)
        with LiveStorages() as counter:
            known = made_before(counter, x, weight, labels)
            products = [Product(x=x, weight=weight)]
            chunked_cross_entropy(products, None, labels, rule=LogitRule(), chunk=CHUNK).backward()
        peaks.append(counter.peak_bytes - known)
    assert peaks[1] - peaks[0] < 0.01 * peaks[0]


# -- padding ---------------------------------------------------------------------------------------------------------

CAUSAL = (
    "llama",
    "mistral",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi3",
    "gpt2",
    "opt",
    "bloom",
    "gpt_neox",
    "mixtral",
    "mpt",
)


@pytest.mark.parametrize("kind", CAUSAL)
def test_padding_on_the_right_needs_no_mask_where_attention_is_causal(kind):
    model = small_model(kind, sliding_window=8).eval()  # no dropout
    inputs = batch()
    padding = slice(NUM_TOKENS - 9, None)
    inputs["input_ids"][0, padding], inputs["labels"][0, padding], inputs["attention_mask"][0, padding] = (
        0,
        IGNORED_LABEL,
        0,
    )
    assert "attention_mask" not in model_inputs(inputs)
    found = gradients(model, language_loss(model, inputs, kind=LossKind.FULL))
    masked = gradients(model, model(**inputs).loss)
    assert distance_fraction(found, masked) < 2e-6


def test_a_model_whose_tokens_look_ahead_keeps_the_mask():
    inputs = batch() | {"token_type_ids": torch.zeros(2, NUM_TOKENS, dtype=torch.long)}
    assert set(model_inputs(inputs)) == {"input_ids", "attention_mask", "token_type_ids"}


def test_a_padded_batch_makes_no_mask_of_tokens_squared():
    model, inputs = small_model(), batch(num_samples=1, num_tokens=1024)
    inputs["attention_mask"][:, -8:] = 0
    sizes = []
    for shown in (inputs, model_inputs(inputs)):
        with LiveStorages() as storages:
            model(**{name: value for name, value in shown.items() if name != "labels"})
        sizes.append(storages.peak_bytes)
    assert sizes[0] - sizes[1] > 1024**2  # a bool for every pair of tokens, at least


@pytest.mark.parametrize("loss", BUNDLED_LOSSES)
def test_the_logits_of_the_full_loss_live_until_backward_is_done(loss):
    module = LossModule(small_model(dtype=torch.bfloat16), loss=loss)
    size = 2 * NUM_TOKENS * VOCAB_SIZE * 2
    with LiveStorages() as storages:
        module(batch(), 10).backward()
        held = [num_bytes for num_bytes in storages.sizes.values() if num_bytes == size]
        assert len(held) == (1 if loss is LossKind.FULL else 0)
        module.release_logits()
        assert size not in storages.sizes.values()
        with torch.no_grad():
            module(batch(), 10)  # evaluation keeps nothing
        assert size not in storages.sizes.values()
