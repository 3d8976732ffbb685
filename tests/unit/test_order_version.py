"""Golden digests of the order. Whoever has to change one raises ``ORDER_VERSION`` with it.

A run keeps the order version that it began with, so an order that changes in silence would give a
resumed run other rows. The digests are over little-endian integers and the same on every machine.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import pytest

from meshfeed.pipeline.plan.config import OnEnd, Shuffle
from meshfeed.pipeline.plan.manifest import ORDER_VERSION, Shard, SourceManifest, Unit
from meshfeed.pipeline.plan.mixture import Mixture
from meshfeed.pipeline.plan.schedule import Schedule, SourcePlan
from meshfeed.pipeline.plan.shuffle import derive_key, mix64, permute
from meshfeed.pipeline.plan.windows import EpochWindows

GOLDEN = {
    "mix64": "d31c5255b5689157",
    "keys": "25c551804ff41519",
    "permute": "95b29e3f79f36ccb",
    "permute large": "04db0f279ada2110",
    "mixture": "13ebe94054a69175",
    "schedule": "2490a514a9faab58",
    "windows none": "7f775f0aa0fc9743",
    "windows none, random access": "7f775f0aa0fc9743",
    "windows chunk": "2c1bb398df75e487",
    "windows chunk, random access": "2c1bb398df75e487",
    "windows record": "4962badb05118c41",
    "windows record, random access": "674f0787d3c51382",
}


def digest(values: Iterable[np.ndarray]) -> str:
    """Of the arrays' values as int64, one after the other."""
    hashed = hashlib.blake2b(digest_size=8)
    for value in values:
        hashed.update(np.asarray(value).astype("<u8").tobytes())
    return hashed.hexdigest()


def windows(shuffle: Shuffle, *, random_access: bool) -> Iterable[np.ndarray]:
    source = SourceManifest(
        name="books",
        root="/somewhere",
        format="jsonl",
        unit=Unit.RECORDS if random_access else Unit.BYTES,
        shards=tuple(Shard(f"{i:03}.jsonl", 40_000 + 777 * i) for i in range(37)),
        splittable=True,
        random_access=random_access,
        chunk_size=2_000,
        window_size=16_000,
        group_size=128_000,
    )
    for epoch in range(2):
        epoch_windows = EpochWindows(source, shuffle, 11, epoch)
        for index in range(epoch_windows.num_windows):
            window = epoch_windows.window(index)
            records = 1_500_000 if window.records is not None else 10 * len(window.chunks)
            yield np.array(window.chunks, np.int64)
            yield np.array([window.group, window.lo, window.hi, window.den])
            yield window.record_order(records)


def schedule() -> Iterable[np.ndarray]:
    plans = [
        SourcePlan(
            name=name,
            weight=weight,
            on_end=OnEnd.CONTINUE,
            epochs=epochs,
            windows_in_epoch=lambda epoch: 50 + epoch,
        )
        for name, weight, epochs in (("a", 0.55, 2), ("b", 0.3, 3), ("c", 0.15, None))
    ]
    feed = Schedule(plans)
    while feed.known_rows < 20_000:
        source = feed.limiting_source
        assert source is not None
        epoch, window = feed.next_window(source) or (0, 0)
        feed.append(source, [derive_key(source, epoch, window) % 90])
    yield from feed.locate(0, 20_000)
    for row in range(0, 20_000, 999):
        for at in feed.cursor(row, 0).sources:
            yield np.array([at.epoch, at.window, at.row, at.drawn, at.deficit, at.active])


def orders() -> dict[str, Iterable[np.ndarray]]:
    sizes = (1, 2, 3, 10, 1000, 99_991)
    made: dict[str, Iterable[np.ndarray]] = {
        "mix64": [mix64(np.arange(1000, dtype=np.uint64))],
        "keys": [np.array([derive_key(s, i) for s in ("", "a", "ä") for i in (-1, 0, 2**40)])],
        "permute": (permute(np.arange(n), n, derive_key("golden", n)) for n in sizes),
        "permute large": [permute(np.arange(1000) * (2**51 + 1), 2**62, 2**64 - 1)],
        "mixture": (
            Mixture(w).pattern(0, 5000)
            for w in ([1.0], [0.7, 0.3], [0.123456789, 1.0, 3.3], [*range(1, 101)])
        ),
        "schedule": schedule(),
    }
    for shuffle in Shuffle:
        made[f"windows {shuffle}"] = windows(shuffle, random_access=False)
        made[f"windows {shuffle}, random access"] = windows(shuffle, random_access=True)
    return made


@pytest.mark.parametrize("name", orders())
def test_the_order_is_that_of_this_order_version(name: str) -> None:
    assert ORDER_VERSION == 2
    assert digest(orders()[name]) == GOLDEN[name]
