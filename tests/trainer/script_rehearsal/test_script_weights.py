"""Of weights the header alone is read, however large their files are."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch

from cli_calls import call
from vlmplan.errors import InputError
from vlmplan_trainer.script_rehearsal.weights import HeaderOnly

GIB = 2**30
HIDDEN, INTERMEDIATE, VOCAB, LAYERS = 8192, 28672, 128256, 2
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
}
LAYER = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (1024, HIDDEN),
    "self_attn.v_proj": (1024, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
}
ENDS = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}
SCRIPT = """
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("large", dtype="auto").to("cuda")
assert model.dtype is torch.bfloat16
model.requires_grad_(False)
model.lm_head.requires_grad_(True)
optimizer = torch.optim.SGD(model.lm_head.parameters(), lr=1e-3)
for _ in range(3):
    ids = torch.arange(16)[None].cuda()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def write_sparse(path: Path, shapes: Mapping[str, tuple[int, ...]], *, dtype: str = "BF16") -> int:
    """A safetensors file of which nothing but the header takes room on the disk. Its bytes."""
    place, header = 0, {}
    for name, shape in shapes.items():
        end = place + 2 * torch.Size(shape).numel()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + place)
    return path.stat().st_size


def read_bytes() -> int:
    """What this process has asked files for."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="what was read is in /proc")
def test_of_a_file_of_many_gib_the_header_alone_is_read(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    assert write_sparse(path, {"one": (1 << 20, 1 << 15), "two": (3, 5)}) > 60 * GIB
    write_sparse(tmp_path / "small.safetensors", {"one": (1,)})
    HeaderOnly(tmp_path / "small.safetensors")  # imports what it needs
    before = read_bytes()
    file = HeaderOnly(path)
    assert read_bytes() - before < 2**20
    assert list(file.keys()) == ["one", "two"]
    assert file.get_slice("one").get_shape() == [1 << 20, 1 << 15]
    assert file.get_slice("one").get_dtype() == "BF16"
    assert file.get_tensor("two").shape == (3, 5)
    assert file.get_tensor("two").dtype == torch.bfloat16


def test_settings_of_four_bits_are_read_for_they_are_no_weights(tmp_path: Path):
    from safetensors.torch import save_file

    settings = torch.tensor(list(b'{"blocksize": 64}'), dtype=torch.uint8)
    save_file(
        {"a.weight.quant_state.bitsandbytes__nf4": settings, "a.weight": settings.clone()}, tmp_path / "x.safetensors"
    )
    file = HeaderOnly(tmp_path / "x.safetensors")
    assert bytes(file.get_tensor("a.weight.quant_state.bitsandbytes__nf4").tolist()) == b'{"blocksize": 64}'
    assert file.get_slice("a.weight").content is None


@pytest.mark.parametrize(
    "content",
    [b"", b"version https://git-lfs.github.com/spec/v1\n", (9).to_bytes(8, "little") + b'{"a": {}}', b"\x05" * 99],
)
def test_what_is_no_safetensors_file_is_refused_in_a_sentence(tmp_path: Path, content: bytes):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"model\.safetensors"):
        HeaderOnly(path)


@pytest.mark.sweep
@pytest.mark.parametrize("num_files", [1, 3])
def test_a_script_is_rehearsed_beside_weights_that_would_not_fit_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_files: int
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    layers = [(f"model.layers.{n}.{name}.weight", shape) for n in range(LAYERS) for name, shape in LAYER.items()]
    shapes = dict([*ENDS.items(), *layers])
    names = list(shapes)
    weight_map = {}
    several = [f"model-{n}-of-{num_files}.safetensors" for n in range(num_files)]
    files = several if num_files > 1 else ["model.safetensors"]
    total = 0
    for number, file in enumerate(files):
        own = names[number::num_files]
        total += write_sparse(folder / file, {name: shapes[name] for name in own})
        weight_map |= dict.fromkeys(own, file)
    if num_files > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "train.py").write_text(SCRIPT)
    found = call("rehearse", "--gpu", "h100-sxm:1", "--json", "--max-rehearsal-ram", "3", "--", "python", "train.py")
    assert found.code == 0, found.err
    weights = 2 * sum(torch.Size(shape).numel() for shape in shapes.values())
    assert weights > 7 * GIB
    assert found.document["phases"][0]["resident_bytes"] == pytest.approx(weights, rel=1e-4)
    assert "no safetensors file" not in " ".join(found.document["notes"])
    assert sum(os.stat(folder / file).st_blocks for file in files) * 512 < 2**20
