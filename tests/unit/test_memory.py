import gc

import jax
import numpy as np

from meshfeed.pipeline.data.memory import ALIGNMENT, RecycledMemory


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_comes_again_only_when_no_view_is_left():
    memory = RecycledMemory()
    first = memory(1000)
    assert first.shape == (1000,)
    assert address(first) % ALIGNMENT == 0
    place, view = address(first), first[:400].view(np.int32).reshape(10, 10)
    del first
    other = memory(1000)
    assert not np.shares_memory(other, view)
    del view
    assert address(memory(900)) == place


def test_memory_that_a_jax_array_shares_is_left_alone():
    memory = RecycledMemory()
    local = memory(4096).view(np.int32).reshape(32, 32)
    local[:] = 7
    place = address(local)
    on_device = jax.device_put(local, jax.devices("cpu")[0])
    on_device.block_until_ready()
    del local
    later = memory(4096)
    later[:] = 255
    assert (np.asarray(on_device) == 7).all()
    del on_device, later
    gc.collect()
    again = {address(piece) for piece in [memory(4096), memory(4096)]}
    assert place in again


def test_only_so_many_pieces_are_kept():
    memory = RecycledMemory(keep=2)
    held = [memory(100) for _ in range(5)]
    assert len({address(piece) for piece in held}) == 5
    assert len(memory._owners) == 2
    del held
    small = address(memory(100))
    assert address(memory(100)) == small


def test_a_larger_piece_takes_the_place_of_an_idle_one():
    memory = RecycledMemory(keep=1)
    memory(100)
    large = memory(10_000)
    assert len(large) == 10_000
    place = address(large)
    del large
    assert len(memory._owners) == 1
    assert address(memory(10_000)) == place
