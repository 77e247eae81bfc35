"""Bytes of one GPU by component."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Bytes live at one moment, by what they are. Adding moments adds components; ``total`` is what torch counts."""

    weights: int = 0
    gradients: int = 0
    optimizer_states: int = 0
    activations: int = 0
    logits: int = 0
    communication_buffers: int = 0
    temporaries: int = 0
    inference_engine: int = 0
    """Of vLLM, which generates on the same GPU."""

    @property
    def total(self) -> int:
        return (
            self.weights
            + self.gradients
            + self.optimizer_states
            + self.activations
            + self.logits
            + self.communication_buffers
            + self.temporaries
            + self.inference_engine
        )

    def __add__(self, other: "Components") -> "Components":
        return Components(
            weights=self.weights + other.weights,
            gradients=self.gradients + other.gradients,
            optimizer_states=self.optimizer_states + other.optimizer_states,
            activations=self.activations + other.activations,
            logits=self.logits + other.logits,
            communication_buffers=self.communication_buffers + other.communication_buffers,
            temporaries=self.temporaries + other.temporaries,
            inference_engine=self.inference_engine + other.inference_engine,
        )

    def as_json(self) -> dict[str, int]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if not self.inference_engine:
            del values["inference_engine"]
        return values


COMPONENT_NAMES = tuple(field.name for field in fields(Components))
"""All of them, those that most GPUs have nothing of too."""
NOTHING = Components()


def higher(left: Components, right: Components) -> Components:
    """The moment with more bytes; the first one if equal."""
    return right if right.total > left.total else left
