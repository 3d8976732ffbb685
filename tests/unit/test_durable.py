"""What a coordinator that is started again finds, and how it fences the one before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from meshfeed.actors.control.durable import Durable, Opened
from meshfeed.actors.control.rejoining import Rejoining
from meshfeed.pipeline.data.runs.run_folder import RunFolder
from meshfeed.pipeline.plan.errors import ChangedError, MeshfeedError


def test_everything_is_found_again_and_the_one_before_is_fenced(tmp_path: Path) -> None:
    async def live() -> None:
        first = Durable(RunFolder(str(tmp_path)))
        first.begin({"ab": 2})
        first.check()
        first.generation = 4
        first.opened["eval/books"] = Opened(4, 3, left=[1], barrier=9)
        await asyncio.gather(*(first.save() for _ in range(20)))
        second = Durable(RunFolder(str(tmp_path)))
        assert second.incarnation == first.incarnation + 1
        assert (second.restarts, second.generation) == (1, 4)
        assert second.placement == {"ab": 2}
        assert second.opened == {"eval/books": Opened(4, 3, left=[1], barrier=9)}
        second.check()
        with pytest.raises(MeshfeedError, match="coordinator 1 of the run ends: coordinator 2"):
            first.check()
        second.begin({})
        assert (second.restarts, second.opened, second.generation) == (0, {}, 4)

    asyncio.run(live())


def test_changes_of_many_are_durable_when_each_hears_so(tmp_path: Path) -> None:
    async def live() -> None:
        durable = Durable(RunFolder(str(tmp_path)))
        opened = durable.opened["train"] = Opened(1, 50)

        async def leave(process: int) -> None:
            opened.left.append(process)
            await durable.save()
            assert process in RunFolder(str(tmp_path)).control()["feeds"]["train"]["left"]

        await asyncio.gather(*(leave(process) for process in range(50)))

    asyncio.run(live())


@pytest.mark.parametrize("text", ["{", "[1]", '{"feeds": {"train": {"size": 3}}}'])
def test_a_damaged_file_is_an_error_that_names_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "control.json").write_text(text)
    with pytest.raises(ChangedError, match=r"control\.json"):
        Durable(RunFolder(str(tmp_path)))


def test_hosts_come_again_where_the_slowest_is() -> None:
    async def live() -> None:
        rejoining = Rejoining("train", Opened(3, 4, left=[2], barrier=7))
        for process, step, granted in ((0, 5, 6), (3, 4, 9)):
            rejoining.add(process, {"step": step}, granted)
            assert not rejoining.is_complete
        assert "process 1 of 4 did not come again" in str(rejoining.missing())
        rejoining.add(1, {"step": 8}, 8)
        assert rejoining.is_complete
        assert rejoining.start == {"step": 4}
        assert rejoining.granted == 9

    asyncio.run(live())
