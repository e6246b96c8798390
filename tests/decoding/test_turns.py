"""Who may wait and who gets a free row: tenants in turn, each in order of arrival."""

from __future__ import annotations

import pytest

from dvi.decoding.inbox import Inbox, QueueFull, Ticket
from dvi.types import DecodeRequest, SamplingParams


def ticket(tenant: str, number: int) -> Ticket:
    request = DecodeRequest(f"{tenant}{number}", (1,), SamplingParams(1), tenant=tenant)
    return Ticket(request, lambda _: None, 0.0, family=number)


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
    for tenant, number in (("b", 0), ("c", 0), ("b", 1)):
        inbox.put([ticket(tenant, number)])
    assert taken(inbox, 5) == ["a0", "b0", "c0", "a1", "b1"]
    inbox.put([ticket("c", 1)])
    # c had its last turn before a and b.
    assert taken(inbox, 10) == ["c1", "a2", "a3", "a4", "a5"]


def num_put(inbox: Inbox, tenants: str, tries: int = 100) -> dict[str, int]:
    """How many each gets in that all ask in turn."""
    got = dict.fromkeys(tenants, 0)
    for number in range(tries):
        for tenant in tenants:
            try:
                inbox.put([ticket(tenant, number)])
            except QueueFull:
                continue
            got[tenant] += 1
    return got


def test_a_tenant_cannot_fill_the_queue_and_the_next_one_finds_room() -> None:
    inbox = Inbox(max_queue=60, num_rows=4)
    # As many as it leaves free: 64 / 2, then 32 / 2, then 16 / 2.
    assert num_put(inbox, "a") == {"a": 32}
    assert num_put(inbox, "b") == {"b": 16}
    assert num_put(inbox, "c") == {"c": 8}
    with pytest.raises(QueueFull, match="this key has its share of the 64 places"):
        inbox.put([ticket("a", 0)])
    inbox.take_waiting(40)
    assert num_put(inbox, "d")["d"] > 0


def test_tenants_who_ask_in_turn_get_equal_shares_and_leave_one_free() -> None:
    for num in (1, 2, 3, 7):
        tenants = "abcdefg"[:num]
        got = num_put(Inbox(max_queue=840, num_rows=0), tenants, tries=900)
        assert got == dict.fromkeys(tenants, 840 // (num + 1))


def test_all_choices_of_a_request_count_against_the_share_at_once() -> None:
    inbox = Inbox(max_queue=10, num_rows=0)
    with pytest.raises(QueueFull):
        inbox.put([ticket("a", number) for number in range(6)])
    assert inbox.depth() == 0
    inbox.put([ticket("a", number) for number in range(5)])


def test_one_place_is_enough_for_one_request_of_a_tenant() -> None:
    inbox = Inbox(max_queue=1, num_rows=0)
    assert num_put(inbox, "a") == {"a": 1}


def test_without_tenants_the_whole_queue_is_everybodys() -> None:
    inbox = Inbox(max_queue=60, num_rows=4)
    inbox.put([ticket("", number) for number in range(64)])
    with pytest.raises(QueueFull, match="60 requests are waiting already"):
        inbox.put([ticket("", 64)])
