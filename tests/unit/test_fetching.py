"""Where windows lie, as a host knows it: all that it may still ask for, and not much more."""

import random

import numpy as np
from desk_world import DeskWorld, spec_of

from meshfeed.actors.host.fetching import Fetcher
from meshfeed.actors.messages import FeedUpdate, Opening
from meshfeed.pipeline.plan.batch_plan import plan_batch
from meshfeed.pipeline.plan.config import LEAVES
from meshfeed.pipeline.plan.feed_state import WindowKey
from meshfeed.pipeline.plan.mesh import MeshLayout


def test_a_host_forgets_where_windows_lay_that_it_has_taken(tmp_path) -> None:
    spec = spec_of(windows=100, epochs=6, batch_size=8)
    world = DeskWorld(tmp_path, spec, hosts=1, extra_budget=20_000)
    host = world.hosts[0]
    layout = MeshLayout(axis_names=("data",), shape=(1,), process_of_device=np.zeros(1, np.int32))
    plan = plan_batch(layout, dict.fromkeys(LEAVES, ((), ())), batch_size=8, seq_len=16)
    opening = Opening(generation=1, spec=spec, start=None, max_steps=None, least_depth=4)
    fetcher = Fetcher("train", opening, plan, 0)
    hear = host.hear

    def learn(update: FeedUpdate) -> None:
        fetcher.learn(update)
        hear(update)
        row = min(8 * host.taken, host.schedule.known_rows)
        fetcher.forget_before(host.schedule.cursor(row, host.taken))
        for source, epoch, window in zip(
            *(p.tolist() for p in host.schedule.locate(row, host.schedule.known_rows)[:3]),
            strict=True,
        ):
            key = WindowKey(source, epoch, window)
            assert fetcher._node_of[key] == host.node_of[key]
        sizes.append(len(fetcher._node_of))

    sizes: list[int] = []
    host.hear = learn  # type: ignore[method-assign]
    world.run(random.Random(0))
    assert len(host.events) > 1200
    assert max(sizes) < 200
