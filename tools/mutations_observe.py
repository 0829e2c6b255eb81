"""Breaks of what tells what the fold does: events and their observers, metrics, and the estimate of a ladder."""

from __future__ import annotations

from mutation import Mutation

__all__ = ["OBSERVE"]

BACKEND = "graphdedup/backend.py"
ESTIMATE = "graphdedup/estimate.py"
EVENTS = "graphdedup/events.py"
GRAPH_SIZE = "graphdedup/graph_size.py"
METRICS = "graphdedup/metrics.py"
NVTX = "graphdedup/nvtx.py"
REGISTRY = "graphdedup/registry.py"
TRACE = "graphdedup/trace.py"

ESTIMATE_TESTS = "tests/unit/estimate/test_estimate.py"
EVENTS_TESTS = "tests/unit/observe/test_events.py"
METRICS_TESTS = "tests/unit/metrics/test_metrics.py"
NVTX_TESTS = "tests/unit/observe/test_nvtx.py"
TRACE_TESTS = "tests/unit/observe/test_trace.py"

_ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    (
        "events",
        "a launch builds an event that nobody sees",
        REGISTRY,
        "        if not watching.observers:\n            return self._run(executable, member, verifier)\n",
        "        if not watching.observers:\n            str(member.segment)\n",
        EVENTS_TESTS,
    ),
    (
        "events",
        "a capture that cannot begin leaves its event open",
        BACKEND,
        "            if event is not None:\n                event.close(error)\n",
        "",
        EVENTS_TESTS,
    ),
    (
        "events",
        "with the fold switched off captures are told all the same",
        BACKEND,
        "events.begin(Kind.CAPTURE, self._current.segment) if self.registry is not None else None",
        "events.begin(Kind.CAPTURE, self._current.segment)",
        EVENTS_TESTS,
    ),
    (
        "events",
        "an observer that fails at the end fails the replay",
        EVENTS,
        "                observer.end(self.event, token)\n            except Exception:\n",
        "                observer.end(self.event, token)\n            except OSError:\n",
        EVENTS_TESTS,
    ),
    (
        "events",
        "an observer is told twice",
        EVENTS,
        "        if not any(one is observer for one in watching.observers):\n",
        "        if True:\n",
        EVENTS_TESTS,
    ),
    (
        "events",
        "an update does not say what the driver answered",
        REGISTRY,
        "                    event.outcome = result.verdict.value\n",
        "                    event.outcome = Verdict.SUCCESS.value\n",
        EVENTS_TESTS,
    ),
    (
        "nvtx",
        "a range is not closed",
        NVTX,
        "    def end(self, event: Event, token: Any) -> None:\n        torch.cuda.nvtx.range_end(token)\n",
        "    def end(self, event: Event, token: Any) -> None:\n        return None\n",
        NVTX_TESTS,
    ),
    (
        "nvtx",
        "it warns for every backend",
        NVTX,
        "            _state.warned = True\n",
        "",
        NVTX_TESTS,
    ),
    (
        "nvtx",
        "the switch wins over code",
        NVTX,
        "        if _state.given is None:\n",
        "        if True:\n",
        NVTX_TESTS,
    ),
    (
        "trace",
        "an update at replay is told as one of the fold",
        REGISTRY,
        'result = self._update(executable, member, "replay")',
        'result = self._update(executable, member, "fold")',
        TRACE_TESTS,
    ),
    (
        "trace",
        "times are nanoseconds",
        TRACE,
        '"dur": (row.ended_ns - row.began_ns) / 1000,',
        '"dur": float(row.ended_ns - row.began_ns),',
        TRACE_TESTS,
    ),
    (
        "trace",
        "one event more than the bound is kept",
        TRACE,
        "            if len(self._rows) >= self.max_events:\n",
        "            if len(self._rows) > self.max_events:\n",
        TRACE_TESTS,
    ),
    (
        "trace",
        "a recording that ended goes on",
        TRACE,
        "    events.remove(recorder)\n    if file is not None:\n        recorder.write(file)\n",
        "    if file is not None:\n        recorder.write(file)\n",
        TRACE_TESTS,
    ),
    (
        "trace",
        "workers write over each other's file",
        TRACE,
        "    if multiprocessing.parent_process() is None:\n",
        "    if True:\n",
        TRACE_TESTS,
    ),
    (
        "metrics",
        "a backend is kept alive by its metrics",
        METRICS,
        "self._sources.append((weakref.ref(source), device))",
        "self._sources.append((lambda: source, device))",
        METRICS_TESTS,
    ),
    (
        "metrics",
        "a registry that two backends share counts twice",
        METRICS,
        "            seen.add(id(registry))\n",
        "",
        METRICS_TESTS,
    ),
    (
        "metrics",
        "sessions without end are series without end",
        METRICS,
        "        yield from ordered[:most]\n",
        "        yield from ordered\n",
        METRICS_TESTS,
    ),
    (
        "metrics",
        "registering asks the sources",
        METRICS,
        "        return self._families({})\n",
        "        return self.collect()\n",
        METRICS_TESTS,
    ),
    (
        "metrics",
        "a scrape waits for a fold",
        BACKEND,
        "        return snapshot.stats(self.registry)\n",
        "        with self.registry._folding:\n            return snapshot.stats(self.registry)\n",
        METRICS_TESTS,
    ),
    (
        "estimate",
        "the bound has no margin over the table",
        ESTIMATE,
        "_TYPICAL_RATIO, _MOST_RATIO = 1.10, 1.24",
        "_TYPICAL_RATIO, _MOST_RATIO = 1.10, 1.15",
        ESTIMATE_TESTS,
    ),
    (
        "estimate",
        "the bound has more margin than 25 %",
        ESTIMATE,
        "_TYPICAL_RATIO, _MOST_RATIO = 1.10, 1.24",
        "_TYPICAL_RATIO, _MOST_RATIO = 1.10, 1.30",
        ESTIMATE_TESTS,
    ),
    (
        "estimate",
        "branches cost nothing",
        ESTIMATE,
        " + branch_bytes * segment.branch_count",
        "",
        ESTIMATE_TESTS,
    ),
    (
        "estimate",
        "no shape has more nodes than the captures",
        ESTIMATE,
        "GraphSize(2 * max(nodes) - min(nodes), ",
        "GraphSize(max(nodes), ",
        ESTIMATE_TESTS,
    ),
    (
        "estimate",
        "a ladder has no further variants",
        ESTIMATE,
        "min(count, 1 + ceil(log2(span)))",
        "1",
        ESTIMATE_TESTS,
    ),
    (
        "estimate",
        "tiers with functions in the key fold as the default one",
        ESTIMATE,
        "    return policy.tier is not Tier.STRUCTURE or not carried\n",
        "    return not carried\n",
        ESTIMATE_TESTS,
    ),
    (
        "estimate",
        "graphs that cannot fold are forgotten in the bound",
        ESTIMATE,
        "_steps(most + count * sum(positions[index].most for index in alone))",
        "_steps(most)",
        ESTIMATE_TESTS,
    ),
    (
        "estimate",
        "edges that follow from others count",
        GRAPH_SIZE,
        "        needed[node] = [one for one in some if not any(before[other] >> one & 1 for other in some if other != one)]\n",
        "        needed[node] = some\n",
        ESTIMATE_TESTS,
    ),
    (
        "estimate",
        "a graph that is passed through counts as shared",
        GRAPH_SIZE,
        "    shared = member.group is not None and member.group.bucket is not None\n",
        "    shared = True\n",
        ESTIMATE_TESTS,
    ),
)

OBSERVE: tuple[Mutation, ...] = tuple(Mutation(*row[:5], (row[5],)) for row in _ROWS)
""""events", "nvtx", "trace", "metrics" and "estimate" are no rules with a number."""
