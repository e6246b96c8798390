"""Who gets a free row: tenants in turn, each in order of arrival."""

from __future__ import annotations

from dvi.decoding.inbox import Inbox, Ticket
from dvi.types import DecodeRequest, SamplingParams


def ticket(tenant: str, number: int) -> Ticket:
    request = DecodeRequest(f"{tenant}{number}", (1,), SamplingParams(1), tenant=tenant)
    return Ticket(request, lambda _: None, 0.0)


def taken(inbox: Inbox, num: int) -> list[str]:
    return [one.request.request_id for one in inbox.take_waiting(num)]


def test_one_tenant_is_first_in_first_out() -> None:
    inbox = Inbox(100, 0)
    inbox.put([ticket("", number) for number in range(5)])
    assert taken(inbox, 3) == ["0", "1", "2"]
    assert taken(inbox, 3) == ["3", "4"]


def test_a_tenant_with_a_long_line_does_not_hold_up_the_others() -> None:
    inbox = Inbox(100, 0)
    inbox.put([ticket("a", number) for number in range(6)])
    inbox.put([ticket("b", 0), ticket("c", 0), ticket("b", 1)])
    assert taken(inbox, 5) == ["a0", "b0", "c0", "a1", "b1"]
    inbox.put([ticket("c", 1)])
    # c had its last turn before a and b.
    assert taken(inbox, 10) == ["c1", "a2", "a3", "a4", "a5"]
