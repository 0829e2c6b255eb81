"""Prometheus metrics of the fold (extra ``metrics``).

    from prometheus_client import REGISTRY, start_http_server
    collector = graphdedup.metrics.Collector(backend)      # or an interposition, or a function that returns Stats
    REGISTRY.register(collector)
    start_http_server(9400)

A scrape reads counters: no device is touched, and no lock is waited for that a capture or a replay holds for long.
"""

from __future__ import annotations

import importlib
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from graphdedup.backend import DedupBackend
from graphdedup.errors import GraphDedupError, SettingsError
from graphdedup.interpose import Interposition
from graphdedup.stats import SessionStats, Stats

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["MAX_SESSIONS", "OTHER_SESSIONS", "Collector", "Source"]

_log = logging.getLogger("graphdedup")

Source = DedupBackend | Interposition | Callable[[], Stats]
"""What a collector can tell of."""

MAX_SESSIONS = 16
"""So many session names of a device become series by default; the rest is one more."""
OTHER_SESSIONS = "(others)"
"""The ``session`` of that one."""


class _Count(NamedTuple):
    name: str
    field: str
    help: str


_COUNTERS = (
    _Count("captured_graphs", "captured", "Graphs captured."),
    _Count("launches", "launches", "Replays launched on a shared executable."),
    _Count("updates", "updates", "Updates of executables that the driver took."),
    _Count("replay_updates", "replay_updates", "Updates that a replay needed."),
    _Count("refused_updates", "refused", "Updates that the driver refused."),
    _Count("unfolded_graphs", "unfolded", "Graphs that lost their executable at replay."),
    _Count("splits", "splits", "Executables made because the others of the group ran on another stream."),
    _Count("evictions", "evictions", "Executables that the budget took."),
    _Count("refreshes", "refreshes", "Executables made anew for a graph that is replayed in a row."),
    _Count("verified_replays", "verified", "Replays that were compared with an executable of their own."),
    _Count("mismatches", "mismatches", "Verified replays that differed."),
    _Count("walk_seconds", "walk_seconds", "Time spent reading captured graphs."),
    _Count("fold_seconds", "fold_seconds", "Time spent on updates that graphs joined by."),
    _Count("instantiate_seconds", "instantiate_seconds", "Time spent making executables."),
)
_GAUGES = (
    _Count("graphs", "graphs", "Live captured graphs."),
    _Count("execs", "execs", "Live executables, those of graphs that were passed through included."),
    _Count("peak_execs", "peak_execs", "Most live executables at once; for several policies on a device, the sum of theirs."),
    _Count("groups", "groups", "Distinct records among the live executables of the fold."),
    _Count("nodes", "nodes", "Nodes of the live captured graphs."),
    _Count("opaque_nodes", "opaque_nodes", "Nodes of which the driver does not tell everything."),
    _Count("passed_through_graphs", "passed_through", "Live graphs that keep their own backend's executable."),
)
_SESSION_GAUGES = (
    _Count("session_graphs", "graphs", "Live captured graphs of sessions of a name."),
    _Count("session_execs", "execs", "Executables that they run on; sessions may share some."),
)
_MODELLED = _Count("exec_device_modelled_bytes", "", "Device bytes of the live executables, modelled from their node counts.")
_MEASURED = _Count(
    "exec_device_measured_bytes", "", "Growth of device memory over all instantiations, measured in steps of 2 MB; GPUs only."
)


@dataclass(slots=True)
class _Device:
    """What a device is told to have: sums over its registries."""

    counts: dict[str, float] = field(default_factory=dict)
    sessions: dict[str, SessionStats] = field(default_factory=dict)
    modelled_bytes: int | None = None
    measured_bytes: int | None = None

    def add(self, stats: Stats) -> None:
        for row in (*_COUNTERS, *_GAUGES):
            value = _graphs(stats) if row.field == "graphs" else getattr(stats, row.field)
            self.counts[row.name] = self.counts.get(row.name, 0) + value
        for one in stats.sessions:
            held = self.sessions.get(one.name, SessionStats(one.name, 0, 0))
            self.sessions[one.name] = SessionStats(one.name, held.graphs + one.graphs, held.execs + one.execs)

    def bounded_sessions(self, most: int) -> Iterator[SessionStats]:
        """The sessions with the most graphs, and the sum of the rest."""
        ordered = sorted(self.sessions.values(), key=lambda one: (-one.graphs, one.name))
        yield from ordered[:most]
        rest = ordered[most:]
        if rest:
            yield SessionStats(OTHER_SESSIONS, sum(one.graphs for one in rest), sum(one.execs for one in rest))


class Collector:
    """A collector for ``prometheus_client``: ``registry.register(Collector(backend))``.

    Metrics are called ``graphdedup_...``. Labels: ``device``, such as ``cuda:0``, and for two gauges ``session``. Registries of
    one device (of several policies) are summed; backends that share a registry count once. A source that is a backend or an
    interposition is held weakly: when it is gone, so are its series. One that fails is left out, with one warning in the log.

    One collector serves any number of sources; a second collector in the same ``CollectorRegistry`` is refused by that
    (``ValueError``: duplicated timeseries), and so is the same one again. After ``registry.unregister(collector)`` it can be
    registered anew, and it may be in several registries.

    Args:
        sources: backends, interpositions, or functions that return :class:`graphdedup.Stats`.
        max_sessions: how many session names become series, those with the most graphs; the rest is summed as
            ``session="(others)"``.

    Raises:
        GraphDedupError: prometheus-client is not installed.
        SettingsError: ``max_sessions`` is negative, or a source is none of the three.
    """

    def __init__(self, *sources: Source, max_sessions: int = MAX_SESSIONS) -> None:
        if max_sessions < 0:
            raise SettingsError(f"metrics: max_sessions={max_sessions} is negative", remedy="give 0 or more")
        self._core = _metrics_core()
        self._max_sessions = max_sessions
        self._sources: list[tuple[Callable[[], Any], str]] = []
        self._told: set[str] = set()
        for source in sources:
            self.add(source)

    def add(self, source: Source, *, device: str = "") -> None:
        """Tell of one more source; one that is there already is not told twice.

        Args:
            source: a backend, an interposition, or a function that returns :class:`graphdedup.Stats`.
            device: the label of a function's figures; backends know their own.

        Raises:
            SettingsError: it is none of the three.
        """
        if isinstance(source, (DedupBackend, Interposition)):
            self._sources.append((weakref.ref(source), device))
        elif callable(source):
            self._sources.append((lambda: source, device))
        else:
            raise SettingsError(
                f"metrics: {type(source).__name__} tells no counters",
                remedy="give a DedupBackend, an Interposition, or a function that returns Stats",
            )

    # As a collector of prometheus_client

    def describe(self) -> Iterable[Metric]:
        """The metrics without values: by their names a registry refuses duplicates."""
        return self._families({})

    def collect(self) -> Iterable[Metric]:
        """The metrics now."""
        devices: dict[str, _Device] = {}
        seen: set[int] = set()
        for alive, label in tuple(self._sources):
            source = alive()
            if source is None or id(source) in seen:
                continue
            seen.add(id(source))
            for one in source.backends if isinstance(source, Interposition) else (source,):
                try:
                    self._read(one, label, devices, seen)
                except Exception as error:
                    self._failed(error)
        return self._families(devices)

    def _read(self, source: Any, label: str, devices: dict[str, _Device], seen: set[int]) -> None:
        """Add what a backend or a function tells."""
        if not isinstance(source, DedupBackend):
            stats = source()
            if not isinstance(stats, Stats):
                raise TypeError(f"{type(stats).__name__} is no Stats")
            devices.setdefault(label or "unknown", _Device()).add(stats)
            return
        registry = source.registry
        if registry is not None:
            if id(registry) in seen:
                return
            seen.add(id(registry))
        stats, modelled = source.stats(), source.modelled_exec_bytes()
        device = devices.setdefault(label or _device_name(source), _Device())
        device.add(stats)
        if registry is not None and modelled is not None:
            device.modelled_bytes = (device.modelled_bytes or 0) + modelled
            if registry.driver.identity.kind == "cuda":
                device.measured_bytes = (device.measured_bytes or 0) + registry.counters.exec_device_bytes

    def _failed(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text not in self._told:
            self._told.add(text)
            _log.warning("metrics of one source are left out: %s", text)

    def _families(self, devices: dict[str, _Device]) -> list[Metric]:
        told: list[Metric] = []
        for counter in _COUNTERS:
            family = self._core.CounterMetricFamily(f"graphdedup_{counter.name}", counter.help, labels=["device"])
            told.append(_filled(family, {(name,): device.counts[counter.name] for name, device in devices.items()}))
        for gauge in _GAUGES:
            family = self._gauge(gauge, "device")
            told.append(_filled(family, {(name,): device.counts[gauge.name] for name, device in devices.items()}))
        for gauge in _SESSION_GAUGES:
            values: dict[tuple[str, ...], float] = {
                (name, session.name): getattr(session, gauge.field)
                for name, device in devices.items()
                for session in device.bounded_sessions(self._max_sessions)
            }
            told.append(_filled(self._gauge(gauge, "device", "session"), values))
        for gauge, attribute in ((_MODELLED, "modelled_bytes"), (_MEASURED, "measured_bytes")):
            known = {(name,): getattr(device, attribute) for name, device in devices.items()}
            told.append(
                _filled(self._gauge(gauge, "device"), {key: value for key, value in known.items() if value is not None})
            )
        return told

    def _gauge(self, gauge: _Count, *labels: str) -> Any:
        return self._core.GaugeMetricFamily(f"graphdedup_{gauge.name}", gauge.help, labels=list(labels))


def _filled(family: Any, values: dict[tuple[str, ...], float]) -> Metric:
    for labels, value in values.items():
        family.add_metric(list(labels), value)
    filled: Metric = family
    return filled


def _graphs(stats: Stats) -> int:
    """Live graphs: of all sessions; with the fold switched off there are none by name, and all are passed through."""
    return max(sum(one.graphs for one in stats.sessions), stats.passed_through)


def _device_name(backend: DedupBackend) -> str:
    """``cuda:0`` or ``simulated:0``."""
    if backend.registry is not None:
        identity = backend.registry.driver.identity
        return f"{identity.kind}:{identity.ordinal}"
    device = getattr(backend.inner, "device", None)
    return f"{device.type}:{device.index or 0}" if isinstance(device, torch.device) else f"{backend.name}:0"


def _metrics_core() -> Any:
    try:
        return importlib.import_module("prometheus_client.metrics_core")
    except ModuleNotFoundError as error:
        raise GraphDedupError(
            "graphdedup.metrics needs prometheus-client", remedy="pip install 'graphdedup[metrics]'"
        ) from error
