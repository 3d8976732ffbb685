"""The check that fails tests which leave something behind does find it."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from leftovers import SHARED_MEMORY, SHARED_MEMORY_PREFIX, Leftovers, running_processes


def test_a_child_process_is_found_until_it_ends() -> None:
    before = Leftovers.now()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert [f"process {child.pid} " in word for word in before.left()] == [True]
        assert Leftovers.now().left() == []
    finally:
        child.communicate(b"\n")
    assert before.wait_until_gone(limit_s=30) == []


def test_an_orphan_is_found() -> None:
    before = Leftovers.now()
    nested = "from subprocess import *; print(Popen(['sleep', '60'], stdout=DEVNULL).pid)"
    parent = subprocess.run([sys.executable, "-c", nested], stdout=subprocess.PIPE, check=True)
    orphan = int(parent.stdout)
    try:
        assert running_processes()[orphan].parent != os.getpid()
        assert any(f"process {orphan} " in word for word in before.left())
    finally:
        os.kill(orphan, 9)
    assert before.wait_until_gone(limit_s=30) == []


def test_a_child_of_a_process_that_was_there_before_is_not_counted() -> None:
    nested = (
        "import subprocess; input(); c = subprocess.Popen(['sleep', '60']); "
        "print(c.pid, flush=True); input(); c.kill(); c.wait()"
    )
    older = subprocess.Popen(
        [sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert older.stdin is not None
    assert older.stdout is not None
    before = Leftovers.now()
    older.stdin.write("\n")
    older.stdin.flush()
    assert int(older.stdout.readline()) in running_processes()
    assert before.left() == []
    older.communicate("\n")


def test_a_thread_is_found_until_it_ends() -> None:
    before = Leftovers.now()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="left-over")
    thread.start()
    assert before.left() == ["thread left-over"]
    stop.set()
    assert before.wait_until_gone(limit_s=30) == []
    thread.join()


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no shared memory folder here")
def test_a_file_in_shared_memory_is_found() -> None:
    before = Leftovers.now()
    path = Path(SHARED_MEMORY, f"{SHARED_MEMORY_PREFIX}-left-over-{os.getpid()}")
    path.write_bytes(b"x")
    try:
        assert f"file {path}" in before.left()
    finally:
        path.unlink()
    assert f"file {path}" not in before.left()


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no shared memory folder here")
def test_a_file_in_a_folder_that_was_there_before_is_not_counted() -> None:
    folder = Path(SHARED_MEMORY, f"{SHARED_MEMORY_PREFIX}-folder-{os.getpid()}")
    folder.mkdir()
    path = folder / "x"
    try:
        before = Leftovers.now()
        path.write_bytes(b"x")
        assert f"file {path}" not in before.left()
    finally:
        path.unlink(missing_ok=True)
        folder.rmdir()
