"""Finer breaks of the rules: which group is tried, whose launch is waited for, what becomes of a graph that draws."""

from __future__ import annotations

from mutation import Mutation

__all__ = ["FOLD_IN_DETAIL"]

CAPABILITIES = "graphdedup/capabilities.py"
CUDA = "graphdedup/driver/cuda.py"
EXECS = "graphdedup/execs.py"
FAMILY = "seam/cuda_family.py"
REGISTRY = "graphdedup/registry.py"
SETTLE = "graphdedup/driver/cuda_settle.py"
SIGNATURE = "graphdedup/signature.py"
SIMULATED = "graphdedup/driver/simulated.py"
TALLY = "graphdedup/tally.py"

BUDGET_TESTS = "tests/unit/fold/test_budget.py"
CAPABILITIES_TESTS = "tests/unit/probe/test_capabilities.py"
CONCURRENCY_TESTS = "tests/unit/fold/test_registry_concurrency.py"
CUDA_WALK_TESTS = "tests/unit/fold/test_cuda_walk.py"
FAMILY_TESTS = "tests/unit/seam/test_cuda_family.py"
FOLD_TESTS = "tests/conformance/fold/test_fold.py"
LIFETIME_TESTS = "tests/unit/fold/test_registry_lifetime.py"
ORDER_TESTS = "tests/unit/fold/test_cuda_driver_order.py"
RANDOM_TESTS = "tests/conformance/fold/test_random.py"
REASONS_TESTS = "tests/unit/fold/test_reasons.py"
RECORDS_TESTS = "tests/unit/fold/test_registry_records.py"
REGISTRY_TESTS = "tests/unit/fold/test_registry.py"
SETTLE_TESTS = "tests/unit/fold/test_cuda_settle.py"
SIGNATURE_TESTS = "tests/unit/fold/test_signature.py"
VERIFY_TESTS = "tests/conformance/fold/test_verify.py"

_ROWS: tuple[tuple[str, str, str, str, str, tuple[str, ...]], ...] = (
    (
        "S12",
        "a scope does not hand its generators on",
        "seam/scope.py",
        "segment=info, capture_error_mode=self._capture_error_mode, **more)",
        "segment=info, capture_error_mode=self._capture_error_mode)",
        (RANDOM_TESTS,),
    ),
    (
        "D1",
        "a group without an executable gets one made of the graph that joins: it is its own update",
        EXECS,
        "next(iter(group.members.values())) if joining else member, stream",
        "member, stream",
        (BUDGET_TESTS,),
    ),
    (
        "D1",
        "a refused graph joins all the same",
        REGISTRY,
        "        if result.accepted:\n            group.clusters.add",
        "        if True:\n            group.clusters.add",
        (REGISTRY_TESTS,),
    ),
    (
        "D4",
        "sizes of memsets are not held in the exact tier",
        CAPABILITIES,
        "geometry=True, memset_extent=True, memcpy_extent=True",
        "geometry=True, memset_extent=False, memcpy_extent=True",
        (SIGNATURE_TESTS,),
    ),
    (
        "D4",
        "sizes of copies are not held in the exact tier",
        CAPABILITIES,
        "geometry=True, memset_extent=True, memcpy_extent=True",
        "geometry=True, memset_extent=True, memcpy_extent=False",
        (SIGNATURE_TESTS,),
    ),
    (
        "D4",
        "launch attributes are not read in the exact tier",
        CAPABILITIES,
        "return Reads(attributes=held, geometry=True",
        "return Reads(attributes=self.hidden, geometry=True",
        (SIGNATURE_TESTS,),
    ),
    (
        "D4",
        "in the exact tier attributes are asked for that the driver does not tell",
        CAPABILITIES,
        "untold = {row.name for row in self.attributes if row.readable is False}",
        "untold: set[str] = set()",
        (CAPABILITIES_TESTS,),
    ),
    (
        "D4",
        "the exact tier leaves functions to the update",
        SIGNATURE,
        "functions=tier is not Tier.STRUCTURE or not capabilities.carries_function",
        "functions=tier is Tier.FUNCTION or not capabilities.carries_function",
        (SIGNATURE_TESTS,),
    ),
    (
        "D4",
        "the exact tier leaves cluster dimensions to the update",
        SIGNATURE,
        "clusters=tier is not Tier.STRUCTURE or not capabilities.carries_cluster",
        "clusters=tier is Tier.FUNCTION or not capabilities.carries_cluster",
        (SIGNATURE_TESTS,),
    ),
    (
        "D4",
        "attributes that change nothing but time are left out of the function tier",
        SIGNATURE,
        "leave_out=(Effect.TIME,) if tier is Tier.STRUCTURE else ()",
        "leave_out=(Effect.TIME,)",
        (SIGNATURE_TESTS,),
    ),
    (
        "D4",
        "an attribute of time that is stale is held in the default tier",
        CAPABILITIES,
        "_TAKEN = {Outcome.CARRIED, Outcome.STALE, Outcome.UNOBSERVED}",
        "_TAKEN = {Outcome.CARRIED}",
        (CAPABILITIES_TESTS,),
    ),
    (
        "D4",
        "members fold across positions where the placement keeps them apart",
        "graphdedup/placement.py",
        "return segment.position if self is Placement.POSITION else 0",
        "return 0",
        (FOLD_TESTS,),
    ),
    (
        "D5",
        "the smallest groups are tried first, until the trials are used up",
        REGISTRY,
        "candidates.sort(key=lambda group: -len(group.members))",
        "candidates.sort(key=lambda group: len(group.members))",
        (REGISTRY_TESTS,),
    ),
    (
        "D5",
        "a refusal is explained with its sides swapped",
        REGISTRY,
        "for one in (held, member)]",
        "for one in (member, held)]",
        (REASONS_TESTS,),
    ),
    (
        "D5",
        "a refused node that cannot be read fails the capture",
        REGISTRY,
        "            except (DriverError, IndexError):\n",
        "            except ZeroDivisionError:\n",
        (REASONS_TESTS,),
    ),
    (
        "D5",
        "a graph that may not share does not know why",
        REGISTRY,
        "            member.reason = forbidden\n",
        "            pass\n",
        (RECORDS_TESTS,),
    ),
    (
        "D5",
        "a graph that is passed through does not know why",
        REGISTRY,
        "                    member.reason = pass_through\n",
        "                    pass\n",
        (REGISTRY_TESTS,),
    ),
    (
        "D5",
        "a graph that cannot be read fails its capture",
        REGISTRY,
        "        except Exception as error:  # whatever it is",
        "        except ZeroDivisionError as error:  # whatever it is",
        (REGISTRY_TESTS,),
    ),
    (
        "D5",
        "why a graph kept the backend's executable is not counted",
        REGISTRY,
        "                    self.passings.note(pass_through, str(segment))\n",
        "",
        (REASONS_TESTS,),
    ),
    (
        "D5",
        "each node has a row of its own among the reasons",
        TALLY,
        'general = re.sub(r"node \\d+", "a node", reason)',
        "general = reason",
        (RECORDS_TESTS,),
    ),
    (
        "D5",
        "the last example of a reason is kept, not the first",
        TALLY,
        'self.examples.setdefault(general, example if general == reason else f"{example}: {reason}")',
        'self.examples[general] = example if general == reason else f"{example}: {reason}"',
        (RECORDS_TESTS,),
    ),
    (
        "D6",
        "a graph that the budget left without executable is left to the backend's",
        REGISTRY,
        "        while (group := member.group) is not None:\n            executable = self._execs.claim(group, member)\n",
        "        while (group := member.group) is not None:\n"
        "            try:\n                executable = self._execs.claim(group, member)\n"
        "            except DriverError:\n                return False\n",
        (BUDGET_TESTS,),
    ),
    (
        "D6",
        "an un-folded graph stays a member of its group as well",
        REGISTRY,
        '            member.reason += f"; and no executable of its own: {error.problem}"\n        self._leave(member, group)\n',
        '            member.reason += f"; and no executable of its own: {error.problem}"\n',
        (LIFETIME_TESTS,),
    ),
    (
        "D6",
        "others may join the executable of an un-folded graph",
        REGISTRY,
        "            self._found(member, group.record, None)\n        except",
        "            self._found(member, group.record, group.bucket)\n        except",
        (REGISTRY_TESTS,),
    ),
    (
        "D6",
        "a graph left to the backend's executable is not counted as such",
        REGISTRY,
        "                member.group = None\n                self._kept.add(member.id)\n",
        "                member.group = None\n",
        (LIFETIME_TESTS,),
    ),
    (
        "D6",
        "why members were un-folded is not counted",
        REGISTRY,
        '        self.unfoldings.note(unfit.reason, f"{member.segment}: {unfit.detail}")\n',
        "",
        (REASONS_TESTS,),
    ),
    (
        "D7",
        "updates that a replay needed are not told from those of captures",
        REGISTRY,
        "            self.counters.replay_updates += 1\n",
        "",
        (RANDOM_TESTS,),
    ),
    (
        "D8",
        "ids of graphs that are gone are given out again",
        REGISTRY,
        "member = Member(next(self._ids), raw,",
        "member = Member(len(self.members) + 1, raw,",
        (LIFETIME_TESTS,),
    ),
    (
        "D8",
        "the driver remembers a destroyed executable by its handle (CUDA)",
        SETTLE,
        "        self._streams.pop(executable, None)\n",
        "",
        (SETTLE_TESTS,),
    ),
    (
        "D8",
        "an executable inherits the event of a destroyed one (CUDA)",
        SETTLE,
        "event = self._events.pop(executable, None)",
        "event = self._events.get(executable)",
        (SETTLE_TESTS,),
    ),
    (
        "D9",
        "a graph that is gone counts as one that keeps the backend's executable",
        REGISTRY,
        "            self._kept.discard(member.id)\n",
        "",
        (REGISTRY_TESTS,),
    ),
    (
        "D9",
        "executables that are gone count as live",
        EXECS,
        "            for executable in going:\n                self._drop(executable)\n",
        "",
        (FOLD_TESTS,),
    ),
    (
        "D10",
        "a claim is not counted",
        EXECS,
        "        executable.claims += 1\n        if self._policy",
        "        if self._policy",
        (CONCURRENCY_TESTS,),
    ),
    (
        "D10",
        "a claim of a replay that fails is never given back",
        REGISTRY,
        "                    unfit = self._launch(executable, member, verifier)\n            finally:\n"
        "                self._execs.leave(executable)\n",
        "                    unfit = self._launch(executable, member, verifier)\n"
        "            except ZeroDivisionError:\n                raise\n            else:\n"
        "                self._execs.leave(executable)\n",
        (CONCURRENCY_TESTS,),
    ),
    (
        "D10",
        "the stream of a claim is not noted",
        EXECS,
        "        if not executable.claims:\n            executable.stream = stream\n",
        "",
        (CONCURRENCY_TESTS,),
    ),
    (
        "D10",
        "a capture makes a second executable while its group's only one is being launched",
        EXECS,
        "if self._policy.concurrent is Concurrent.SERIALISE or joining:",
        "if self._policy.concurrent is Concurrent.SERIALISE:",
        (CONCURRENCY_TESTS,),
    ),
    (
        "D10",
        "that graphs wait since there is no room is not counted",
        EXECS,
        '                self._degraded.note(f"no second executable, so graphs wait: {error.problem}", str(member.segment))\n',
        "",
        (CONCURRENCY_TESTS,),
    ),
    (
        "D10",
        "second executables are not counted",
        EXECS,
        "                self._counters.splits += 1\n",
        "                pass\n",
        (CONCURRENCY_TESTS,),
    ),
    (
        "D10",
        "a stream does not wait for the last launch (CUDA)",
        SETTLE,
        '            self._check(self._wait(stream, event, 0), "cuStreamWaitEvent")\n\n    def finish',
        "            pass\n\n    def finish",
        (SETTLE_TESTS,),
    ),
    (
        "D10",
        "the host does not wait for the last launch (CUDA)",
        SETTLE,
        '            self._check(self._synchronize(event), "cuEventSynchronize")\n',
        "            pass\n",
        (SETTLE_TESTS,),
    ),
    (
        "D10",
        "a launch on the asking stream counts as one elsewhere (CUDA)",
        CUDA,
        "        if not self._settler.launched_elsewhere(executable, stream):\n            return False\n",
        "",
        (ORDER_TESTS,),
    ),
    (
        "D12",
        "the second launch of a verified replay advances the numbers, not the first",
        REGISTRY,
        "rest.pop() if rest else None",
        "rest.pop() if rest and handle is own else None",
        (VERIFY_TESTS,),
    ),
    (
        "D12",
        "what is left of an advanced prologue is dropped",
        REGISTRY,
        "rest.append(self.driver.advance(member.prologue))",
        "self.driver.advance(member.prologue)",
        (VERIFY_TESTS,),
    ),
    (
        "D12",
        "generators besides the default one are not asked about",
        REGISTRY,
        'if draws is Draws.NO and getattr(handle, "generators", None):',
        "if False:",
        (REGISTRY_TESTS,),
    ),
    (
        "D12",
        "a graph that cannot be detached fails its capture",
        REGISTRY,
        '        except DriverError as error:\n            return f"it may draw',
        '        except ZeroDivisionError as error:\n            return f"it may draw',
        (REGISTRY_TESTS,),
    ),
    (
        "D12",
        "a graph that cannot be detached is folded without its prologue",
        REGISTRY,
        '            return f"it may draw random numbers, and they cannot be advanced apart (rule D12): {error.problem}"\n',
        '            return ""\n',
        (REGISTRY_TESTS,),
    ),
    (
        "D12",
        "a detached graph is not destroyed with its member",
        REGISTRY,
        "                self.driver.discard(raw)\n",
        "                pass\n",
        (LIFETIME_TESTS,),
    ),
    (
        "D12",
        "a detached graph is destroyed before the executable that may run it",
        REGISTRY,
        "        try:\n            if group is not None:\n                self._leave(member, group)\n"
        "        finally:\n            if member.detached:\n                self.driver.discard(raw)\n",
        "        if member.detached:\n            self.driver.discard(raw)\n        if group is not None:\n"
        "            self._leave(member, group)\n",
        (LIFETIME_TESTS,),
    ),
    (
        "D12",
        "a detached graph that cannot be instantiated is not destroyed",
        REGISTRY,
        "            if member.detached:\n                self.driver.discard(member.raw)\n            raise\n",
        "            raise\n",
        (LIFETIME_TESTS,),
    ),
    (
        "D12",
        "the folding backend does not hand generators on",
        "graphdedup/backend.py",
        'others = {"generators": generators} if generators else {}',
        "others: dict[str, Any] = {}",
        (RANDOM_TESTS,),
    ),
    (
        "D12",
        "a launch does not advance the numbers (simulated driver)",
        SIMULATED,
        "self._device.launch(executable, prologue=prologue is not None)",
        "self._device.launch(executable)",
        (RANDOM_TESTS,),
    ),
    (
        "D12",
        "every launch advances the numbers (simulated driver)",
        SIMULATED,
        "self._device.launch(executable, prologue=prologue is not None)",
        "self._device.launch(executable, prologue=True)",
        (VERIFY_TESTS,),
    ),
    (
        "D12",
        "a graph is emptied but for its first node (CUDA)",
        "graphdedup/driver/cuda_raw.py",
        "        for node in self.nodes(graph):\n            call((self._destroy_node(node),)",
        "        for node in self.nodes(graph)[1:]:\n            call((self._destroy_node(node),)",
        (CUDA_WALK_TESTS,),
    ),
    (
        "D12",
        "a graph that was half emptied is passed through (CUDA)",
        CUDA,
        'raise GraphDedupError(error.problem, rule="D12", remedy="capture again with GRAPHDEDUP_DISABLE=1") from error',
        "raise",
        (ORDER_TESTS,),
    ),
    (
        "D12",
        "a clone is left behind where the graph cannot be emptied (CUDA)",
        CUDA,
        "            self.discard(clone)\n            raise Graph",
        "            raise Graph",
        (ORDER_TESTS,),
    ),
    (
        "D12",
        "the emptied graph is folded in place of its clone (CUDA)",
        CUDA,
        "        return clone, graph.replay\n",
        "        return self.raw(handle), graph.replay\n",
        (ORDER_TESTS,),
    ),
    (
        "D12",
        "the prologue runs behind the launch (CUDA)",
        CUDA,
        "        if prologue is not None:\n            prologue()\n        stream = self._launches.note_current()\n"
        "        self._settler.before_launch(executable, stream)\n        result = self._launch(executable, stream)\n",
        "        stream = self._launches.note_current()\n        self._settler.before_launch(executable, stream)\n"
        "        result = self._launch(executable, stream)\n        if prologue is not None:\n            prologue()\n",
        (ORDER_TESTS,),
    ),
    (
        "D12",
        "a prologue is not advanced for several launches (CUDA)",
        CUDA,
        "        with self._device_current():\n            prologue()\n",
        "        pass\n",
        (ORDER_TESTS,),
    ),
    (
        "D13",
        "a launch that fails is not noticed (CUDA)",
        CUDA,
        '        if result:\n            call((self._driver.CUresult(result),), "cuGraphLaunch")\n',
        "",
        (ORDER_TESTS,),
    ),
    (
        "D15",
        "a launch is not noted where the release of its graph waits (CUDA)",
        CUDA,
        "        stream = self._launches.note_current()\n        self._settler.before",
        "        stream = self._launches.current()\n        self._settler.before",
        (ORDER_TESTS,),
    ),
    (
        "D15",
        "where a reset takes nothing graphs wait all the same",
        FAMILY,
        "            if self._together and self._live:\n",
        "            if self._live:\n",
        (FAMILY_TESTS,),
    ),
    (
        "D15",
        "graphs that waited are reset again and again",
        FAMILY,
        "            due, self._waiting = self._waiting, []\n",
        "            due = self._waiting\n",
        (FAMILY_TESTS,),
    ),
    (
        "D15",
        "streams of two devices are one family",
        FAMILY,
        "key = (stream.device_index, stream.cuda_stream)",
        "key = (0, stream.cuda_stream)",
        (FAMILY_TESTS,),
    ),
    (
        "D15",
        "each pool of a stream is a family of its own",
        FAMILY,
        "        found = _families.get(key)\n",
        "        found = None\n",
        (FAMILY_TESTS,),
    ),
)

FOLD_IN_DETAIL: tuple[Mutation, ...] = tuple(Mutation(*row) for row in _ROWS)
"""In the order of the rules."""
