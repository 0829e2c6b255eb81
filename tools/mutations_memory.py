"""Memory of the seam: what crosses a break and who holds it, and one graph of a pool at a time."""

from __future__ import annotations

from mutation import Mutation

__all__ = ["POOLS"]

BRIDGES = "seam/memory.py"
BRIDGES_TESTS = "tests/conformance/seam/test_memory.py"
TURNS = "seam/turns.py"
TURNS_TESTS = "tests/conformance/seam/test_turns.py"
LEDGER = "seam/cuda_memory.py"
LEDGER_TESTS = "tests/unit/seam/test_cuda_pool.py"

_ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    (
        "S5",
        "a break runs on memory that is not there",
        "seam/scope.py",
        "            self.pool.check_split()\n",
        "",
        BRIDGES_TESTS,
    ),
    (
        "M1",
        "anything is a handle of a pool",
        LEDGER,
        "len(found) == 2 and all(type(number) is int for number in found) and any(found):\n",
        "found:\n",
        LEDGER_TESTS,
    ),
    (
        "M1",
        "the simulated device takes any handle of a pool",
        "seam/simulated/backend.py",
        "        if handle is not None:\n",
        "        if False:\n",
        BRIDGES_TESTS,
    ),
    (
        "M1",
        "nothing is marked for the next stream to wait for",
        TURNS,
        "            self._stream, self._mark = pool.current_stream(), pool.mark(self._mark)\n",
        "            self._stream, self._mark = pool.current_stream(), None\n",
        TURNS_TESTS,
    ),
    (
        "M2",
        "the result of a break is not taken from the pool",
        "seam/scope.py",
        "empty = self._bridges.empty_strided if lends else torch.empty_strided",
        "empty = torch.empty_strided",
        BRIDGES_TESTS,
    ),
    (
        "M2",
        "the arguments of a break are held",
        BRIDGES,
        "        crossing_args = tuple(self._lend(part, lent) for part in args)\n",
        "        crossing_args = tuple(args)\n",
        BRIDGES_TESTS,
    ),
    (
        "M2",
        "arguments in tuples are held",
        BRIDGES,
        '        if type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_make")):\n',
        "        if False:\n",
        BRIDGES_TESTS,
    ),
    (
        "M2",
        "arguments that are passed by name are held",
        BRIDGES,
        "{name: self._lend(part, lent) for name, part in kwargs.items()}",
        "dict(kwargs)",
        BRIDGES_TESTS,
    ),
    (
        "M2",
        "the destination of a result is held",
        BRIDGES,
        "map_leaves(given, lambda part: self._lend(part, lent)) if lend_result else given",
        "given",
        BRIDGES_TESTS,
    ),
    (
        "M2",
        "the slot of a break holds its destination",
        "seam/scope.py",
        "                slot.destination = kept.destination\n",
        "",
        BRIDGES_TESTS,
    ),
    (
        "S5",
        "what another graph of the pool made is lent",
        "seam/simulated/ledger.py",
        " and taken[1] > self._before",
        "",
        BRIDGES_TESTS,
    ),
    (
        "S5",
        "what another pool gave out is lent",
        "seam/simulated/ledger.py",
        " and taken[0] == self._pool",
        "",
        BRIDGES_TESTS,
    ),
    (
        "S5",
        "a list is copied with views in it",
        BRIDGES,
        "        if type(value) is tuple or (",
        "        if type(value) in (tuple, list) or (",
        BRIDGES_TESTS,
    ),
    (
        "S5",
        "a tensor that requires a gradient is lent",
        BRIDGES,
        "            and not tensor.requires_grad\n",
        "",
        BRIDGES_TESTS,
    ),
    (
        "S5",
        "the destination of a slot that is shared is lent",
        "seam/scope.py",
        "lends = written_back and point.slot is None  #",
        "lends = written_back  #",
        "tests/conformance/seam/test_slot.py",
    ),
    (
        "M2",
        "what is held is not counted",
        BRIDGES,
        "if own or self._made_here(tensor):",
        "if own:",
        BRIDGES_TESTS,
    ),
    (
        "M2",
        "a result that is held is not counted",
        BRIDGES,
        "if own or self._made_here(tensor):",
        "if self._made_here(tensor):",
        BRIDGES_TESTS,
    ),
    (
        "M2",
        "the caller's own buffers are counted",
        BRIDGES,
        "own = own_beside is not None and storage.data_ptr() not in own_beside",
        "own = True",
        BRIDGES_TESTS,
    ),
    (
        "M2",
        "what is held in one place and lent in another counts as shared",
        BRIDGES,
        "sum(size for address, size in lent.sizes.items() if address not in held)",
        "sum(lent.sizes.values())",
        BRIDGES_TESTS,
    ),
    (
        "M2",
        "what is free is not poisoned before a replay",
        "seam/graph.py",
        "            if self.poisons:\n",
        "            if False:\n",
        BRIDGES_TESTS,
    ),
    (
        "M2",
        "every check poisons",
        "seam/capture.py",
        "graph.poisons = check is CrossingCheck.POISON",
        "graph.poisons = True",
        BRIDGES_TESTS,
    ),
    (
        "SIM-memory",
        "what somebody has a view of is poisoned when it is freed",
        "seam/simulated/memory.py",
        "        if self.poison and number not in self._viewed:\n",
        "        if self.poison:\n",
        BRIDGES_TESTS,
    ),
    (
        "M1",
        "a capture takes no turn",
        "seam/capture.py",
        '            turn.take("captured", graph.label, CaptureError)\n            contexts.callback(turn.give_back, pool)\n',
        "",
        TURNS_TESTS,
    ),
    (
        "M1",
        "a failed capture keeps the turn",
        "seam/capture.py",
        "            contexts.callback(turn.give_back, pool)\n",
        "",
        TURNS_TESTS,
    ),
    (
        "M1",
        "a turn is waited for",
        TURNS,
        "self._lock.acquire(blocking=False)",
        "self._lock.acquire(timeout=20)",
        TURNS_TESTS,
    ),
    (
        "M1",
        "a failed replay keeps the turn",
        "seam/graph.py",
        "        finally:\n            turn.give_back(pool)\n        self.replay_count += 1\n",
        "        except KeyError:\n            raise\n        turn.give_back(pool)\n        self.replay_count += 1\n",
        TURNS_TESTS,
    ),
    (
        "M1",
        "a replay does not follow the stream before",
        "seam/graph.py",
        "            turn.follow(pool)\n",
        "",
        TURNS_TESTS,
    ),
    (
        "M1",
        "a capture does not follow the stream before",
        "seam/capture.py",
        "            turn.follow(pool)\n",
        "",
        TURNS_TESTS,
    ),
    (
        "M1",
        "every replay waits for the one before",
        TURNS,
        "        if self._mark is not None and self._stream != pool.current_stream():\n",
        "        if self._mark is not None:\n",
        TURNS_TESTS,
    ),
    (
        "S5",
        "CUDA: a block that was taken before counts as made here",
        LEDGER,
        "        if at >= 0 and self._before[at][1] > start:\n",
        "        if False:\n",
        LEDGER_TESTS,
    ),
    (
        "S5",
        "CUDA: a block that reaches into one that was taken before counts as made here",
        LEDGER,
        "return at + 1 >= len(self._before) or self._before[at + 1][0] >= end",
        "return True",
        LEDGER_TESTS,
    ),
    (
        "S5",
        "CUDA: memory of other pools counts as the pool's",
        LEDGER,
        "        if not held:\n            return False\n",
        "",
        LEDGER_TESTS,
    ),
    (
        "M2",
        "CUDA: a segment that the pool got later is not found",
        LEDGER,
        "        if held is None and start not in self._unknown:\n",
        "        if False:\n",
        LEDGER_TESTS,
    ),
    (
        "M2",
        "CUDA: an address that nobody knows is looked up every time",
        LEDGER,
        "                self._unknown.add(start)\n",
        "                pass\n",
        LEDGER_TESTS,
    ),
    (
        "M2",
        "CUDA: a block that is in use counts as free",
        LEDGER,
        '        if block["state"] == _INACTIVE\n    ]',
        "    ]",
        LEDGER_TESTS,
    ),
    (
        "S5",
        "CUDA: what was free when the ledger was opened counts as taken",
        LEDGER,
        '            if block["state"] != _INACTIVE\n        )',
        "        )",
        LEDGER_TESTS,
    ),
)

PLAN = "seam/plan.py"
PLAN_TESTS = "tests/conformance/seam/test_plan.py"

_PLAN_ROWS: tuple[tuple[str, str, str, str], ...] = (
    (
        "a figure is that of the larger sample",
        PLAN,
        "return max(0, round(first + (second - first) * (shape - low.shape) / (high.shape - low.shape)))",
        "return second",
    ),
    (
        "a falling line goes below nothing",
        PLAN,
        "return max(0, round(first",
        "return max(-(1 << 60), round(first",
    ),
    (
        "outputs that are not shared are left out of the pool",
        PLAN,
        "rest = 0 if self.shares_outputs else sum",
        "rest = 0 if True else sum",
    ),
    (
        "phases that share a pool are added up",
        PLAN,
        'PlanRow("pool", max((phase.pool_bytes() for phase in known), default=0))',
        'PlanRow("pool", sum(phase.pool_bytes() for phase in known))',
    ),
    (
        "what is held is told for the largest shape only",
        PLAN,
        'sum(phase.at("held_bytes", shape) for phase in known for shape in phase.ladder)',
        'sum(phase.at("held_bytes", phase.ladder[-1]) for phase in known)',
    ),
    (
        "executables are told of the samples only",
        PLAN,
        "return first + (second - first) * (shapes - 1)",
        "return second",
    ),
    (
        "the samples take the pool of the forward",
        "seam/forward.py",
        "pool = self.backend.new_pool(self._own_pool().stream)",
        "pool = self._own_pool()",
    ),
    (
        "the samples size the buffers of the ladder",
        "seam/forward.py",
        "                outputs = OutputBuffers()\n                pool",
        "                outputs = phase.outputs\n                pool",
    ),
    (
        "a sample may be any size",
        "seam/forward.py",
        "if len(shapes) != 2 or not set(shapes) <= set(self._of(name).ladder):",
        "if len(shapes) != 2:",
    ),
    (
        "planned executables are not in whole steps",
        "seam/plan.py",
        "        rows.append(PlanRow(_EXECS, _whole_steps(modelled)))\n",
        "        rows.append(PlanRow(_EXECS, modelled))\n",
    ),
    (
        "measured executables are not in whole steps",
        "seam/plan.py",
        "        told = {**measured, _EXECS: _whole_steps(measured.get(_EXECS))}\n",
        "        told = dict(measured)\n",
    ),
    (
        "the report says nothing of what was measured",
        "seam/forward.py",
        '            plan = plan.measured(measured | {"execs": self._exec_bytes()})\n',
        "            pass\n",
    ),
)

BAKED = "seam/baked.py"
BAKED_TESTS = "tests/conformance/seam/test_baked.py"

_BAKED_ROWS: tuple[tuple[str, str, str, str], ...] = (
    (
        "arguments by name are not listed",
        "seam/scope.py",
        "        for key, value in kwargs.items():\n            found",
        "        for key, value in ():\n            found",
    ),
    ("numbers of a result are not listed", "seam/scope.py", "for value in numbers_in(given)]", "for value in ()]"),
    ("numbers in tuples are not listed", BAKED, "    elif isinstance(value, tuple):\n", "    elif False:\n"),
    ("numbers in lists are listed as baked", BAKED, "isinstance(value, tuple)", "isinstance(value, (tuple, list))"),
    (
        "a value of an unknown type fails the capture",
        BAKED,
        "    with suppress(BreakError):  #",
        "    with suppress(KeyError):  #",
    ),
    ("host memory is not held", "seam/scope.py", "                self.graph._hold(source)\n", "                pass\n"),
    ("host memory is held for ever", "seam/graph.py", "            self._host_memory.clear()\n", ""),
    ("host memory that nobody keeps counts as kept", "seam/scope.py", "kept=source is not None", "kept=True"),
    (
        "a copy to the host counts as one from it",
        "seam/scope.py",
        "BakedKind.COPY_FROM_HOST if copy.to_device else BakedKind.COPY_TO_HOST",
        "BakedKind.COPY_FROM_HOST",
    ),
    (
        "a tensor over a part of the memory counts as its keeper",
        BAKED,
        " and copy.address + copy.size_bytes <= start + storage.nbytes()",
        "",
    ),
    ("every graph is read for copies", "graphdedup/backend.py", " or not member.host_copies", ""),
    (
        "copies of host memory are not seen by the walk",
        "graphdedup/driver/simulated.py",
        'record.kind == "memcpy" and record.fixed[0] != 0',
        "False",
    ),
    (
        "the walk takes every copy for one of the host",
        "graphdedup/driver/simulated.py",
        'record.kind == "memcpy" and record.fixed[0] != 0',
        'record.kind == "memcpy"',
    ),
    ("what was baked stays on the graph", "seam/graph.py", "            self.baked.clear()\n", ""),
)

POOLS: tuple[Mutation, ...] = tuple(
    Mutation(rule, breaks, file, old, new, (target,)) for rule, breaks, file, old, new, target in _ROWS
) + tuple(Mutation("plan", breaks, file, old, new, (PLAN_TESTS,)) for breaks, file, old, new in _PLAN_ROWS)
POOLS += tuple(Mutation("baked", breaks, file, old, new, (BAKED_TESTS,)) for breaks, file, old, new in _BAKED_ROWS)
