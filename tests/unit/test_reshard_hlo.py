"""What is read off compiled programs: collectives with their bytes, groups and repetitions."""

from __future__ import annotations

from fractions import Fraction

import pytest

from meshfeed.pipeline.assemble.hlo import read_program
from meshfeed.pipeline.plan.errors import DisagreementError

HEADER = "HloModule jit_f, is_scheduled=true, num_partitions=8\n"


def program(*lines: str, before: str = "") -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"{HEADER}\n{before}\nENTRY %main (p: f32[8,64]) -> f32[64,64] {{\n{body}\n}}\n"


GATHER = "%g = f32[64,64]{1,0} all-gather(%p), channel_id=1, "


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}", 4),
        ("replica_groups={}, dimensions={0}", 8),
        ("replica_groups=[4,2]<=[2,2,2]T(2,1,0), dimensions={0}", 2),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}, dimensions={0}", 4),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}, dimensions={0}", 8),
        (
            "replica_groups=mesh['a'=2,'b'=4], device_ids=([2,2,2]T(0,2,1)) {'b':(2)2}, "
            "dimensions={0}",
            2,
        ),
    ],
)
def test_groups_in_every_form_in_which_xla_writes_them(groups: str, size: int) -> None:
    (gather,) = read_program(program(GATHER + groups)).collectives
    assert gather.group_size == size
    assert gather.received_bytes == Fraction(64 * 64 * 4 * (size - 1), size)


def test_bytes_of_each_kind() -> None:
    groups = "replica_groups={{0,1,2,3},{4,5,6,7}}"
    read = read_program(
        program(
            f"%a = (bf16[4,8]{{1,0}}, bf16[4,8]{{1,0}}, bf16[4,8]{{1,0}}, bf16[4,8]{{1,0}}) "
            f"all-to-all(%w, %x, %y, %z), {groups}",
            f"%r = f32[100]{{0}} all-reduce(%p), {groups}, to_apply=%add",
            f"%s = f32[100]{{0}} reduce-scatter(%p), {groups}, to_apply=%add, dimensions={{0}}",
            "%c = s8[100]{0} collective-permute(%p), "
            "source_target_pairs={{0,0},{1,2},{2,1},{3,3},{4,5}}",
            "%n = s4[100]{0} all-gather(%p), replica_groups=[4,2]<=[8], dimensions={0}",
        )
    )
    assert [(c.kind, c.received_bytes) for c in read.collectives] == [
        ("all-to-all", 4 * 4 * 8 * 2 * Fraction(3, 4)),
        ("all-reduce", 2 * 400 * Fraction(3, 4)),
        ("reduce-scatter", 400 * 3),
        ("collective-permute", 100 * Fraction(3, 8)),
        ("all-gather", 25),
    ]
    assert read.received_bytes == sum(c.received_bytes for c in read.collectives)
    assert list(read.by_kind()) == [
        "all-gather",
        "all-to-all",
        "all-reduce",
        "reduce-scatter",
        "collective-permute",
    ]


def test_a_start_counts_its_result_and_its_done_nothing() -> None:
    read = read_program(
        program(
            "%s = (f32[8,64]{1,0}, f32[64,64]{1,0}) all-gather-start(%p), "
            "replica_groups=[1,8]<=[8], dimensions={0}",
            "%d = f32[64,64]{1,0} all-gather-done(%s)",
            "%c = (f32[10]{0}, f32[10]{0}, u32[], u32[]) collective-permute-start(%p), "
            "source_target_pairs={{0,1},{1,0},{2,3},{3,2},{4,5},{5,4},{6,7},{7,6}}",
        )
    )
    assert [c.received_bytes for c in read.collectives] == [64 * 64 * 4 * Fraction(7, 8), 40]


def test_a_collective_in_a_loop_counts_as_often_as_the_loop_runs() -> None:
    body = (
        "%inner (q: f32[8]) -> f32[8] {\n"
        "  ROOT %ds = f32[8]{0} dynamic-slice(%q), dynamic_slice_sizes={8}\n}\n"
        "%body (q: f32[8]) -> f32[8] {\n"
        "  %f = f32[8]{0} fusion(%q), kind=kLoop, calls=%inner\n"
        "  ROOT %r = f32[8]{0} all-reduce(%f), replica_groups={}, to_apply=%add\n}\n"
        "%cond (q: f32[8]) -> pred[] {\n  ROOT %t = pred[] constant(true)\n}\n"
    )
    known = (
        "%w = f32[8]{0} while(%p), condition=%cond, body=%body, "
        'backend_config={"known_trip_count":{"n":"12"}}'
    )
    read = read_program(program(known, before=body))
    assert read.by_kind()["all-reduce"].count == 12
    assert read.counts["dynamic-slice"] == 12
    unknown = read_program(program(known.split(", backend", maxsplit=1)[0], before=body))
    assert unknown.by_kind()["all-reduce"].count == 1


def test_text_in_another_form_is_refused() -> None:
    with pytest.raises(DisagreementError, match="no HLO module"):
        read_program("module @jit_f {")
    with pytest.raises(DisagreementError, match="groups are in no known form"):
        read_program(program("%g = f32[64] all-gather(%p), replica_groups=<8>"))
    with pytest.raises(DisagreementError, match="without an entry"):
        read_program(HEADER)
