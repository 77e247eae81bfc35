"""Programs of captured operations, for more samples than they were captured of."""

import pytest

from vlmplan.architecture.captured.capture import SCHEMA, capture_from_json
from vlmplan.architecture.captured.layers import Chain, stretches
from vlmplan.architecture.captured.program import Instruction, Output, Program

WIDTH = 7


def made(slot: int, *shape: object, of: int | None = None) -> Output:
    return Output(slot, shape, "bfloat16", of)  # type: ignore[arg-type]


def looped() -> Program:
    """One split for each image, a product for each, all of them joined: three samples."""
    turn = [
        Instruction("linear", (slot, "model.weight"), (made(10 + slot, 5, WIDTH),), freed=(slot,)) for slot in (1, 2, 3)
    ]
    return Program(
        samples=3,
        inputs={"pixel_values": 0},
        instructions=(
            Instruction(
                "split",
                (0,),
                tuple(made(slot, 5, WIDTH, of=0) for slot in (1, 2, 3)),
                {"grows": {"outputs": 1}},
            ),
            *turn,
            Instruction(
                "cat", ((11, 12, 13),), (made(20, (0, 5), WIDTH),), {"grows": {"inputs": 1}}, freed=(11, 12, 13)
            ),
            Instruction("language"),
        ),
        turns=((3, 4),),
        grows=True,
    )


def test_sizes_grow_with_the_samples():
    joined = looped().of(5).instructions[-2]
    assert joined.outputs[0].sizes == (5 * 5, WIDTH)


def test_a_loop_has_one_more_turn_for_each_sample():
    program = looped().of(5)
    products = [one for one in program.instructions if one.op == "linear"]
    assert len(products) == 5
    split, joined = program.instructions[0], program.instructions[-2]
    assert [one.inputs[0] for one in products] == [output.slot for output in split.outputs]
    assert joined.inputs[0] == tuple(one.outputs[0].slot for one in products)


def test_every_turn_frees_its_own_and_what_was_joined_goes_with_it():
    program = looped().of(5)
    products = [one for one in program.instructions if one.op == "linear"]
    assert all(one.freed == one.inputs[:1] for one in products)
    assert program.instructions[-2].freed == program.instructions[-2].inputs[0]


def test_numbers_of_results_are_never_used_twice():
    slots = [output.slot for one in looped().of(9).instructions for output in one.outputs]
    assert len(slots) == len(set(slots))


def test_what_one_turn_hands_to_the_next_comes_from_the_turn_before():
    added = [Instruction("add", (slot - 1, 0), (made(slot, 4),), freed=(slot - 1,)) for slot in (2, 3, 4)]
    program = Program(
        samples=3,
        inputs={"pixel_values": 0},
        instructions=(
            Instruction("clone", (0,), (made(1, 4),)),
            *added,
            Instruction("gelu", (4,), (made(9, 4),), freed=(4,)),
        ),
        turns=((3, 4),),
        grows=True,
    ).of(6)
    *_, last = [one for one in program.instructions if one.op == "add"]
    chain = [one for one in program.instructions if one.op in ("clone", "add")]
    assert [one.inputs[0] for one in chain[1:]] == [one.outputs[0].slot for one in chain[:-1]]
    assert program.instructions[-1].inputs == (last.outputs[0].slot,) == program.instructions[-1].freed


def layer(index: int, x: int, *, also: int | None = None, name: str = "tower.layers") -> list[Instruction]:
    """Takes ``x``, and ``also`` if it is given; its result is ``x + 1``."""
    module = {"module": f"{name}.{index}"}
    return [
        Instruction("layer", values=module),
        Instruction("call", (x,), (made(x + 100, 4),), {"module": f"{name}.{index}.mlp", "copies": False}),
        Instruction("add", (x + 100, x if also is None else also), (made(x + 1, 4),), freed=(x + 100,)),
        Instruction("end_layer", values=module, freed=(x,)),
    ]


def test_layers_that_do_the_same_have_one_form_and_others_another():
    instructions = (*layer(0, 1), *layer(1, 2, also=50), *layer(2, 3), *layer(3, 4), Instruction("language"))
    (chain,) = stretches(Program(1, {"pixel_values": 1}, instructions), lambda name: True)
    assert isinstance(chain, Chain)
    assert chain.forms == (0, 1, 0, 0)
    assert chain.x == 1


def test_a_result_that_something_else_takes_too_ends_a_chain():
    used_later = Instruction("cat", ((2, 4),), (made(60, 8),))
    instructions = (*layer(0, 1), *layer(1, 2), *layer(2, 3), used_later, Instruction("language"))
    chains = list(stretches(Program(1, {"pixel_values": 1}, instructions), lambda name: True))
    lengths = [len(one.layers) for one in chains if isinstance(one, Chain)]
    assert lengths == [1, 2]


@pytest.mark.parametrize(
    ("entering", "num_layers"),
    [
        ([{"is_in_language": False, "layers": 0}], 1),
        ([{"is_in_language": False, "layers": 0}, {"is_in_language": True, "layers": 1}], 2),
        ([{"is_in_language": True, "layers": 3}, {"is_in_language": True, "layers": 1}], 4),
    ],
    ids=["among the embeddings", "behind the first layer", "behind the third"],
)
def test_a_model_needs_the_layers_that_features_get_into(entering, num_layers):
    instructions = [["enter", [0], [], {"by": "add", **values}, []] for values in entering]
    program = {"samples": 1, "inputs": {"pixel_values": 0}, "instructions": instructions, "turns": [], "grows": False}
    values = {
        "schema": SCHEMA,
        "processor": "AProcessor",
        "num_tokens": 4,
        "num_placeholder_tokens": 4,
        "inputs": {"pixel_values": [[1, 3, 8, 8], "float32"]},
        "token_inputs": [],
        "programs": {"sdpa": [program]},
    }
    assert capture_from_json(values, width=8, height=8, images_per_sample=1).num_first_layers == num_layers
