"""The breaks that ``mutate.py`` tries: for each rule, code that no longer keeps it and the tests that must notice.

Each ``old`` text occurs exactly once in its file; when the code moves on, the tool says so and the row is to be mended.
A break is written as somebody would write it by mistake: it imports, and most of the program still works.

Rules are those of docs/invariants.md; "SIM-update" and "SIM-memory" are what the simulated device claims to do as a GPU.
Rows that a CPU cannot tell apart (error modes inside a driver, device addresses held by a raw graph) are not here.
"""

from __future__ import annotations

from mutation import Mutation
from mutations_detail import FOLD_IN_DETAIL
from mutations_fold import FOLD_IN_FULL
from mutations_forward import FORWARD
from mutations_interpose import INTERPOSE
from mutations_memory import POOLS
from mutations_observe import OBSERVE
from mutations_questions import QUESTIONS
from mutations_report import RENDERED
from mutations_seam import SEAM
from mutations_service import SERVICE

__all__ = ["MUTATIONS", "Mutation"]


FAILURE = "tests/conformance/seam/test_failure.py"
FOLD = "tests/conformance/fold/test_fold.py"
REGISTRY = "tests/unit/fold/test_registry.py"
RECORDS = "tests/unit/fold/test_registry_records.py"
REGISTRY_LIFETIME = "tests/unit/fold/test_registry_lifetime.py"
CONCURRENCY = "tests/unit/fold/test_registry_concurrency.py"
RANDOM = "tests/conformance/fold/test_random.py"
SIGNATURE = "tests/unit/fold/test_signature.py"
SETTLE = "tests/unit/fold/test_cuda_settle.py"
CUDA_WALK = "tests/unit/fold/test_cuda_walk.py"
CLUSTERS = "tests/unit/fold/test_clusters.py"
CAPABILITIES = "tests/unit/probe/test_capabilities.py"
PROFILES = "tests/unit/probe/test_profiles.py"
CARRIED = "tests/conformance/update/test_carried.py"
CASES = "tests/conformance/update/test_cases.py"
FUZZ = "tests/conformance/update/test_fuzz.py"
PARTS = "tests/unit/fold/test_small_parts.py"
UPDATE = "tests/unit/simulated/test_simulated_update.py"
MEMORY = "tests/unit/simulated/test_simulated_memory.py"
SIM_LIFETIME = "tests/unit/simulated/test_simulated_lifetime.py"
REPORT = "tests/unit/report/test_report_model.py"
TEXT = "tests/unit/report/test_report_text.py"

FOLDING: tuple[Mutation, ...] = (
    Mutation(
        "D3",
        "edges are not in the record",
        "graphdedup/signature.py",
        "_field(bytes(nodes)) + _field(edges)",
        "_field(bytes(nodes))",
        (SIGNATURE,),
    ),
    Mutation(
        "D3",
        "edges are sorted",
        "graphdedup/signature.py",
        "for edge in record.edges)",
        "for edge in sorted(record.edges))",
        (SIGNATURE,),
    ),
    Mutation(
        "D3",
        "nodes are sorted",
        "graphdedup/signature.py",
        "    for node in record.nodes:\n        packed",
        "    for node in sorted(record.nodes, key=lambda node: node.kind):\n        packed",
        (SIGNATURE,),
    ),
    Mutation(
        "D3",
        "the kind of a node is not in the record",
        "graphdedup/signature.py",
        "parts = [_text(node.kind), ",
        'parts = [_text(""), ',
        (SIGNATURE,),
    ),
    Mutation(
        "D3",
        "what no update may change about a node is not in the record",
        "graphdedup/signature.py",
        "_numbers(*node.fixed), ",
        "_numbers(), ",
        (SIGNATURE,),
    ),
    Mutation(
        "D3",
        "the context is not in the record",
        "graphdedup/signature.py",
        '        + _text(f"{identity.context:x}")\n',
        "",
        (SIGNATURE,),
    ),
    Mutation(
        "D3",
        "the device is not in the record",
        "graphdedup/signature.py",
        "_numbers(_VERSION, identity.ordinal, major,",
        "_numbers(_VERSION, major,",
        (SIGNATURE,),
    ),
    Mutation(
        "D3",
        "the instantiate flags are not in the record",
        "graphdedup/signature.py",
        "major, minor, instantiate_flags, *held)",
        "major, minor, *held)",
        (SIGNATURE,),
    ),
    Mutation(
        "D3",
        "what is inside child graphs is not in the record",
        "graphdedup/signature.py",
        'parts.append(_graph(node.child, held._replace(clusters=True)) if node.child is not None else b"")',
        'parts.append(b"")',
        (SIGNATURE, REGISTRY),
    ),
    Mutation(
        "D3",
        "clusters inside child graphs are not in the record, where nobody sets unit clusters",
        "graphdedup/signature.py",
        "_graph(node.child, held._replace(clusters=True))",
        "_graph(node.child, held)",
        (RECORDS,),
    ),
    Mutation(
        "D3",
        "fields are not length-prefixed",
        "graphdedup/signature.py",
        '    return struct.pack("<I", len(data)) + data\n',
        "    return data\n",
        (SIGNATURE,),
    ),
    Mutation(
        "D3",
        "what cannot be read does not forbid sharing",
        "graphdedup/signature.py",
        "        if node.unreadable:\n",
        "        if False:\n",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D3",
        "what cannot be read inside a child graph does not forbid sharing",
        "graphdedup/signature.py",
        "        if node.child is not None and (reason := forbids_sharing(node.child)):\n",
        '        if reason := "":\n',
        (RECORDS,),
    ),
    Mutation(
        "D3",
        "what was not measured is taken as carried",
        "graphdedup/capabilities.py",
        "        return self._by_question.get((topic, way), Outcome.UNKNOWN)\n",
        "        return self._by_question.get((topic, way), Outcome.CARRIED)\n",
        (CAPABILITIES,),
    ),
    Mutation(
        "D3",
        "topics that were not asked are taken as carried",
        "graphdedup/capabilities.py",
        "if row.topic == topic} or {Outcome.UNKNOWN}",
        "if row.topic == topic} or {Outcome.CARRIED}",
        (CAPABILITIES, SIGNATURE),
    ),
    Mutation(
        "D3",
        "a stale function is taken as carried",
        "graphdedup/capabilities.py",
        "        return seen[0] == {Outcome.CARRIED} and all(outcomes <= _SAFE for outcomes in seen)\n",
        "        return True\n",
        (CAPABILITIES, FUZZ),
    ),
    Mutation(
        "D3",
        "a cluster dimension is taken as carried without another function",
        "graphdedup/capabilities.py",
        '        return all(self.outcome("cluster", way) is Outcome.CARRIED for way in _ALONE)\n',
        "        return True\n",
        (CAPABILITIES, REGISTRY),
    ),
    Mutation(
        "D3",
        "an attribute that cannot be seen to be carried is not held",
        "graphdedup/capabilities.py",
        "            harmless = {Outcome.CARRIED} | ({Outcome.UNOBSERVED} if name in _VISIBLE else set())\n",
        "            harmless = {Outcome.CARRIED, Outcome.UNOBSERVED}\n",
        (CAPABILITIES,),
    ),
    Mutation(
        "D3",
        "a hidden attribute that an update may drop does not forbid sharing",
        "graphdedup/capabilities.py",
        "        held = list(self.hidden)\n",
        "        held: list[str] = []\n",
        (CAPABILITIES, REGISTRY),
    ),
    Mutation(
        "D3",
        "a sibling's function with another cluster dimension is not noticed",
        "graphdedup/registry.py",
        "        node = group.clusters.conflict(member.uses)\n",
        "        node = None\n",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D3",
        "what a new member uses is not taken into the group",
        "graphdedup/registry.py",
        "            group.clusters.add(member.uses)\n",
        "",
        (REGISTRY, CASES),
    ),
    Mutation(
        "D3",
        "only the founder's functions are compared",
        "graphdedup/clusters.py",
        "self._more.get((node, function), cluster)",
        "cluster",
        (CLUSTERS, REGISTRY),
    ),
    Mutation(
        "D3",
        "the local memory of a function is not read (simulated driver)",
        "graphdedup/driver/simulated.py",
        "node.context, node.local_bytes]",
        "node.context]",
        (REGISTRY, CASES),
    ),
    Mutation(
        "D1",
        "the kernel after an update does not wait for the last launch (CUDA)",
        "graphdedup/driver/cuda_settle.py",
        '        self._check(self._wait(stream, self._events[executable], 0), "cuStreamWaitEvent")\n',
        "",
        (SETTLE,),
    ),
    Mutation(
        "D1",
        "an update asks for no kernel (CUDA)",
        "graphdedup/driver/cuda_settle.py",
        "            self._updated.add(executable)\n",
        "            pass\n",
        (SETTLE,),
    ),
    Mutation(
        "D1",
        "no kernel runs between an update and the launch (simulated driver)",
        "graphdedup/driver/simulated.py",
        "                self._device.run_kernel()\n",
        "                pass\n",
        (CARRIED, FUZZ),
    ),
    Mutation(
        "D3",
        "the cluster dimension that a function was compiled for is not read (simulated driver)",
        "graphdedup/driver/simulated.py",
        "node.function_id, node.clusters, tuple(unreadable)",
        "node.function_id, node.cluster, tuple(unreadable)",
        (CASES, FUZZ),
    ),
    Mutation(
        "D3",
        "edges are listed as the graph has them, not by the order of dependencies (simulated driver)",
        "graphdedup/driver/simulated.py",
        "edges = tuple(EdgeRecord(source, target, data) for target, sources in incoming for source, data in sources)",
        "edges = tuple(sorted(EdgeRecord(source, target, data) for target, sources in incoming for source, data in sources))",
        (CASES,),
    ),
    Mutation(
        "D3",
        "attributes that have to be held are not read (simulated driver)",
        "graphdedup/driver/simulated.py",
        "                fixed += [attribute.number, *(value if isinstance(value, tuple) else (value,))]\n",
        "                pass\n",
        (PROFILES, FUZZ),
    ),
    Mutation(
        "D3",
        "edges are taken as the driver lists them, by source (CUDA)",
        "graphdedup/driver/cuda_walk.py",
        "                sources = self._calls.dependencies(target)\n",
        "                pass\n",
        (CUDA_WALK,),
    ),
    Mutation(
        "D3",
        "the cluster dimension that a function was compiled for is not read (CUDA)",
        "graphdedup/driver/cuda_walk.py",
        "cluster = kernel.cluster if any(kernel.cluster) else compiled.cluster",
        "cluster = kernel.cluster",
        (CUDA_WALK,),
    ),
    Mutation(
        "D3",
        "the local memory of a function is not read (CUDA)",
        "graphdedup/driver/cuda_walk.py",
        "fixed = (kernel.cooperative, compiled.local_bytes, *sizes",
        "fixed = (kernel.cooperative, *sizes",
        (CUDA_WALK,),
    ),
    Mutation(
        "D3",
        "local memory that cannot be read is taken as none (CUDA)",
        "graphdedup/driver/cuda_walk.py",
        'unreadable = () if told[3][0] == 0 else ("local memory",)',
        "unreadable = ()",
        (CUDA_WALK,),
    ),
    Mutation(
        "D3",
        "attributes that are asked for are read and not held (CUDA)",
        "graphdedup/driver/cuda_walk.py",
        "*_words(kernel.more), *_words(rare))",
        "*_words(rare))",
        (CUDA_WALK,),
    ),
    Mutation(
        "D3",
        "unit clusters are not set where a sibling has clusters",
        "graphdedup/registry.py",
        "            self.driver.set_unit_clusters(member.raw, nodes)\n",
        "",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D3",
        "a sibling's clusters are not remembered for members that joined before it",
        "graphdedup/registry.py",
        "            executable.clustered |= member.clustered\n            executable.updates += 1\n",
        "            executable.updates += 1\n",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D3",
        "clusters that a failed update may have left in the executable are not remembered",
        "graphdedup/registry.py",
        "            executable.clustered |= member.clustered\n            return UpdateResult(Verdict.ERROR",
        "            return UpdateResult(Verdict.ERROR",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D3",
        "cooperative launch and context of a kernel are not read (simulated driver)",
        "graphdedup/driver/simulated.py",
        'fixed: list[int] = [int(node.attributes["cooperative"]), node.context, node.local_bytes]',
        "fixed: list[int] = [node.local_bytes]",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D3",
        "the direction of a copy is not read (simulated driver)",
        "graphdedup/driver/simulated.py",
        '(_DIRECTIONS[params["direction"]], node.context, *extent)',
        "(node.context, *extent)",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D3",
        "the extent of a memset in rows is not read (simulated driver)",
        "graphdedup/driver/simulated.py",
        'if params["height"] > 1:',
        "if False:",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D5",
        "after a refusal the executable counts as changed",
        "graphdedup/registry.py",
        "        if result.accepted:\n            executable.aged |= executable.reflects != member.id\n",
        "        executable.reflects = member.id\n        if result.accepted:\n",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D6",
        "an un-folded member is not counted",
        "graphdedup/registry.py",
        "        self.counters.unfolded += 1\n",
        "",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D6",
        "a driver that fails an update ends the replay",
        "graphdedup/registry.py",
        "        except DriverError as error:\n            executable.reflects = None",
        "        except ZeroDivisionError as error:\n            executable.reflects = None",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D6",
        "after a failed update the executable counts as unchanged",
        "graphdedup/registry.py",
        "            executable.reflects = None  # nothing is known of it now: the next launch updates it first\n",
        "",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D7",
        "every replay updates",
        "graphdedup/registry.py",
        "        if executable.reflects != member.id:\n            result",
        "        if True:\n            result",
        (FOLD,),
    ),
    Mutation(
        "D8",
        "the executable is taken to reflect whoever is offered it: its last graph is not remembered",
        "graphdedup/registry.py",
        "        if executable.reflects != member.id:\n            result",
        "        if executable.reflects is None:\n            result",
        (FOLD,),
    ),
    Mutation(
        "D9",
        "the first member to go frees the executable",
        "graphdedup/registry.py",
        "            if group.members or group not in self._groups:\n",
        "            if group not in self._groups:\n",
        (FOLD,),
    ),
    Mutation(
        "D9",
        "a member that is released twice is not refused",
        "graphdedup/registry.py",
        "            if self.members.pop(member.id, None) is None:\n",
        "            if self.members.pop(member.id, None) is NotImplemented:\n",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D9",
        "a group without members stays in the tables",
        "graphdedup/registry.py",
        "                self._buckets[group.bucket].remove(group)\n"
        "                if not self._buckets[group.bucket]:\n"
        "                    del self._buckets[group.bucket]\n",
        "                pass\n",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D11",
        "graphs with device-updatable kernels are folded",
        "graphdedup/driver/simulated.py",
        '            elif node.attributes.get("device_updatable"):\n',
        "            elif False:\n",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D11",
        "child graphs are not looked into",
        "graphdedup/driver/simulated.py",
        "                pass_through = child.pass_through\n",
        "                pass\n",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D11",
        "the registry does not ask whether a graph is to be passed through",
        "graphdedup/registry.py",
        "            if record.pass_through:\n",
        "            if False:\n",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D12",
        "a graph that draws is folded as one that does not",
        "graphdedup/registry.py",
        "        if record is not None and draws is not Draws.NO and (problem",
        "        if record is not None and draws is Draws.UNKNOWN and (problem",
        (RANDOM,),
    ),
    Mutation(
        "D12",
        "a graph that may draw is folded as one that does not",
        "graphdedup/registry.py",
        "        if record is not None and draws is not Draws.NO and (problem",
        "        if record is not None and draws is Draws.YES and (problem",
        (RANDOM,),
    ),
    Mutation(
        "D12",
        "a graph that may draw is folded with nobody there to advance its numbers",
        "graphdedup/registry.py",
        "            if draws is not Draws.NO and handle is None:\n",
        "            if False:\n",
        (REGISTRY,),
    ),
    Mutation(
        "D12",
        "the driver does not say that a graph draws (simulated driver)",
        "graphdedup/driver/simulated.py",
        "Draws.YES if raw.draws else Draws.NO",
        "Draws.NO",
        (RANDOM,),
    ),
    Mutation(
        "D13",
        "the error that a refusal leaves behind is not consumed (simulated driver)",
        "graphdedup/driver/simulated.py",
        "            self._device.get_last_error()\n",
        "            pass\n",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
    Mutation(
        "D15",
        "the source graph is destroyed before the executable",
        "graphdedup/backend.py",
        "        try:\n"
        "            if self.registry is None or handle.member is None:\n"
        '                self._plain["live"] -= 1\n'
        "            else:\n"
        "                self.registry.release(handle.member)\n"
        "        finally:\n"
        "            self.inner.destroy_graph(handle.inner)\n",
        "        self.inner.destroy_graph(handle.inner)\n"
        "        if self.registry is None or handle.member is None:\n"
        '            self._plain["live"] -= 1\n'
        "        else:\n"
        "            self.registry.release(handle.member)\n",
        (REGISTRY, RECORDS, REGISTRY_LIFETIME, CONCURRENCY),
    ),
)

REPORTS: tuple[Mutation, ...] = (
    Mutation(
        "M1",
        "a segment does not keep its pool alive",
        "seam/simulated/backend.py",
        "        self._pool: SimulatedPool | None = pool\n",
        '        self._pool: SimulatedPool | None = __import__("weakref").proxy(pool)\n',
        (SIM_LIFETIME,),
    ),
    Mutation(
        "M1",
        "a stream that is not the pool's own is taken in silence",
        "seam/capture.py",
        "    if pool is not None and stream is not None and stream != pool.stream:\n",
        "    if False:\n",
        (FAILURE,),
    ),
    Mutation(
        "M3",
        "figures of different sources are added",
        "graphdedup/report/base.py",
        "        if self.source is not other.source:\n",
        "        if False:\n",
        (REPORT,),
    ),
    Mutation(
        "M3",
        "the text does not say where a figure is from",
        "graphdedup/report/base.py",
        '            Source.MODELLED: "modelled",\n        }[self]',
        '            Source.MODELLED: "modelled",\n        }[self] and "bytes"',
        (TEXT,),
    ),
    Mutation(
        "M4",
        "what torch reserved in a span counts as bytes of executables",
        "graphdedup/footprint.py",
        "return SpanReading(used_growth - reserved_growth, used_growth, reserved_growth, rss)",
        "return SpanReading(used_growth, used_growth, reserved_growth, rss)",
        (PARTS,),
    ),
    Mutation(
        "M5",
        "the text says what holds where it is rendered, not what the snapshot holds",
        "graphdedup/report/text.py",
        "driver {report.driver_version}, torch {report.torch_version}",
        "driver {report.driver_version}, torch {__import__('torch').__version__}",
        (TEXT,),
    ),
    Mutation(
        "M5",
        "a report can be changed after the snapshot",
        "graphdedup/report/base.py",
        'ConfigDict(frozen=True, extra="forbid")',
        'ConfigDict(extra="forbid")',
        (REPORT,),
    ),
)

SIMULATED: tuple[Mutation, ...] = (
    Mutation(
        "SIM-update",
        "nodes are paired by creation order",
        "seam/simulated/update.py",
        "    pairs = [-1] * len(held.order)\n",
        "    return list(range(len(held.order)))\n    pairs = [-1] * len(held.order)\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "edge data is not compared",
        "seam/simulated/update.py",
        "            if old_data != new_data:\n",
        "            if False:\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "one node stands for two of the executable",
        "seam/simulated/update.py",
        "        if pairs[old] != -1 or taken[new] != -1:\n",
        "        if False:\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "a refused update leaves the executable changed",
        "seam/simulated/device.py",
        "            self.refused_update_count += 1\n",
        "            executable.swap(type(executable.program).of(graph), graph)\n            self.refused_update_count += 1\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "a missing cluster dimension is carried",
        "seam/simulated/update.py",
        'return profile.carries_unset_cluster if new.clusters == (0, 0, 0) else "carried"',
        'return "carried"',
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "a stale cluster dimension is carried",
        "seam/simulated/update.py",
        '            keep |= {"cluster": old.cluster, "required_cluster": old.required_cluster}\n',
        "            pass\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "another extent of a memset in rows is carried",
        "seam/simulated/update.py",
        "        if extent != wanted and (old.params.height > 1 or new.params.height > 1):\n",
        "        if False:\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "another direction of a copy is carried",
        "seam/simulated/update.py",
        "        if old.params.direction != new.params.direction:\n",
        "        if False:\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "a kernel of another context is carried",
        "seam/simulated/update.py",
        "    if old.context != new.context:\n",
        "    if False:\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "memory and conditional nodes are carried",
        "seam/simulated/update.py",
        '    if old.kind in ("mem_alloc", "mem_free", "conditional"):\n',
        "    if False:\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "cooperative launch is carried",
        "seam/simulated/update.py",
        '    if bool(old.attributes["cooperative"]) != bool(new.attributes["cooperative"]):\n',
        "    if False:\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "a priority counts without its flag",
        "seam/simulated/update.py",
        '    if flags & USE_NODE_PRIORITY and old.attributes["priority"]',
        '    if old.attributes["priority"]',
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "child graphs are not updated",
        "seam/simulated/update.py",
        "                children[index] = inner\n",
        "                children[index] = held.children[index]\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "a refusal leaves no error behind on a driver where it is sticky",
        "seam/simulated/device.py",
        "            if self.profile.sticky_last_error:\n",
        "            if False:\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-memory",
        "freed blocks are never used again",
        "seam/simulated/memory.py",
        "            start = state.free.setdefault(stream, _FreeRanges()).take(taken_bytes)\n",
        "            start = state.free.setdefault(stream, _FreeRanges()) and None\n",
        (MEMORY,),
    ),
    Mutation(
        "SIM-memory",
        "fresh memory is not poisoned",
        "seam/simulated/memory.py",
        "        if self.poison:\n            ctypes.memset(self.base + start, POISON, taken_bytes)\n        owner",
        "        owner",
        (MEMORY,),
    ),
    Mutation(
        "SIM-memory",
        "freed memory is not poisoned",
        "seam/simulated/memory.py",
        "        if self.poison and number not in self._viewed:\n"
        "            ctypes.memset(self.base + start, POISON, taken_bytes)\n        self._returned",
        "        self._returned",
        (MEMORY,),
    ),
    Mutation(
        "SIM-memory",
        "poison is off",
        "seam/simulated/memory.py",
        "        self.poison = poison\n",
        "        self.poison = False\n",
        (MEMORY,),
    ),
    Mutation(
        "SIM-memory",
        "a block that one stream freed is taken by another",
        "seam/simulated/memory.py",
        "        start, taken_bytes, number = self._take(wanted_bytes, pool, stream)\n",
        "        stream = 0\n        start, taken_bytes, number = self._take(wanted_bytes, pool, stream)\n",
        (MEMORY,),
    ),
    Mutation(
        "SIM-memory",
        "a block is freed while a view of it is alive",
        "seam/simulated/memory.py",
        "weakref.finalize(piece, self._give_back,",
        "weakref.finalize(owner, self._give_back,",
        (MEMORY,),
    ),
    Mutation(
        "SIM-update",
        "an uploaded executable takes a cluster dimension without another function",
        "seam/simulated/update.py",
        "    if uploaded and old.function_id == new.function_id and",
        "    if False and",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "clusters do not stay frozen after a bare launch",
        "seam/simulated/program.py",
        "        self.shown = program.with_clusters_of(self.shown) if frozen else program\n",
        "        self.shown = program\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "clusters stay frozen for ever",
        "seam/simulated/program.py",
        "        if self.launched_at != self.device.kernel_count:\n",
        "        if self.launched_at is None:\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "an update makes room for local memory",
        "seam/simulated/device.py",
        "            room = max(self.local_bytes, executable.local_bytes)\n",
        "            room = 1 << 30\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "a disabled node runs",
        "seam/simulated/program.py",
        "                if index not in left_out:\n",
        "                if True:\n",
        (UPDATE,),
    ),
    Mutation(
        "SIM-update",
        "other launch attributes are always carried",
        "seam/simulated/update.py",
        '        carries = profile.carries_attributes.get(name, "carried")\n',
        '        carries = "carried"\n',
        (UPDATE,),
    ),
)

MUTATIONS: tuple[Mutation, ...] = (
    SEAM
    + POOLS
    + INTERPOSE
    + FORWARD
    + FOLDING
    + FOLD_IN_FULL
    + FOLD_IN_DETAIL
    + SERVICE
    + OBSERVE
    + QUESTIONS
    + REPORTS
    + RENDERED
    + SIMULATED
)
"""Every break, in the order of the rules."""
