"""``meshfeed show``: a row as text, with its segments marked and masked tokens dimmed."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from meshfeed.launch.opened import add_run_flags, open_run
from meshfeed.launch.progress import Progress
from meshfeed.launch.words import plural, tail
from meshfeed.pipeline.data.runs.replay import Replay, RowOrigin, SegmentOrigin
from meshfeed.pipeline.data.tokenizers import Tokenizer, load_tokenizer
from meshfeed.pipeline.plan.config import Engine, TokenizerConfig
from meshfeed.pipeline.plan.errors import ConfigError

SHOWN_TOKENS = 2000
"""Of a longer segment, half as many at each end, unless all are asked for."""

_COLOURS = ("cyan", "yellow", "green", "magenta")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

Tokens = npt.NDArray[Any]


def add_show_command(commands: Any) -> None:
    """Adds ``show`` to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "show",
        help="print a row of a batch as text",
        description="Prints a row as text: each segment under a line that says which record it is "
        "a part of; tokens that do not count as targets are dim.",
    )
    add_run_flags(parser)
    parser.add_argument("--step", type=int, required=True, help="step of the feed, from 0")
    parser.add_argument("--row", type=int, default=0, help="row of the batch, from 0 (default: 0)")
    parser.add_argument(
        "--full", action="store_true", help=f"all tokens of segments longer than {SHOWN_TOKENS}"
    )
    parser.add_argument("--ids", action="store_true", help="token ids instead of text")
    parser.add_argument(
        "--tokenizer", metavar="FILE", help="to decode with, where the data are token ids already"
    )
    parser.set_defaults(run=run_show)


def run_show(args: argparse.Namespace) -> int:
    """Prints the row.

    Returns:
        0.

    Raises:
        ConfigError: no such run, feed, step or row.
    """
    progress = Progress()
    with open_run(args, progress) as run:
        rows = run.rows(args.step, args.feed)
        size = run.spec(args.feed).config.batch_size
        if not 0 <= args.row < size:
            raise ConfigError("row", f"{args.row} is not one of 0..{size - 1}, the rows of a batch")
        batch = run.batch(args.step, args.feed, leaf_names="meshfeed")
        tokenizer = None if args.ids else _tokenizer(run, args)
        progress.close()
        console = Console(highlight=False)
        if args.row >= len(rows):
            console.print(
                f"Row {args.row} of step {args.step} is padding: the feed ends with row "
                f"{len(rows) - 1} of this step, and rows of weight zero fill it up."
            )
            return 0
        row = rows[args.row]
        leaves = {name: leaf[args.row] for name, leaf in batch.items()}
        _print_head(console, run, args, row, leaves)
        root = _root(run, args.feed, row.source)
        for number, segment in enumerate(row.segments):
            _print_segment(
                console, number, segment, leaves, tokenizer=tokenizer, root=root, full=args.full
            )
        padding = len(leaves["tokens"]) - sum(s.length for s in row.segments)
        if padding:
            console.print(Rule(f"[dim]{plural(padding, 'token')} of padding", style="dim"))
    return 0


def _tokenizer(run: Replay, args: argparse.Namespace) -> Tokenizer | None:
    if args.tokenizer is None:
        return run.tokenizer(args.feed)
    return load_tokenizer(TokenizerConfig(path=args.tokenizer, eos=False), Engine.REFERENCE)


def _root(run: Replay, feed: str, source: str) -> str:
    manifests = run.spec(feed).manifests
    return next(m.root for m in manifests if m.name == source)


def _print_head(
    console: Console, run: Replay, args: argparse.Namespace, row: RowOrigin, leaves: Any
) -> None:
    real = sum(segment.length for segment in row.segments)
    masked = int(sum(_masked(leaves["loss_weights"], s).sum() for s in row.segments))
    line = Text.assemble(
        (f"{args.feed}, step {args.step}, row {args.row}", "bold"),
        f"  global row {row.global_row:,}: row {row.window_row} of window {row.window}, "
        f"epoch {row.epoch} of source ",
        (row.source, "bold"),
    )
    console.print(line)
    facts = [plural(len(row.segments), "segment"), plural(real, "token")]
    if masked:
        mark = "dim" if console.color_system else "in [[ ]]"
        facts.append(f"{masked:,} of them masked ({mark})")
    console.print(", ".join(facts), style="dim")
    if not run.is_recorded(args.step, args.feed):
        console.print("The run has not come to this step; so it would be", style="yellow")
    root = _root(run, args.feed, row.source)
    if root:
        console.print(f"Shards lie in {root}", style="dim", soft_wrap=True)
    console.print()


def _print_segment(
    console: Console,
    number: int,
    segment: SegmentOrigin,
    leaves: dict[str, Tokens],
    *,
    tokenizer: Tokenizer | None,
    root: str,
    full: bool,
) -> None:
    colour = _COLOURS[number % len(_COLOURS)]
    shard = tail(segment.shard, root, max(20, console.width - 50))
    title = Text.assemble((f" {number + 1} ", f"bold {colour} reverse"), f" {shard}, ")
    title.append(segment.where, colour)
    first, end = segment.offset, segment.offset + segment.length
    title.append(f"  tokens {first:,}-{end - 1:,} of it", "dim")
    console.print(Rule(title, align="left", style=colour, characters="─"))
    body = Text(overflow="fold")
    for style, text in _runs(segment, leaves, tokenizer, full=full):
        unseen = style == "masked" and not console.color_system
        body.append(f"[[{text}]]" if unseen else text, _STYLES[style])
    body.rstrip()
    console.print(body)
    console.print()


_STYLES = {"text": "", "masked": "dim", "special": "bold blue", "left out": "italic yellow"}


def _runs(
    segment: SegmentOrigin, leaves: dict[str, Tokens], tokenizer: Tokenizer | None, *, full: bool
) -> Iterator[tuple[str, str]]:
    """(kind, text) of the segment's stretches of tokens that are shown alike."""
    tokens = leaves["tokens"][segment.start : segment.start + segment.length]
    kinds = np.where(_masked(leaves["loss_weights"], segment), 1, 0)
    if tokenizer is not None:
        for special in (tokenizer.bos_id, tokenizer.eos_id):
            if special is not None:
                kinds[tokens == special] = 2
    half = SHOWN_TOKENS // 2
    if not full and len(tokens) > SHOWN_TOKENS:
        kinds[half:-half] = 3
    bounds = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(tokens)]
    names = list(_STYLES)
    for begin, end in itertools.pairwise(bounds):
        kind = names[int(kinds[begin])]
        if kind == "left out":
            yield kind, f"\n... {plural(end - begin, 'token')} left out, --full shows them ...\n"
        else:
            yield kind, _text_of(tokens[begin:end], tokenizer)


def _masked(weights: Tokens, segment: SegmentOrigin) -> npt.NDArray[np.bool_]:
    """Which tokens of a segment count as no target: bool [length].

    A token's weight stands at the token before it; the segment's first token has none before it and
    is taken to be as the second.
    """
    own = weights[segment.start : segment.start + segment.length]
    masked = np.zeros(segment.length, np.bool_)
    masked[1:] = own[:-1] == 0
    masked[:1] = masked[1:2]
    return masked


def _text_of(tokens: Tokens, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return " ".join(str(token) for token in tokens.tolist()) + " "
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], tokenizer.decode(tokens))
