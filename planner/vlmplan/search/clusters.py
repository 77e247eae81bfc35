"""Which clusters a search looks at: offers of the catalog, named GPUs in several counts, or this machine."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TypeVar

from vlmplan.catalog import Catalog
from vlmplan.errors import DoesNotFitError, InputError, UnknownNameError
from vlmplan.gpu_choice import GpuChoice, chosen_node
from vlmplan.hardware import Cluster, Gpu, Node, Offer, Pricing, cheapest
from vlmplan.search.prices import is_recent, with_spot
from vlmplan.units import GIB

COUNTS = (1, 2, 4, 8)
"""Cards per node that are tried for a GPU named without a count."""
DEFAULT_PRICING = (Pricing.ON_DEMAND, Pricing.OWN)


LEAST_HOST_BYTES = 16 * GIB
"""Host memory of the smallest machines that GPUs are rented with. Assumed."""


def taken_host_bytes(node: Node) -> int:
    """Host memory of a machine; where nobody says it, as much as its GPUs have together.

    Measured on the catalog: 97 % of the 269 offers that say it have at least that.
    """
    if node.host_ram_bytes is not None:
        return node.host_ram_bytes
    return max(LEAST_HOST_BYTES, node.num_gpus * (node.gpu.memory_bytes or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A cluster, and the offers that it can be rented by: the cheapest first, then those that have more host memory."""

    cluster: Cluster
    offers: tuple[Offer, ...] = ()

    def with_host_bytes(self, num_bytes: int) -> tuple[Cluster, Offer | None] | None:
        """The cheapest machine whose host has ``num_bytes``; None if none has.

        A machine without an offer is the user's own: where nobody says what its host has, it is for him to know.
        """
        node = self.cluster.node
        if not self.offers:
            ram = node.host_ram_bytes
            return (self.cluster, None) if ram is None or ram >= num_bytes else None
        for offer in self.offers:
            rented = offer.node(node.gpu)
            if taken_host_bytes(rented) >= num_bytes:
                return replace(self.cluster, node=rented), offer
        return None

    def with_network(self, bytes_per_second: float) -> "Candidate":
        """The same with this rate between nodes."""
        return replace(self, cluster=replace(self.cluster, inter_node_bytes_per_second=bytes_per_second))

    @property
    def largest(self) -> Node:
        """The machine with most host memory."""
        return self.offers[-1].node(self.cluster.node.gpu) if self.offers else self.cluster.node


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferFilter:
    """Which offers count. ``pricing`` empty: on demand and own machines.

    With ``regions`` those whose region nobody says are left out; a machine of one's own is where it is. With
    ``max_price_age_days`` so are prices that are older or of unknown age.
    """

    pricing: tuple[Pricing, ...] = ()
    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    max_usd_per_hour: float | None = None
    max_price_age_days: int | None = None

    def __post_init__(self) -> None:
        if self.max_price_age_days is not None and self.max_price_age_days < 0:
            raise InputError(f"--max-price-age-days is {self.max_price_age_days}; 0 or more is needed")
        if self.max_usd_per_hour is not None and not self.max_usd_per_hour >= 0:
            raise InputError(f"--max-usd-per-hour is {self.max_usd_per_hour}; 0 or more is needed")

    @property
    def is_narrowed(self) -> bool:
        """Whether the user named a price, places or terms, so that a machine without such an offer is no answer."""
        limits = (self.max_usd_per_hour, self.max_price_age_days)
        return bool(self.pricing or self.providers or self.regions) or limits != (None, None)

    def admits(self, offer: Offer, num_nodes: int) -> bool:
        if offer.pricing not in (self.pricing or DEFAULT_PRICING):
            return False
        if self.providers and offer.provider not in self.providers:
            return False
        if self.regions and offer.region not in self.regions and offer.pricing is not Pricing.OWN:
            return False
        return self.max_usd_per_hour is None or offer.usd_per_hour * num_nodes <= self.max_usd_per_hour

    def admitted(self, offers: Iterable[Offer], num_nodes: int, on: date) -> list[Offer]:
        """Those of ``offers`` that count, spot prices among them where the user takes such machines."""
        known = with_spot(offers) if Pricing.INTERRUPTIBLE in self.pricing else offers
        age = self.max_price_age_days
        return [offer for offer in known if self.admits(offer, num_nodes) and is_recent(offer, on, age)]


def candidates(
    catalog: Catalog,
    *,
    choices: Sequence[GpuChoice] = (),
    offers: OfferFilter | None = None,
    num_nodes: int = 1,
    today: date,
) -> tuple[list[Candidate], list[str]]:
    """What a search looks at, and sentences that the user should see with it.

    Without ``choices`` every GPU and count that an admitted offer has, at its cheapest current price; with them those
    GPUs, priced where an offer has that count, and only those that are if the user narrowed ``offers`` down. Raises
    UnknownNameError for a provider or region that no offer has, and DoesNotFitError if no offer is admitted.
    """
    offers = offers or OfferFilter()
    _check_names(catalog, offers)
    if choices:
        found, notes = _chosen(catalog, choices, offers, num_nodes, today)
        return _some(found), notes
    admitted = offers.admitted(catalog.offers, num_nodes, today)
    found: list[Candidate] = []
    for (gpu_id, _), group in _grouped(admitted, lambda offer: (offer.gpu_id, offer.num_gpus)):
        gpu = catalog.gpu_by_id(gpu_id)
        if gpu.has_known_memory:
            found += _rented(group, gpu, num_nodes, today)
    return _some(found), []


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


def _some(found: list[Candidate]) -> list[Candidate]:
    if not found:
        raise DoesNotFitError(
            "no offer of the catalog is left under these limits on price, its age, provider, region and pricing"
        )
    return found


def _chosen(
    catalog: Catalog, choices: Iterable[GpuChoice], offers: OfferFilter, num_nodes: int, today: date
) -> tuple[list[Candidate], list[str]]:
    found: list[Candidate] = []
    notes: list[str] = []
    for choice in choices:
        chosen = chosen_node(choice, catalog)
        notes += chosen.notes
        is_machine = choice.name.casefold() in ("local", "cpu")
        if is_machine:
            found.append(Candidate(cluster=Cluster(node=chosen.node, num_nodes=num_nodes)))
            continue
        most = chosen.node.gpu.max_gpus_per_node or COUNTS[-1]
        for count in (choice.num_gpus,) if choice.num_gpus else [count for count in COUNTS if count <= most]:
            of_gpu = [offer for offer in catalog.offers_for(chosen.node.gpu.id) if offer.num_gpus == count]
            priced = list(_rented(offers.admitted(of_gpu, num_nodes, today), chosen.node.gpu, num_nodes, today))
            if not priced and not offers.is_narrowed:
                node = chosen.node if count == chosen.node.num_gpus else Node(gpu=chosen.node.gpu, num_gpus=count)
                priced = [Candidate(cluster=Cluster(node=node, num_nodes=num_nodes))]
            found += priced
    return found, notes


def offer_ladder(offers: Sequence[Offer], gpu: Gpu, today: date) -> tuple[Offer, ...]:
    """The cheapest offer, then the cheapest of those with more host memory than it, and so on."""
    left = list(offers)
    ladder: list[Offer] = []
    while left:
        offer = cheapest(left, today)
        assert offer is not None
        ladder.append(offer)
        ram = taken_host_bytes(offer.node(gpu))
        left = [other for other in left if taken_host_bytes(other.node(gpu)) > ram]
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
