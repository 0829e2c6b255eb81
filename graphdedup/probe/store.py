"""Where measured capabilities are kept: one JSON file for each device, driver, CUDA and torch, in the user's cache folder."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
import xxhash

from graphdedup import settings
from graphdedup.capabilities import Capabilities
from graphdedup.driver.protocol import DeviceIdentity
from graphdedup.errors import ReportError

__all__ = ["Key", "folder", "key_of", "load", "path_of", "save"]

_log = logging.getLogger("graphdedup")
_PROBE_VERSION = 1
"""Counted up when the questions change, so that what an older release measured is measured again."""


class Key(NamedTuple):
    """What the answers depend on."""

    device: str
    driver_version: str
    cuda_version: str
    torch_version: str


def key_of(identity: DeviceIdentity) -> Key:
    """The key of a device, with the CUDA and torch of this process."""
    return Key(identity.name, identity.driver_version, torch.version.cuda or "", torch.__version__)


def folder() -> Path:
    """``$GRAPHDEDUP_CACHE``, else ``graphdedup`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if given := os.environ.get(settings.CACHE):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphdedup"


def path_of(key: Key) -> Path:
    """The file of a key; the name shows the device, a hash tells it from others."""
    digest = xxhash.xxh3_64_hexdigest("\0".join((*key, str(_PROBE_VERSION))).encode())
    name = "".join(letter if letter.isalnum() else "-" for letter in key.device.lower())
    return folder() / f"capabilities-{name}-{digest}.json"


def load(key: Key) -> Capabilities | None:
    """What was kept under a key; None when there is nothing, or nothing that can be used."""
    path = path_of(key)
    try:
        found = Capabilities.from_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ReportError) as error:
        _log.warning("%s cannot be used (%s); it is measured again", path, error)
        return None
    held = Key(found.device, found.driver_version, found.cuda_version, found.torch_version)
    return found if held == key and found.answers else None


def save(key: Key, capabilities: Capabilities) -> Path | None:
    """Keep what was measured, whole or not at all; None when the folder cannot be written, which is no failure."""
    path, written = path_of(key), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
            written = Path(file.name)
            file.write(capabilities.to_json() + "\n")
        os.replace(written, path)
    except OSError as error:
        if written is not None:
            written.unlink(missing_ok=True)
        _log.warning("capabilities cannot be kept in %s (%s); the next process measures again", path, error)
        return None
    return path
