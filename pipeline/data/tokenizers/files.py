"""Tokenizer files: where they lie, what kind they are, and the digest that names them."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import fsspec

from meshfeed.pipeline.plan.errors import ConfigError

SETTING = "tokenizer.path"

_IN_FOLDER = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "spiece.model")
_NAMES_SPECIALS = ("tokenizer_config.json", "special_tokens_map.json")
_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")
_HINT = (
    "Give 'bytes', a Hugging Face tokenizer.json (or the folder that holds it), a tiktoken file "
    "or a sentencepiece model"
)


class Kind(StrEnum):
    """What a tokenizer file is."""

    BYTES = "bytes"
    HUGGINGFACE = "huggingface"
    TIKTOKEN = "tiktoken"
    SENTENCEPIECE = "sentencepiece"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFile:
    """A tokenizer file in memory, so that it is read once and parsed from the bytes digested.

    Attributes:
        path: of the file itself, also where a folder was given.
        data: its content.
        sidecars: files beside it that say more, by name: ``tokenizer_config.json`` and
            ``special_tokens_map.json`` for Hugging Face, ``<file>.json`` for tiktoken.
    """

    path: str
    kind: Kind
    data: bytes = b""
    sidecars: dict[str, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def digest(self) -> str:
        """blake2b of the file, and of the tiktoken sidecar, which holds half of the tokenizer.

        Other sidecars only name BOS and EOS, whose ids are in the fingerprint anyway.
        """
        digest = hashlib.blake2b(self.data, digest_size=16)
        if self.kind is Kind.TIKTOKEN:
            for name in sorted(self.sidecars):
                digest.update(self.sidecars[name])
        return digest.hexdigest()

    def sidecar(self, name: str) -> dict[str, Any]:
        """A sidecar as a mapping; empty where there is none.

        Raises:
            ConfigError: it is not a JSON object.
        """
        if name not in self.sidecars:
            return {}
        try:
            values = json.loads(self.sidecars[name])
        except ValueError as error:
            raise ConfigError(SETTING, f"{name} beside {self.path} is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(SETTING, f"{name} beside {self.path} is not a JSON object")
        return values

    def written_to(self, folder: Path) -> str:
        """Write file and sidecars into ``folder``; the path to use from there on."""
        if self.kind is Kind.BYTES:
            return self.path
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in {self.name: self.data, **self.sidecars}.items():
            (folder / name).write_bytes(data)
        return str(folder / self.name)


def read_tokenizer_file(path: str) -> TokenizerFile:
    """The tokenizer file at ``path``: ``bytes``, a file, a folder or an address that fsspec opens.

    The content says what it is, not the name: ``tokenizer.model`` is a sentencepiece model for
    some models and a tiktoken file for others.

    Raises:
        ConfigError: there is no such file, it cannot be read, or it is of no known kind.
    """
    if path == Kind.BYTES:
        return TokenizerFile(path=path, kind=Kind.BYTES)
    path = _in_folder(path)
    data = _read(path)
    if data is None:
        raise ConfigError(SETTING, f"there is no file {path}", _HINT)
    kind = _kind_of(path, data)
    folder, slash, name = path.rpartition("/")
    beside: tuple[str, ...] = ()
    if kind is Kind.HUGGINGFACE:
        beside = _NAMES_SPECIALS
    elif kind is Kind.TIKTOKEN:
        beside = (name + ".json",)
    found = {other: _read(folder + slash + other) for other in beside}
    sidecars = {other: content for other, content in found.items() if content is not None}
    return TokenizerFile(path=path, kind=kind, data=data, sidecars=sidecars)


def _kind_of(path: str, data: bytes) -> Kind:
    if data[:64].lstrip().startswith(b"{"):
        return Kind.HUGGINGFACE
    if _TIKTOKEN_LINE.match(data):
        return Kind.TIKTOKEN
    if data.startswith(b"\x0a"):  # the first field of a sentencepiece model: its pieces
        return Kind.SENTENCEPIECE
    what = f"begins with {data[:16]!r}" if data else "is empty"
    raise ConfigError(SETTING, f"{path} {what}, which is no known kind of tokenizer file", _HINT)


def _in_folder(path: str) -> str:
    if "://" in path or not Path(path).is_dir():
        return path
    for name in _IN_FOLDER:
        if (Path(path) / name).is_file():
            return str(Path(path) / name)
    raise ConfigError(SETTING, f"folder {path} holds none of {', '.join(_IN_FOLDER)}", _HINT)


def _read(path: str) -> bytes | None:
    try:
        if "://" not in path:
            return Path(path).read_bytes()
        with fsspec.open(path, "rb") as file:
            content: bytes = file.read()
            return content
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(
            SETTING, f"{path} could not be read: {error}", "Check its permissions and credentials"
        ) from error
