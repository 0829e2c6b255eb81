"""One registry for each device and policy: every backend and session of the process folds into it."""

from __future__ import annotations

import threading
import weakref

from graphdedup.capabilities import Capabilities
from graphdedup.driver.protocol import DeviceIdentity, GraphDriver
from graphdedup.policy import FoldPolicy
from graphdedup.registry import Registry

__all__ = ["registry_of"]

_Key = tuple[DeviceIdentity, FoldPolicy, Capabilities | None]
_registries: weakref.WeakValueDictionary[_Key, Registry] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def registry_of(driver: GraphDriver, policy: FoldPolicy, capabilities: Capabilities | None) -> Registry:
    """The registry of the driver's device for this policy. It lives as long as a backend or a graph uses it.

    Capabilities that are given make a registry of their own: graphs are equal there by another measure.
    """
    key = (driver.identity, policy, capabilities)
    with _lock:
        found = _registries.get(key)
        if found is None:
            found = _registries[key] = Registry(driver, policy, capabilities=capabilities)
        return found
