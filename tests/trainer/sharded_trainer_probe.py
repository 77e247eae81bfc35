"""The trainer's models and loss under the real DeepSpeed engine on two CPU ranks, stage 0 beside stage 3.

``run`` starts this file on every rank, in processes of their own because DeepSpeed keeps global state.
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from prepared import run_prepared

from vlmplan.recipe.choices import LossKind

NUM_RANKS = 2
NUM_STEPS = 3
CHUNK_TOKENS = 5


def run(folder: Path, cases: Mapping[str, Mapping[str, object]]) -> dict[str, list]:
    """Of every case and rank: its losses with the plain loss at stage 0 and the chunked one at stage 3, and its bytes.

    A case is recipe fields by name, ``is_tied`` (which of the models in ``folder``) and maybe ``random_weights``.
    """
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "cases.json").write_text(json.dumps(cases))
        done = run_prepared(Path(__file__), [str(folder), directory], num_ranks=NUM_RANKS)
        assert done.returncode == 0, done.stderr[-5000:]
        ranks = [json.loads(Path(directory, f"rank{rank}.json").read_text()) for rank in range(NUM_RANKS)]
    return {name: [found[name] for found in ranks] for name in cases}


def batches(rank: int) -> list[dict]:
    """Other tokens and another number of labels on every rank and in every step."""
    import torch

    generator = torch.Generator().manual_seed(rank)
    found = []
    for step in range(NUM_STEPS):
        ids = torch.randint(20, 400, (2, 13), generator=generator)
        labels = ids.clone()
        labels[:, : 2 + rank + step] = -100
        found.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
    return found


def outcome(folder: Path, changes: dict, *, stage: int, kind: LossKind, rank: int, is_random: bool) -> dict:
    import deepspeed
    import torch
    from tiny_plans import tiny_plan

    from vlmplan.recipe import Recipe
    from vlmplan.recipe.choices import Method, Precision
    from vlmplan.recipe.zero import ZeroSettings
    from vlmplan_trainer.losses.loss import language_loss
    from vlmplan_trainer.measure import LiveStorages
    from vlmplan_trainer.models.load import load_model, num_elements

    zero = ZeroSettings(
        reduce_bucket_size=10_000, stage3_prefetch_bucket_size=10_000, stage3_param_persistence_threshold=0
    )
    changes = {**changes, "method": Method(changes["method"])}
    recipe = Recipe(precision=Precision.FP32, zero_stage=stage, zero=zero, micro_batch=2, **changes)
    plan = tiny_plan(folder, recipe, num_ranks=NUM_RANKS)
    with LiveStorages() as counter:
        loaded = load_model(plan, random_weights=is_random)
    parameters = list(loaded.model.parameters())
    base = [p for name, p in loaded.model.named_parameters() if "lora_" not in name and "modules_to_save" not in name]
    result = {
        "load_peak_bytes": counter.peak_bytes,
        "base_bytes": sum(4 * num_elements(p) for p in base),
        "num_sharded": sum(1 for p in base if hasattr(p, "ds_tensor") and p.numel() == 0),
        "num_base": len(base),
        "shard_bytes": sum(4 * p.ds_tensor.numel() for p in base if hasattr(p, "ds_tensor")),
    }

    class Losses(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = loaded.model

        def forward(self, batch):
            return language_loss(self.model, batch, kind=kind, num_items=10, chunk_tokens=CHUNK_TOKENS)

    optimizer = torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.5)
    config = {**plan.ds_config, "zero_allow_untested_optimizer": True}
    engine, *_ = deepspeed.initialize(model=Losses(), optimizer=optimizer, config=config)
    result["losses"] = []
    for batch in batches(rank):
        loss = engine(batch)
        engine.backward(loss)
        engine.step()
        result["losses"].append(float(loss.detach()))
    engine.destroy()
    return result


def train(rank: int, folder: str, directory: str) -> None:
    from vlmplan_trainer.engines.make import init_gloo

    init_gloo()
    found = {}
    for name, case in json.loads(Path(directory, "cases.json").read_text()).items():
        model, is_random = Path(folder, str(case.pop("is_tied"))), case.pop("random_weights", False)
        found[name] = {"sharded": outcome(model, case, stage=3, kind=LossKind.CHUNKED, rank=rank, is_random=is_random)}
        if not is_random:
            found[name]["plain"] = outcome(model, case, stage=0, kind=LossKind.FULL, rank=rank, is_random=False)
    Path(directory, f"rank{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    from vlmplan_trainer.starting import leave_ranks

    train(int(os.environ["RANK"]), *sys.argv[1:])
    leave_ranks()
