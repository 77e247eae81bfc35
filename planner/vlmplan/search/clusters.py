"""Which clusters a search looks at: offers of the catalog, named GPUs, or this machine."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import NamedTuple, TypeVar

from vlmplan.catalog import Catalog
from vlmplan.errors import DoesNotFitError, UnknownNameError
from vlmplan.gpu_choice import HOST_RAM_OPTION, GpuChoice, chosen_node
from vlmplan.hardware import Cluster, Gpu, Node, Offer, Pricing, cheapest
from vlmplan.search.no_offer import OfferQuery, no_offer_sentence
from vlmplan.search.offers import GpuCount, OfferFilter
from vlmplan.units import GIB, gib_text

MAX_GPUS_PER_NODE = 8
"""Cards that go into a machine where the catalog does not say. Assumed."""
LEAST_HOST_BYTES = 16 * GIB
"""Host memory of the smallest machines that GPUs are rented with. Assumed."""


def taken_host_bytes(node: Node) -> int:
    """Host memory of a machine; where it is not known, as much as its GPUs have together.

    Measured on the catalog: 97% of the 269 offers that say it have at least that.
    """
    return _taken_host_bytes(node.host_ram_bytes, node.num_gpus, node.gpu)


def offered_host_bytes(offer: Offer, gpu: Gpu) -> int:
    """``taken_host_bytes`` of the offered machine, without making it."""
    return _taken_host_bytes(offer.host_ram_bytes, offer.num_gpus, gpu)


def _taken_host_bytes(host_ram_bytes: int | None, num_gpus: int, gpu: Gpu) -> int:
    if host_ram_bytes is not None:
        return host_ram_bytes
    return max(LEAST_HOST_BYTES, num_gpus * (gpu.memory_bytes or 0))


class Candidate(NamedTuple):
    """A cluster, and the offers that it can be rented by: the cheapest first, then those that have more host memory."""

    cluster: Cluster
    offers: tuple[Offer, ...] = ()

    @property
    def may_be_taken_away(self) -> bool:
        """Whether one of its machines may, so that a run there has to go on from a checkpoint."""
        return any(offer.pricing is Pricing.INTERRUPTIBLE for offer in self.offers)

    def with_host_bytes(self, num_bytes: int, resume_bytes: int = 0) -> tuple[Cluster, Offer | None] | None:
        """The cheapest machine whose host has ``num_bytes``, and ``resume_bytes`` where it may be taken away; None if
        none has. That of the first offer is ``cluster``.

        A machine without an offer is the user's own: its host is taken to be large enough where its memory is not
        stated.
        """
        node = self.cluster.node
        if not self.offers:
            ram = node.host_ram_bytes
            return (self.cluster, None) if ram is None or ram >= num_bytes else None
        for offer in self.offers:
            needed = max(num_bytes, resume_bytes) if offer.pricing is Pricing.INTERRUPTIBLE else num_bytes
            if offered_host_bytes(offer, node.gpu) >= needed:
                is_first = offer is self.offers[0]
                return (self.cluster if is_first else replace(self.cluster, node=offer.node(node.gpu))), offer
        return None

    def with_network(self, bytes_per_second: float) -> "Candidate":
        """The candidate with this rate between nodes."""
        return self._replace(cluster=replace(self.cluster, inter_node_bytes_per_second=bytes_per_second))

    @property
    def largest(self) -> Node:
        """The machine with most host memory."""
        return self.offers[-1].node(self.cluster.node.gpu) if self.offers else self.cluster.node

    @property
    def host_text(self) -> str:
        """The offer whose host has most memory, and how much: ``lambda's gpu_1x_a10 has 200.00 GiB``."""
        node = self.largest
        source, size = node.host_ram_source or "this machine", gib_text(taken_host_bytes(node))
        has = f"has {size}"
        if node.host_ram_bytes is None:
            has = f"is taken to have {size}, since nobody says what it has"
        elif source == HOST_RAM_OPTION:
            return f"{HOST_RAM_OPTION} says {size}"
        if len(self.offers) > 1:
            has += ", the most that is offered"
        return f"{source} {has}"


def candidates(
    catalog: Catalog,
    *,
    choices: Sequence[GpuChoice] = (),
    offers: OfferFilter | None = None,
    num_nodes: int = 1,
    host_bytes: int | None = None,
    today: date,
) -> tuple[list[Candidate], list[str]]:
    """What a search looks at, and sentences that the user should see with it.

    Without ``choices`` every GPU and count that an admitted offer has, at its cheapest current price; with them those
    GPUs, priced where an offer has that count, and only those that are if the user narrowed ``offers`` down. With
    ``host_bytes``, the memory of each host, the machines of ``choices`` are the user's own and nothing is rented.
    Raises UnknownNameError for a provider or region that no offer has, and DoesNotFitError if no offer is admitted.
    """
    offers = offers or OfferFilter()
    _check_names(catalog, offers)
    if choices:
        return _chosen(
            catalog, choices, OfferTerms(offers=offers, num_nodes=num_nodes, host_bytes=host_bytes, today=today)
        )
    admitted = offers.admitted(catalog.offers, num_nodes, today)
    found: list[Candidate] = []
    for (gpu_id, _), group in _grouped(admitted, lambda offer: (offer.gpu_id, offer.num_gpus)):
        gpu = catalog.gpu_by_id(gpu_id)
        if gpu.has_known_memory:
            found += _rented(group, gpu, num_nodes, today)
    if not found:
        raise DoesNotFitError(no_offer_sentence(catalog, OfferQuery(offers=offers, num_nodes=num_nodes, today=today)))
    return found, []


Key = TypeVar("Key")


def _grouped(offers: Iterable[Offer], key: Callable[[Offer], Key]) -> list[tuple[Key, list[Offer]]]:
    groups: dict[Key, list[Offer]] = {}
    for offer in offers:
        groups.setdefault(key(offer), []).append(offer)
    return list(groups.items())


def _rented(offers: Sequence[Offer], gpu: Gpu, num_nodes: int, today: date) -> Iterator[Candidate]:
    """One machine that stays, and one that may be taken away, which a lower price an hour does not make the cheaper."""
    for _, group in _grouped(offers, lambda offer: offer.pricing is Pricing.INTERRUPTIBLE):
        ladder = offer_ladder(group, gpu, today)
        yield Candidate(cluster=Cluster(node=ladder[0].node(gpu), num_nodes=num_nodes), offers=ladder)


class OfferTerms(NamedTuple):
    """What a search asks of every machine. ``host_bytes``: of a host of the user's own; None where he states none."""

    offers: OfferFilter
    num_nodes: int
    host_bytes: int | None
    today: date


def _chosen(catalog: Catalog, choices: Sequence[GpuChoice], terms: OfferTerms) -> tuple[list[Candidate], list[str]]:
    found: list[Candidate] = []
    notes: list[str] = []
    missed: list[GpuCount] = []
    for choice in choices:
        chosen = chosen_node(choice, catalog, host_bytes=terms.host_bytes)
        notes += chosen.notes
        machines = _of_node(catalog, choice, chosen.node, terms)
        found += machines
        if not machines:
            missed.append(GpuCount(gpu_id=chosen.node.gpu.id, num_gpus=chosen.node.num_gpus))
    if missed:
        query = OfferQuery(places=tuple(missed), offers=terms.offers, num_nodes=terms.num_nodes, today=terms.today)
        notes.append(no_offer_sentence(catalog, query))
        if not found:
            raise DoesNotFitError(notes[-1])
    return found, [*notes, *_count_notes(choices)]


def _of_node(catalog: Catalog, choice: GpuChoice, node: Node, terms: OfferTerms) -> list[Candidate]:
    """The machines of one choice: rented where there is an offer, else the user's own unless he asks for offers."""
    own = [Candidate(cluster=Cluster(node=node, num_nodes=terms.num_nodes))]
    if choice.is_this_machine:
        return own
    of_node = [offer for offer in catalog.offers_for(node.gpu.id) if offer.num_gpus == node.num_gpus]
    admitted = terms.offers.admitted(of_node, terms.num_nodes, terms.today)
    if terms.host_bytes is not None:
        ram = terms.host_bytes
        admitted = [replace(offer, host_ram_bytes=ram) for offer in admitted if offer.pricing is Pricing.OWN]
    priced = list(_rented(admitted, node.gpu, terms.num_nodes, terms.today))
    return priced or ([] if terms.offers.is_narrowed else own)


def _count_notes(choices: Sequence[GpuChoice]) -> list[str]:
    """What a name without a count stands for, as ``estimate`` has it."""
    names = [choice.name for choice in choices if choice.num_gpus is None and not choice.is_this_machine]
    if not names:
        return []
    return [f"--gpu {', '.join(names)} is one card; --gpu {names[0]}:2 is two, and repeating --gpu compares them"]


def offer_ladder(offers: Sequence[Offer], gpu: Gpu, today: date) -> tuple[Offer, ...]:
    """The cheapest offer, then the cheapest of those with more host memory than it, and so on."""
    left = list(offers)
    ladder: list[Offer] = []
    while left:
        offer = cheapest(left, today)
        assert offer is not None
        ladder.append(offer)
        ram = offered_host_bytes(offer, gpu)
        left = [other for other in left if offered_host_bytes(other, gpu) > ram]
    return tuple(ladder)


def _check_names(catalog: Catalog, offers: OfferFilter) -> None:
    if offers.providers:
        known = {offer.provider for offer in catalog.offers}
        for provider in offers.providers:
            if provider not in known:
                raise UnknownNameError("provider", provider, sorted(known), "`vlmplan gpus --offers` lists them")
    if offers.regions:
        places = {offer.region for offer in catalog.offers if offer.region is not None}
        for region in offers.regions:
            if region not in places:
                raise UnknownNameError("region", region, sorted(places), f"offers name {', '.join(sorted(places))}")
