"""All endpoints that need no key, provider by provider, whatever fails.

AWS is not among them: its public price list of EC2 in one region has some hundred MB
(https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-the-aws-price-list-bulk-api.html), which is no size
for a command that somebody waits for.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone

from vlmplan.catalog.collectors import azure, linode, runpod, scaleway, vast, verda, vultr
from vlmplan.catalog.collectors.response import Fetch
from vlmplan.catalog.price_listing import Listing, ProviderAnswer
from vlmplan.deadline import DeadlinePassed, within
from vlmplan.errors import VlmplanError
from vlmplan.plain_text import one_line, printable_sentence

COLLECTORS: Mapping[str, Callable[[Fetch], list[Listing]]] = {
    module.PROVIDER: module.listings for module in (azure, linode, runpod, scaleway, vast, verda, vultr)
}
DEADLINE_SECONDS = 90.0
"""Longest time for all that is asked of one provider, however slowly it comes. A choice: Vast takes 54 questions."""


def in_utc() -> datetime:
    """The moment; a function so that tests can stand still."""
    return datetime.now(timezone.utc)


def collected(
    fetch: Fetch,
    now: Callable[[], datetime] = in_utc,
    collectors: Mapping[str, Callable[[Fetch], list[Listing]]] = COLLECTORS,
) -> Iterator[ProviderAnswer]:
    """What each provider lists, or in one line why that is nothing; ``now`` is the moment in UTC."""
    for provider, listings in collectors.items():
        moment = now()
        try:
            found = within(DEADLINE_SECONDS, lambda ask=listings: ask(fetch))
        except DeadlinePassed:
            failure = f"it takes more than {DEADLINE_SECONDS:g} s to answer"
            yield ProviderAnswer(provider=provider, failure=failure)
        except VlmplanError as error:
            yield ProviderAnswer(provider=provider, failure=one_line(printable_sentence(str(error))))
        else:
            seen_at = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
            yield ProviderAnswer(provider=provider, listings=found, as_of=moment.date(), seen_at=seen_at)
