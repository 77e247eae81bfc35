"""Estimators that others ship, beside vlmplan, on all published and rehearsed cases.

``PYTHONPATH=tests python tests/peers/peers_report.py`` writes README.md. Each estimator is asked as its documentation
says, with the functions of the installed packages: DeepSpeed's ``estimate_zero2_model_states_mem_needs`` and
``estimate_zero3_model_states_mem_needs`` (with offload as the recipe has it), accelerate's ``estimate_training_usage``,
whose largest number is what ``accelerate estimate-memory`` shows as "Training using Adam". It takes 30 s on one core.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import mean, median
from types import ModuleType

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "measured"), str(HERE.parent / "rehearsed")]

import measured_report  # noqa: E402
from accelerate.commands.estimate import estimate_training_usage  # noqa: E402
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs  # noqa: E402
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs  # noqa: E402
from rehearsed_cases import NAMES, estimated  # noqa: E402

from cli_calls import request_of_words  # noqa: E402
from vlmplan.architecture.families.build import build_model  # noqa: E402
from vlmplan.catalog import Catalog, shipped_catalog  # noqa: E402
from vlmplan.cli.estimate import estimate as command  # noqa: E402
from vlmplan.estimation import Estimate  # noqa: E402
from vlmplan.hardware import Vendor  # noqa: E402
from vlmplan.recipe.choices import Method, Offload, OptimizerKind, Precision  # noqa: E402
from vlmplan.requested import requested_estimate  # noqa: E402
from vlmplan.units import GIB  # noqa: E402

TABLE = HERE / "README.md"


def loaded(path: Path) -> ModuleType:
    """The module in a file whose name another folder's has too."""
    spec = spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


rehearsed_report = loaded(HERE.parent / "rehearsed" / "rehearsed_report.py")
FP32_BYTES, HALF_BYTES, NF4_BYTES = 4, 2, 0.5
TRAINED_BYTES = 16
"""Of a parameter that is trained in mixed precision with Adam: weight and gradient in 16 bit (2 + 2), float32 copy and
two moments (4 + 4 + 4). Source: the ZeRO paper (arXiv 1910.02054), section 3.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What happened in a run, and its setup. ``planned_bytes`` is vlmplan's estimate of what ``true_bytes`` counts."""

    name: str
    is_published: bool
    true_bytes: float
    planned_bytes: float
    estimate: Estimate

    @property
    def is_what_peers_model(self) -> bool:
        """Whether all weights are trained in mixed precision with Adam."""
        recipe = self.estimate.recipe
        is_mixed = recipe.precision in (Precision.BF16, Precision.FP16)
        return recipe.method is Method.FULL and is_mixed and recipe.optimizer is OptimizerKind.ADAMW


def rehearsed_case(name: str) -> Case:
    """The highest phase of a rehearsal's later steps, in allocated bytes of tensors."""
    phases = rehearsed_report.compared(name)
    return Case(
        name=name,
        is_published=False,
        true_bytes=max(phase.rehearsed for phase in phases),
        planned_bytes=max(phase.estimated for phase in phases),
        estimate=estimated(name),
    )


def published_cases() -> list[Case]:
    """A case for every counter of every published run."""
    found: list[Case] = []
    for case in measured_report.CASES["cases"]:
        estimate = requested_estimate(request_of_words(command, *measured_report.command_of(case)[1:]), ())[0]
        for counter, gib in measured_report.estimated(case).items():
            found.append(
                Case(
                    name=f"{case['id']}, {counter}",
                    is_published=True,
                    true_bytes=case["measured_gib"][counter] * GIB,
                    planned_bytes=gib * GIB,
                    estimate=estimate,
                )
            )
    return found


@cache
def cases() -> tuple[Case, ...]:
    """Everything that is compared."""
    return (*published_cases(), *map(rehearsed_case, NAMES))


def of_deepspeed(case: Case) -> float | None:
    """The estimator of the recipe's stage; None without ZeRO, of which DeepSpeed has none."""
    recipe, cluster = case.estimate.recipe, case.estimate.cluster
    shape = {"num_gpus_per_node": cluster.node.num_gpus, "num_nodes": cluster.num_nodes}
    offloads = recipe.offload_optimizer is not Offload.NONE
    if recipe.zero_stage == 3:
        return estimate_zero3_model_states_mem_needs(
            case.estimate.num_params,
            largest_layer_params(case.estimate),
            cpu_offload=offloads or recipe.offload_params is not Offload.NONE,
            cpu_offload_params=recipe.offload_params is not Offload.NONE,
            **shape,
        )[1]
    if recipe.zero_stage in (1, 2):
        return estimate_zero2_model_states_mem_needs(case.estimate.num_params, cpu_offload=offloads, **shape)[1]
    return None


def largest_layer_params(estimate: Estimate) -> int:
    """As ``estimate_zero3_model_states_mem_needs_all_live`` counts: the most parameters that one module itself has."""
    own: dict[str, int] = {}
    for name, parameter in build_model(estimate.workload.model.config).named_parameters():
        module = name.rpartition(".")[0]
        own[module] = own.get(module, 0) + parameter.numel
    return max(own.values())


def of_accelerate(case: Case) -> float:
    """Of a batch of 1, without any engine: the number is of the model and its type alone."""
    is_float32 = case.estimate.recipe.precision is Precision.FP32
    sizes = estimate_training_usage(case.estimate.num_params * FP32_BYTES, "float32" if is_float32 else "bfloat16")
    return max(sizes.values())


def by_rule_of_thumb(case: Case) -> float:
    """16 bytes for a trained parameter, cut as the ZeRO paper cuts them; 2 for a frozen one, 0.5 in 4 bits."""
    estimate = case.estimate
    stage, ranks = estimate.recipe.zero_stage or 0, estimate.cluster.num_gpus
    trained = estimate.num_trainable_params
    frozen = (estimate.num_params - trained) * (NF4_BYTES if estimate.recipe.method is Method.QLORA else HALF_BYTES)
    weights, gradients, states = HALF_BYTES * trained, HALF_BYTES * trained, (TRAINED_BYTES - 4) * trained
    if stage >= 3:
        return (frozen + weights + gradients + states) / ranks
    if stage == 2:
        return frozen + weights + (gradients + states) / ranks
    return frozen + weights + gradients + (states / ranks if stage else states)


def of_vlmplan(case: Case) -> float:
    return case.planned_bytes


ESTIMATORS: Mapping[str, Callable[[Case], float | None]] = {
    "vlmplan": of_vlmplan,
    "DeepSpeed's estimators": of_deepspeed,
    "accelerate estimate-memory": of_accelerate,
    "16 bytes a parameter": by_rule_of_thumb,
}


@cache
def card_bytes() -> tuple[int, ...]:
    """What can be used of each of NVIDIA's cards that the catalog knows, the smallest first."""
    cards = (gpu for gpu in Catalog(shipped_catalog()).gpus if gpu.vendor is Vendor.NVIDIA and gpu.has_known_memory)
    return tuple(sorted({gpu.usable_bytes for gpu in cards}))


def smallest_card(num_bytes: float) -> int | None:
    """Usable bytes of the smallest card that has so many; None if none has."""
    return next((usable for usable in card_bytes() if usable >= num_bytes), None)


def is_false_fit(estimated_bytes: float, true_bytes: float) -> bool:
    """Whether the smallest card by the estimate has no room for what happened."""
    card = smallest_card(estimated_bytes)
    return card is not None and card < true_bytes


def row(name: str, compared: Iterable[Case]) -> str:
    """A line of a table: errors of one estimator on the cases that it has an answer to."""
    found = [(case, answer) for case in compared if (answer := ESTIMATORS[name](case)) is not None]
    errors = [answer / case.true_bytes - 1 for case, answer in found]
    sizes = [abs(error) for error in errors]
    wrong = sum(is_false_fit(answer, case.true_bytes) for case, answer in found)
    worst = max(errors, key=abs)
    cells = (name, f"{len(found)}", f"{median(sizes):.1%}", f"{mean(sizes):.1%}", f"{worst:+.1%}", f"{wrong}")
    return f"| {' | '.join(cells)} |"


def table(title: str, compared: Iterable[Case]) -> str:
    known = list(compared)
    head = f"| {title} | cases | median error | mean error | worst | false fits |\n|---|---:|---:|---:|---:|---:|\n"
    return head + "\n".join(row(name, known) for name in ESTIMATORS) + "\n"


def report() -> str:
    """The whole page."""
    published = [case for case in cases() if case.is_published]
    num_runs, num_rehearsals = len(measured_report.CASES["cases"]), len(cases()) - len(published)
    peers = [case for case in cases() if case.is_what_peers_model]
    return f"""# Beside the peers

What others ship to estimate memory, beside vlmplan, on {len(published)} published peaks of
{num_runs} runs and on {num_rehearsals} rehearsals. Errors are estimate / truth - 1; median and mean are of their
size. A false fit is an estimate whose smallest card of the catalog has no room for what happened (allocated, reserved
or device bytes, as they were read; many rehearsals are of models cut to few layers, which fit every card). Of vlmplan
the bare estimate is taken too; what it calls "fits" keeps a part of the card free.
`PYTHONPATH=tests python tests/peers/peers_report.py` rewrites this file.

- **DeepSpeed's estimators** are asked with the recipe's stage, offload, GPUs and nodes. They are of model states alone,
  take every parameter for a trained one, and there is none without ZeRO.
- **accelerate estimate-memory** shows one number for a model and a type: of a batch of 1, without engine and adapters.
- **16 bytes a parameter** is the rule of thumb for mixed precision with Adam: 16 for a trained parameter, cut among
  GPUs as the ZeRO paper does; 2 for a frozen one, 0.5 in 4 bits. No activations.

## All cases

{table("on all cases", cases())}
## What the peers are made for

Every weight trained in mixed precision with AdamW:

{table("full fine-tuning", peers)}
## Published peaks alone

{table("on published peaks", published)}"""


if __name__ == "__main__":
    TABLE.write_text(report())
