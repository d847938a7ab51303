"""The answers of ZooKeeper 3.9 to four-letter words."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from regent.core.errors import BadDataError
from regent.designs.measuring.four_letter_words import (
    SessionCounts,
    WatchSummary,
    connected_sessions,
    monitored,
    watch_summary,
)

_CONS = (
    " /127.0.0.1:44112[1](queued=0,recved=9,sent=9,sid=0x10003b5a2390000,lop=GETC,"
    "est=1795691044524,to=6000,lcxid=0x1f,lzxid=0x7,lresp=62235289,llat=1,minlat=0,avglat=2,"
    "maxlat=9)\n"
    " /127.0.0.1:44114[1](queued=0,recved=1,sent=1,sid=0x10003b5a2390001,lop=SESS,"
    "est=1795691044530,to=6000,lzxid=0x7,lresp=62235290,llat=1,minlat=0,avglat=2,maxlat=9)\n"
    " /127.0.0.1:44116[0](queued=0,recved=1,sent=0)\n\n"
)
_MNTR = (
    "zk_version\t3.9.5-293c895a8d966a3ecb92872be4a1daf87d725da2, built on 2026-02-11 20:18 UTC\n"
    "zk_server_state\tstandalone\n"
    "zk_packets_received\t14\n"
    "zk_avg_a_write_per_namespace\t3.5\n"
)


def test_sessions_have_their_requests_and_packets_and_other_connections_are_omitted():
    assert connected_sessions(_CONS) == {
        0x10003B5A2390000: SessionCounts(last_request=31, packets=18),
        0x10003B5A2390001: SessionCounts(last_request=0, packets=2),
    }


def test_the_numbers_of_mntr_are_read_and_its_texts_are_not():
    assert monitored(_MNTR) == {"packets_received": 14, "avg_a_write_per_namespace": 3.5}


def test_the_summary_of_watches_is_read():
    answer = "3 connections watching 8 paths\nTotal watches:12\n"
    assert watch_summary(answer) == WatchSummary(connections=3, paths=8, watches=12)


@pytest.mark.parametrize("parse", [monitored, watch_summary])
def test_a_refused_word_is_named(parse: Callable[[str], object]):
    refusal = "mntr is not executed because it is not in the whitelist.\n"
    with pytest.raises(BadDataError, match="not in the whitelist"):
        parse(refusal)
