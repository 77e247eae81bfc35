"""In which order a module waits for weights that several all-gathers bring under ZeRO-3.

DeepSpeed walks through a Python set of tensors (``params_to_fetch`` in ``_fetch_sub_module_impl``, 0.19.8), whose
hashes are addresses, so that the order is another in every process. The first wait for an all-gather copies all that
it brought out of its flat buffer, and the last one frees the buffer: most is live where every buffer has been copied
before one is freed, and no plan is below a run where it is planned so.
"""

from vlmplan.engines.coordinator.records import Gather, GatheredModule, GatheredWeight

FIRST_STAYS = 4
"""So many tensors fit into the first table of a set, of 8 places (``set_add_entry`` in CPython's ``setobject.c``): as
addresses are multiples of 16, the first tensor takes the first of them. Of more, any may come first."""

Wait = tuple[GatheredWeight, Gather]


def waits(module: GatheredModule) -> list[Wait]:
    """The weights of ``module`` that are under way, in the order in which most is live meanwhile."""
    under_way = [(weight, weight.gather) for weight in module.weights if weight.gather is not None]
    if len(under_way) < 2:
        return under_way
    copying, later, copied = list[Wait](), list[Wait](), set[Gather]()
    for wait in sorted(under_way, key=lambda wait: wait[0] is not module.waited_first):
        weight, gather = wait
        is_copied = gather.is_done or gather in copied
        (later if is_copied and weight is not module.waited_first else copying).append(wait)
        copied.add(gather)
    return copying + later
