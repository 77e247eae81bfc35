"""The layers of a model that has no family, rehearsed once for every command: what the generic layer does not count.

The generic tree (``architecture/generic``) knows weights and products exactly, and guesses what a layer keeps. So the
first layers are rehearsed, LoRA on one card without checkpointing, with samples of two lengths, and what the formulas
miss is added to every layer of the kind (``generic/layer_bytes.py``). It is kept for the config.json alone, and where
the training extra is not installed, what was found once is taken as it is.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vlmplan.architecture.generic.layer_bytes import UNCORRECTED, LayerBytes, RehearsedLayers, TokenBytes, token_bytes
from vlmplan.architecture.generic.layout import EXPERT_WIDTH, ModuleKind, recurrent_classes
from vlmplan.errors import VlmplanError
from vlmplan.estimation import Estimate, estimate
from vlmplan.files.user_cache import keep_text, kept_text
from vlmplan.hardware import Cluster, Gpu, Node, Vendor
from vlmplan.models import described
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.phase_names import BACKWARD, FORWARD
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.recipe.lora_targets import STATE_OUTPUT, TYPES_WITHOUT_OUT_PROJ
from vlmplan.rehearsal.prefixes import by_kind, layer_pattern, lengths, num_first_layers, shortened
from vlmplan.rehearsal.setup_peaks import Rehearse, rehearsed_peaks
from vlmplan.rules import default_attention, losses, model_facts
from vlmplan.workload import ModelFiles, Workload

TOKENS = (256, 512)
"""Lengths of the samples: whole chunks of every mixer that computes in chunks (64 to 256 tokens)."""
A_GPU = Gpu(
    id="a100", name="A100", vendor=Vendor.NVIDIA, memory_bytes=80 * 2**30, supports_bf16=True, compute_capability=(8, 0)
)
"""Whose kernels of attention are rehearsed, as where a card's are not known."""
EXPERT_NAMES = {"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"}
"""Names that peft 0.21 takes for experts in one parameter where a model has such
(``utils/transformers_weight_conversion.py``)."""
STACKED = 3
"""Dimensions of such a parameter."""
SCHEMA = 1
"""Version of what is kept."""

Gaps = tuple[int, int]
"""Bytes that a rehearsal finds and the formulas do not: alive behind forward, and passing in backward besides."""


def with_layers(model: ModelFiles, rehearse: Rehearse | None = None) -> ModelFiles:
    """``model`` with what rehearsals found of its layers, where it has no family; others as they are.

    Where they cannot be rehearsed a note says why. Raises what rehearsing does for layers that nothing else tells of.
    """
    model = with_kept_layers(model)
    if not isinstance(model, ProbedModelFiles) or model.rehearsed is not UNCORRECTED:
        return model
    try:
        layers = _rehearsed(model, rehearse or rehearsed_peaks)
    except VlmplanError as error:
        if recurrent_classes(model.layout):
            raise
        return replace(model, notes=(*model.notes, f"Its layers are not rehearsed: {str(error).rstrip('.')}."))
    keep_text(json.dumps(layers_json(layers)), *_place(model))
    return replace(model, rehearsed=layers)


def with_kept_layers(model: ModelFiles) -> ModelFiles:
    """The workload with what was rehearsed before, or ``UNCORRECTED`` where nothing was: nothing is rehearsed here."""
    if not isinstance(model, ProbedModelFiles):
        return model
    return replace(model, rehearsed=_read(kept_text(*_place(model))) or UNCORRECTED)


def with_needed_layers(model: ModelFiles) -> ModelFiles:
    """``with_layers`` where nothing else tells of a model's layers, ``with_kept_layers`` of all others: for searches,
    which have many setups to try and cannot rehearse each."""
    needs_rehearsal = isinstance(model, ProbedModelFiles) and recurrent_classes(model.layout)
    return with_layers(model) if needs_rehearsal else with_kept_layers(model)


def _rehearsed(model: ProbedModelFiles, rehearse: Rehearse) -> RehearsedLayers:
    pattern = layer_pattern(model)
    measured: dict[int, list[Gaps]] = {}
    counts = lengths(pattern, num_first_layers(model))
    for num_tokens in TOKENS:
        gaps = {count: _gaps(_of_layers(model, count, num_tokens), rehearse) for count in counts}
        for kind, found in enumerate(_by_kind(pattern, gaps)):
            measured.setdefault(kind, []).append(found)
    return RehearsedLayers(
        kinds=[
            LayerBytes(
                kept=token_bytes(dict(zip(TOKENS, (kept for kept, _ in found), strict=True))),
                passing=token_bytes(dict(zip(TOKENS, (passing for _, passing in found), strict=True))),
            )
            for _, found in sorted(measured.items())
        ]
    )


def _by_kind(pattern: Sequence[int], gaps: Mapping[int, Gaps]) -> list[Gaps]:
    """What is missing of a layer of each kind: what it adds, or for a kind that only the first layers have, what of
    theirs is no other kind's.

    Backward's passing bytes do not add up: those of a kind are those of the shortest rehearsal with more layers than
    the first, of which the last has it.
    """
    kept = by_kind(pattern, {count: gap for count, (gap, _) in gaps.items()})
    num_first = kept.num_first
    passing = {pattern[count - 1]: gap for count, (_, gap) in gaps.items() if count > num_first}
    kinds = range(max(pattern) + 1)
    most_kept, most_passing = max(kept.further.values(), default=0), max(passing.values(), default=0)
    first = pattern[:num_first]
    known = sum(kept.further[kind] for kind in first if kind in kept.further)
    unknown = [kind for kind in first if kind not in kept.further]
    only = {kind: ((kept.first - known) // len(unknown), gaps[num_first][1]) for kind in unknown}
    return [only.get(kind, (kept.further.get(kind, most_kept), passing.get(kind, most_passing))) for kind in kinds]


def _of_layers(model: ProbedModelFiles, num_layers: int, num_tokens: int) -> Estimate:
    """The estimate of the same model with so many layers, as the formulas alone have it."""
    short = described(model, shortened(model.config, num_layers))
    assert isinstance(short, ProbedModelFiles)
    layer_pattern(short)  # it has as many layers as it is asked for
    recipe = Recipe(
        method=Method.LORA,
        zero_stage=None,
        micro_batch=1,
        activation_checkpointing=False,
        attention=default_attention(model_facts(model)),
        loss=losses(model_facts(model))[-1],
        lora_targets=_targets(short),
    )
    workload = Workload(model=replace(short, notes=(), rehearsed=UNCORRECTED), seq_len=num_tokens)
    return estimate(workload, recipe, Cluster(node=Node(gpu=A_GPU, num_gpus=1)))


def _targets(model: ProbedModelFiles) -> str:
    """``all-linear``, or without the Linears of which peft makes something else or nothing."""
    layout = model.layout
    left_out = {STATE_OUTPUT} if model.model_type in TYPES_WITHOUT_OUT_PROJ else set[str]()
    if any(len(shape) == STACKED and min(shape[1:]) >= EXPERT_WIDTH for shape in layout.shapes.values()):
        left_out |= EXPERT_NAMES
    if not left_out:
        return "all-linear"
    linears = (module.name for module in layout.modules if module.kind is ModuleKind.LINEAR)
    texts = [name for name in linears if not layout.text or name.startswith(layout.text)]
    names = {name.rpartition(".")[2] for name in texts if name != layout.head} - left_out
    return ",".join(sorted(name for name in names if not name.isdigit()))


def _gaps(short: Estimate, rehearse: Rehearse) -> Gaps:
    seen = rehearse(short, None)
    phases = {phase.name: phase for phase in short.timeline.phases}
    kept = seen[FORWARD][0] - phases[FORWARD].resident.total
    return kept, seen[BACKWARD][1] - phases[BACKWARD].peak.total - kept


# -- keeping ---------------------------------------------------------------------------------------------------------


def _place(model: ProbedModelFiles) -> tuple[str, str]:
    """The name under which it is kept: of this config.json and no other, as this version of transformers builds it."""
    asked = {"schema": SCHEMA, "transformers": model.layout.transformers_version, "config": dict(model.config)}
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    return "layers", f"{digest[:32]}.json"


def layers_json(layers: RehearsedLayers) -> list[list[float]]:
    """The numbers of each kind, as they are kept."""
    return [
        [of.per_token if of_each else of.per_pair for of in (kind.kept, kind.passing) for of_each in (True, False)]
        for kind in layers.kinds
    ]


def _read(text: str | None) -> RehearsedLayers | None:
    try:
        rows: list[Any] = json.loads(text or "null")
        kinds = [[float(value) for value in row] for row in rows]
        return RehearsedLayers(
            kinds=[
                LayerBytes(
                    kept=TokenBytes(per_token=kept, per_pair=kept_pair),
                    passing=TokenBytes(per_token=passing, per_pair=passing_pair),
                )
                for kept, kept_pair, passing, passing_pair in kinds
            ]
        )
    except (TypeError, ValueError):
        return None
