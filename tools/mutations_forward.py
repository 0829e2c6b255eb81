"""Breaks of the captured forward: configs, static buffers, padding, outputs, and pieces that torch.compile makes."""

from __future__ import annotations

from mutation import Mutation

__all__ = ["FORWARD"]

BUFFERS = "seam/buffers.py"
CAPTURED = "seam/forward.py"
MODE = "seam/mode.py"
PIECEWISE = "seam/piecewise.py"
BREAKS = "seam/breaks.py"

FORWARD_TESTS = "tests/conformance/seam/test_forward.py"
CONFIG_TESTS = "tests/unit/seam/test_capture_config.py"
PIECEWISE_TESTS = "tests/conformance/seam/test_piecewise.py"

_ROWS: tuple[tuple[str, str, str, str, str, tuple[str, ...]], ...] = (
    (
        "forward",
        "rows beyond a live batch keep what was there",
        BUFFERS,
        "            if size < shape and None in",
        "            if size > shape and None in",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "padding is written over the live rows",
        BUFFERS,
        "whole.narrow(dim, size, shape - size)",
        "whole.narrow(dim, 0, shape)",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "padding is always zero",
        BUFFERS,
        ".fill_(self.inputs[name].pad)",
        ".fill_(0)",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "dtypes of live inputs are not compared",
        BUFFERS,
        "if tensor.dtype is not wanted.dtype or tensor.dim() != len(wanted.shape):",
        "if tensor.dim() != len(wanted.shape):",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "fixed sizes of live inputs are not compared",
        BUFFERS,
        "                if have != (sizes[name] if want is None else want):\n",
        "                if False:\n",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "inputs of different batches are taken",
        BUFFERS,
        "        if len(set(sizes.values())) != 1:\n",
        "        if False:\n",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "a missing input is not noticed",
        BUFFERS,
        "        if live.keys() != self.inputs.keys():\n",
        "        if live.keys() - self.inputs.keys():\n",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "buffers are made for the smallest shape",
        CAPTURED,
        "for shape in reversed(phase.ladder):",
        "for shape in phase.ladder:",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "every batch is padded to the largest shape",
        CAPTURED,
        "        shape = of.ladder[at]\n",
        "        shape = of.ladder[-1]\n",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "more rows than the buffer has are cut in silence",
        BUFFERS,
        "if not fits or (tensor.dim() and len(tensor) > len(buffer)):",
        "tensor = tensor[: len(buffer)] if tensor.dim() else tensor\n            if not fits:",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "rows of padding are returned",
        BUFFERS,
        "return leaf if count is None else leaf[: size * count]",
        "return leaf",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "outputs that do not grow with the batch are cut",
        BUFFERS,
        "if len(each) == 1 and next(iter(each)).is_integer() else None)",
        "if each else None)",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "each graph returns its own tensors where they should be shared",
        CAPTURED,
        "                if self._share_outputs:\n                    outputs = ",
        "                if self._share_outputs:\n                    _ = ",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "a batch beyond every shape always runs eagerly",
        CAPTURED,
        '        if self._beyond == "eager":\n',
        "        if self._beyond:\n",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "what is captured is captured again",
        CAPTURED,
        "                        if shape not in phase.shapes:\n",
        "                        if shape:\n",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "expected breaks are not handed on",
        CAPTURED,
        "mode=mode, warmup=warm_up, expect_breaks=expected, **self._how)",
        "mode=mode, warmup=warm_up, **self._how)",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "captures of a phase have no session",
        CAPTURED,
        "            if session is not None:\n                contexts",
        "            if session is None:\n                contexts",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "after close the graphs live on",
        CAPTURED,
        "                _, held = phase.shapes.popitem()\n                held.graph.close()\n",
        "                _, held = phase.shapes.popitem()\n",
        (FORWARD_TESTS,),
    ),
    (
        "forward",
        "without a GPU and a backend the forward is captured on the simulated device",
        CAPTURED,
        "nowhere = backend is None and not torch.cuda.is_available()",
        "nowhere = False",
        (FORWARD_TESTS,),
    ),
    (
        "config",
        "defaults are lost where something is named",
        MODE,
        "return cls(MappingProxyType(_DEFAULTS | modes))",
        "return cls(MappingProxyType(modes))",
        (CONFIG_TESTS,),
    ),
    (
        "config",
        "a phase that is named twice has the last mode",
        MODE,
        "            if phase in modes:\n",
        "            if False:\n",
        (CONFIG_TESTS,),
    ),
    (
        "config",
        "modes are read in any case",
        MODE,
        "            return cls(value)\n",
        "            return cls(value.lower())\n",
        (CONFIG_TESTS,),
    ),
    (
        "piecewise",
        "pieces do not end at break points",
        PIECEWISE,
        "before, traced.state.splits = traced.state.splits, True",
        "before, traced.state.splits = traced.state.splits, False",
        (PIECEWISE_TESTS,),
    ),
    (
        "piecewise",
        "compiled code ends at break points for ever after",
        PIECEWISE,
        "            traced.state.splits = before\n",
        "            pass\n",
        (PIECEWISE_TESTS,),
    ),
    (
        "piecewise",
        "mode tc_piecewise does not split",
        MODE,
        "return self in (Mode.BREAKABLE, Mode.TC_PIECEWISE)",
        "return self is Mode.BREAKABLE",
        (PIECEWISE_TESTS,),
    ),
    (
        "piecewise",
        "a shape may be compiled inside a capture",
        PIECEWISE,
        'with torch.compiler.set_stance("fail_on_recompile"):',
        'with torch.compiler.set_stance("default"):',
        (PIECEWISE_TESTS,),
    ),
    (
        "piecewise",
        "graph_break ends no piece",
        BREAKS,
        "        traced.call(_nothing, _meet_nothing, (name,), {})\n        return\n",
        "        return\n",
        (PIECEWISE_TESTS,),
    ),
)

FORWARD: tuple[Mutation, ...] = tuple(Mutation(*row) for row in _ROWS)
"""What a captured forward promises; none of it is a rule with a number."""
