"""Settings from a YAML file and command line flags; every flag is a key of the file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml

from meshfeed.pipeline.plan.config import (
    BadRecords,
    Engine,
    OnEnd,
    Overlong,
    Packing,
    Remainder,
    Shuffle,
)
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import DeviceOrder, parse_axes
from meshfeed.pipeline.plan.run_config import RunConfig, UnevenBatch

_FLAGS: dict[str, dict[str, Any]] = {
    "--data": {"nargs": "+", "metavar": "GLOB", "help": "shards: globs, folders, s3:// or gs://"},
    "--column": {"help": "text column, or column of token ids"},
    "--format": {"help": "parquet, arrow, jsonl, text, arrayrecord, grain; default: by name"},
    "--tokenizer": {"help": "'bytes', or a tokenizer.json, tiktoken or sentencepiece file"},
    "--engine": {"choices": list(Engine), "help": "which tokenizer engine encodes"},
    "--transforms": {"nargs": "+", "metavar": "MODULE:NAME", "help": "record transforms, in order"},
    "--kept": {"type": float, "help": "share of the tokens that transforms leave, about"},
    "--bad-records": {"choices": list(BadRecords), "help": "what a bad record does"},
    "--seq-len": {"type": int, "help": "tokens in a row"},
    "--batch-size": {"type": int, "help": "rows in a step, for any number of hosts"},
    "--shuffle": {"choices": list(Shuffle), "help": "how records are mixed"},
    "--packing": {"choices": list(Packing), "help": "how records are laid into rows"},
    "--overlong": {"choices": list(Overlong), "help": "records longer than a row"},
    "--max-segments": {"type": int, "help": "records in a row at most"},
    "--epochs": {"type": int, "help": "passes over each source; 0: endless"},
    "--on-end": {"choices": list(OnEnd), "help": "when a source of a mixture ends"},
    "--remainder": {"choices": list(Remainder), "help": "rows that do not fill the last step"},
    "--seed": {"type": int, "help": "of the order"},
    "--hosts": {"type": int, "help": "processes of the JAX world"},
    "--devices-per-host": {"type": int, "help": "devices of each"},
    "--mesh": {"help": "axes and sizes, e.g. data=4,model=2; -1: what is left"},
    "--device-order": {"choices": list(DeviceOrder), "help": "how devices lie in the mesh"},
    "--partition": {
        "help": "FULL, DATA, BATCH, REPLICATED, P('data', None), or by leaf {tokens: DATA, ...}"
    },
    "--data-axes": {"nargs": "+", "metavar": "AXIS", "help": "mesh axes that split rows"},
    "--sequence-axes": {"nargs": "+", "metavar": "AXIS", "help": "that split columns under BATCH"},
    "--model-axes": {"nargs": "+", "metavar": "AXIS", "help": "that replicate the batch"},
    "--uneven-batch": {"choices": list(UnevenBatch), "help": "a batch that does not divide"},
    "--leaf-names": {"help": "meshfeed, maxtext, axlearn or levanter"},
    "--steps": {"type": int, "help": "steps at most"},
    "--readers": {"type": int, "help": "reader processes in all"},
    "--memory-budget": {"help": "row blocks each node may hold, e.g. 512MB"},
    "--prefetch": {"type": int, "help": "batches ready on the devices"},
    "--stall-seconds": {"type": float, "help": "a longer wait is logged"},
    "--timeout-seconds": {"type": float, "help": "a longer wait ends the run"},
    "--run-dir": {"help": "where manifest, ledger and report are kept"},
}


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """The optional CONFIG.yaml and a flag for every setting."""
    parser.add_argument("config", nargs="?", metavar="CONFIG.yaml", help="settings as a file")
    group = parser.add_argument_group(
        "settings (each overrules the key of the same name in the file)"
    )
    for flag, options in _FLAGS.items():
        group.add_argument(flag, default=None, **options)


def mapping_from(args: argparse.Namespace) -> dict[str, Any]:
    """File and flags as one mapping.

    Raises:
        ConfigError: the file is not there or is no mapping.
    """
    mapping = load_yaml(Path(args.config)) if args.config else {}
    for flag in _FLAGS:
        key = flag[2:].replace("-", "_")
        value = getattr(args, key)
        if value is not None:
            mapping[key] = value
    if "data" in mapping and args.data is not None:
        mapping.pop("sources", None)
    if isinstance(mapping.get("mesh"), str):
        mapping["mesh"] = parse_axes(mapping["mesh"])
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
