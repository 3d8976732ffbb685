"""Settings from a YAML file and command line flags; every flag is a key of the file."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import yaml

from meshfeed.pipeline.plan.config import (
    BadRecords,
    Engine,
    FeedConfig,
    OnEnd,
    Overlong,
    Packing,
    Remainder,
    Shuffle,
    SourceConfig,
    TokenizerConfig,
)
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import DeviceOrder
from meshfeed.pipeline.plan.run_config import RunConfig, UnevenBatch

_Switch = argparse.BooleanOptionalAction

_FLAGS: dict[str, dict[str, Any]] = {
    "--data": {
        "nargs": "+",
        "metavar": "GLOB",
        "help": "shards: globs, folders, files, s3:// or gs:// addresses; in the place of sources:",
    },
    "--column": {"help": "column that holds text, or lists of token ids"},
    "--loss-mask-column": {
        "metavar": "COLUMN",
        "help": "column of lists of 0 and 1: which token ids count as targets; default: all",
    },
    "--format": {"help": "auto (by file name), parquet, arrow, jsonl, text, arrayrecord or grain"},
    "--tokenizer": {
        "metavar": "FILE",
        "help": "'bytes', or a tokenizer.json, tiktoken or sentencepiece file",
    },
    "--engine": {"choices": list(Engine), "help": "which implementation encodes"},
    "--bos": {"action": _Switch, "help": "put the begin-of-sequence id before every record"},
    "--eos": {"action": _Switch, "help": "put the end-of-sequence id behind every record"},
    "--bos-id": {"type": int, "metavar": "ID", "help": "in the place of the tokenizer's own"},
    "--eos-id": {"type": int, "metavar": "ID", "help": "in the place of the tokenizer's own"},
    "--transforms": {
        "nargs": "+",
        "metavar": "MODULE:NAME",
        "help": "record transforms, applied in order",
    },
    "--kept": {
        "type": float,
        "metavar": "SHARE",
        "help": "share of the tokens that transforms leave, about",
    },
    "--bad-records": {
        "choices": list(BadRecords),
        "help": "whether a record with wrong content ends the run, or is left out and listed",
    },
    "--max-bad-records": {
        "type": int,
        "metavar": "N",
        "help": "with bad-records skip, more than so many of a source end the run",
    },
    "--max-record-bytes": {
        "metavar": "BYTES",
        "help": "a longer record is a bad record",
    },
    "--seq-len": {"type": int, "metavar": "N", "help": "tokens in a row"},
    "--batch-size": {
        "type": int,
        "metavar": "N",
        "help": "rows in a step, in all, for any number of hosts",
    },
    "--shuffle": {"choices": list(Shuffle), "help": "what is permuted in an epoch"},
    "--packing": {"choices": list(Packing), "help": "how records are laid into rows"},
    "--overlong": {
        "choices": list(Overlong),
        "help": "what becomes of a record longer than a row (concat always splits)",
    },
    "--max-segments": {
        "type": int,
        "metavar": "N",
        "help": "records, or parts of records, in a row at most; 0: no limit",
    },
    "--vocab-size": {
        "type": int,
        "metavar": "N",
        "help": "token ids are below it; up to 65,536 stored ones travel in 2 bytes; 0: not known",
    },
    "--epochs": {"type": int, "metavar": "N", "help": "passes over each source; 0: endless"},
    "--on-end": {
        "choices": list(OnEnd),
        "help": "what a mixture does when a source has given its epochs: go on with the others, "
        "stop, or repeat it",
    },
    "--remainder": {
        "choices": list(Remainder),
        "help": "whether rows that do not fill the last step are padded to a step or dropped",
    },
    "--seed": {"type": int, "metavar": "N", "help": "of the shuffle and of randomized transforms"},
    "--hosts": {"type": int, "metavar": "N", "help": "JAX processes to simulate or plan for"},
    "--devices-per-host": {"type": int, "metavar": "N", "help": "devices of each host"},
    "--mesh": {
        "metavar": "AXES",
        "help": "axes and sizes, e.g. data=4,model=2; -1 takes what is left; default: data=-1",
    },
    "--device-order": {
        "choices": list(DeviceOrder),
        "help": "how the devices of simulated hosts lie in the mesh",
    },
    "--partition": {
        "metavar": "TYPE",
        "help": "FULL, DATA, BATCH, REPLICATED, P('data', None), or by leaf {tokens: DATA, ...}",
    },
    "--data-axes": {"nargs": "+", "metavar": "AXIS", "help": "mesh axes that split rows"},
    "--sequence-axes": {
        "nargs": "+",
        "metavar": "AXIS",
        "help": "mesh axes that split columns under BATCH",
    },
    "--model-axes": {
        "nargs": "+",
        "metavar": "AXIS",
        "help": "mesh axes that replicate the batch, save under FULL",
    },
    "--uneven-batch": {
        "choices": list(UnevenBatch),
        "help": "a batch that does not divide over the mesh: refuse it, or add rows of weight zero",
    },
    "--leaf-names": {
        "metavar": "PRESET",
        "help": "names of the arrays in a batch: meshfeed, maxtext, axlearn or levanter",
    },
    "--steps": {
        "type": int,
        "metavar": "N",
        "help": "the train feed ends there; default: when its sources do",
    },
    "--readers": {
        "type": int,
        "metavar": "N",
        "help": "reader processes in all; default: one for each core that Ray has",
    },
    "--memory-budget": {
        "metavar": "BYTES",
        "help": "of finished rows that each node may hold, e.g. 512MB",
    },
    "--chunk-cache": {
        "metavar": "BYTES",
        "help": "of decoded records that each node keeps for windows that share them",
    },
    "--prefetch": {"type": int, "metavar": "N", "help": "batches kept ready on the devices"},
    "--grant-seconds": {
        "type": float,
        "metavar": "S",
        "help": "how far ahead of the step hosts may fetch, in seconds of training",
    },
    "--stall-seconds": {"type": float, "metavar": "S", "help": "a longer wait is logged"},
    "--timeout-seconds": {"type": float, "metavar": "S", "help": "a longer wait ends the run"},
    "--read-attempts": {
        "type": int,
        "metavar": "N",
        "help": "tries of one read from storage before it is an error",
    },
    "--read-timeout-seconds": {
        "type": float,
        "metavar": "S",
        "help": "a read from S3 or Google Cloud Storage that takes longer is tried again",
    },
    "--run-dir": {
        "metavar": "DIR",
        "help": "where manifest, ledger and report are kept; the hosts must see it too",
    },
}


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """The optional CONFIG.yaml and a flag for every setting."""
    parser.add_argument("config", nargs="?", metavar="CONFIG.yaml", help="settings as a file")
    group = parser.add_argument_group(
        "settings (each overrules the key of the same name in the file, but not what a source of "
        "sources: says itself)"
    )
    defaults = _defaults()
    for flag, options in _FLAGS.items():
        shown = _shown(defaults.get(key_of(flag)))
        text = options["help"] + (f" (default: {shown})" if shown else "")
        group.add_argument(flag, default=None, **{**options, "help": text})


def key_of(flag: str) -> str:
    """The key of the file that a flag overrules: ``--seq-len`` -> ``seq_len``."""
    return flag.removeprefix("--").replace("-", "_")


def _defaults() -> dict[str, Any]:
    """The default of each key; those of a feed go before those of its sources."""
    found: dict[str, Any] = {}
    for settings in (RunConfig, FeedConfig, TokenizerConfig, SourceConfig):
        for field in dataclasses.fields(settings):
            if field.default is not dataclasses.MISSING:
                found.setdefault(field.name, field.default)
    return found | {"tokenizer": found["path"]}


def _shown(default: Any) -> str:
    """A default as it would be given, "" where there is none to show."""
    if default is None or default == ():
        return ""
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, tuple):
        return " ".join(default)
    for scale, unit in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if isinstance(default, int) and default >= scale and default % scale == 0:
            return f"{default // scale}{unit}"
    return f"{default:g}" if isinstance(default, float) else str(default)


def mapping_from(args: argparse.Namespace) -> dict[str, Any]:
    """File and flags as one mapping.

    Raises:
        ConfigError: the file is not there or is no mapping.
    """
    mapping = load_yaml(Path(args.config)) if args.config else {}
    for flag in _FLAGS:
        key = key_of(flag)
        value = getattr(args, key)
        if value is not None:
            mapping[key] = value
    if "data" in mapping and args.data is not None:
        mapping.pop("sources", None)
    if str(args.partition).startswith(("{", "[")):
        mapping["partition"] = yaml.safe_load(args.partition)
    return mapping


def config_from(args: argparse.Namespace, **defaults: Any) -> RunConfig:
    """The run that file and flags describe; ``defaults`` stand where neither says anything."""
    return RunConfig.from_mapping(defaults | mapping_from(args))


def load_yaml(path: Path) -> dict[str, Any]:
    """A file of settings.

    Raises:
        ConfigError: it is not there, or is no mapping.
    """
    try:
        loaded = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError("CONFIG.yaml", f"there is no file {path}") from None
    except yaml.YAMLError as error:
        raise ConfigError("CONFIG.yaml", f"{path} is not YAML: {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigError("CONFIG.yaml", f"{path} holds no mapping of settings")
    return loaded
