"""Digests of slices, compared across hosts."""

import pytest

from meshfeed.actors.slice_checks import SliceChecks, SliceDigest
from meshfeed.pipeline.plan.errors import DisagreementError


def test_hosts_of_a_group_that_got_the_same_agree() -> None:
    checks = SliceChecks()
    for process in range(3):
        checks.add(process, [SliceDigest(0, 0, 4, 17), SliceDigest(0, 4, 8, 18)])
    checks.add(3, [SliceDigest(1, 0, 4, 99)])


def test_a_host_that_got_other_bytes_is_named() -> None:
    checks = SliceChecks()
    checks.add(0, [SliceDigest(0, 8, 16, 17)])
    with pytest.raises(DisagreementError, match=r"steps 8\.\.15: process 0 .* process 2"):
        checks.add(2, [SliceDigest(0, 8, 16, 18)])


def test_what_all_hosts_have_taken_is_forgotten() -> None:
    checks = SliceChecks()
    checks.add(0, [SliceDigest(0, 0, 4, 17), SliceDigest(0, 4, 8, 17)])
    checks.forget(4)
    checks.add(1, [SliceDigest(0, 0, 4, 18)])
    with pytest.raises(DisagreementError):
        checks.add(1, [SliceDigest(0, 4, 8, 18)])
