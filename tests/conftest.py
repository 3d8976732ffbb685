"""What all tests share: CPU devices, a marker for each folder, and a check that nothing is left."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from leftovers import SESSION_VARIABLE, Leftovers

os.environ["JAX_PLATFORMS"] = os.environ.get("MESHFEED_TEST_PLATFORMS", "cpu")
os.environ["JAX_ENABLE_X64"] = "0"
os.environ[SESSION_VARIABLE] = f"{os.getpid()}-{secrets.token_hex(8)}"

settings.register_profile(
    "meshfeed",
    deadline=None,  # no test has a stopwatch in it: the machine may be busy
    derandomize=os.environ.get("CI", "") not in ("", "0", "false"),
    print_blob=True,
)
settings.load_profile("meshfeed")

FOLDER_MARKERS = ("multiprocess", "ray", "cluster")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test with its folder, so that no file has to, and lets the quick ones go first.

    Those of tests/ray share one Ray and its environment until the session ends: nothing that wants
    to be without them comes after.
    """
    order = [*FOLDER_MARKERS]
    for item in items:
        if _folder(item) in FOLDER_MARKERS:
            item.add_marker(_folder(item))
    items.sort(key=lambda item: order.index(_folder(item)) if _folder(item) in order else -1)


def _folder(item: pytest.Item) -> str:
    here = Path(__file__).parent
    return item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves processes, threads or our shared-memory files behind."""
    before = Leftovers.now()
    yield
    left = before.wait_until_gone(limit_s=15.0)
    if left:
        pytest.fail("the test left behind: " + "; ".join(left), pytrace=False)
