"""The captured graphs of one backend as a file: what was captured, how it folded, and why any two of them do or do not."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from graphdedup.capabilities import Capabilities
from graphdedup.errors import GraphDedupError, ReportError
from graphdedup.explain import Explanation, Held, explain, nearest
from graphdedup.placement import Placement
from graphdedup.topology import Topology
from graphdedup.validation import from_json, read_bytes
from seam.collector import collector_paused

__all__ = ["MAX_GRAPHS_BYTES", "Answer", "ExportedGraph", "GraphsFile"]

MAX_GRAPHS_BYTES = 1 << 30
"""A larger file is refused before it is read."""
_REMEDY = "give a file that `graphdedup demo --graphs FILE`, `graphdedup run --graphs FILE` or GraphsFile.to_json() wrote."
_MOST_NAMES = 8


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ExportedGraph(_Model):
    """One captured graph, and how the fold took it."""

    index: int
    label: str = ""
    position: int | None = None
    """The segment's position in its graph, from 0; None where the file does not tell."""
    session: str = ""
    group: int | None = None
    """Graphs of one group share executables; None: it was passed through and keeps the executable of its own backend."""
    reason: str = ""
    """Why it does not share, where that is known."""
    refusals: tuple[str, ...] = ()
    """Groups of equal key that did not take it: the driver's result and the node, or what the fold knows of the device."""
    topology: Topology

    def __str__(self) -> str:
        return f"graph {self.index} ({self.label})" if self.label else f"graph {self.index}"


class Answer(_Model):
    """Why two graphs of one file fold or do not."""

    schema_version: Literal[1] = 1
    kind: Literal["graphdedup.explanation"] = "graphdedup.explanation"
    left: int
    right: int | None
    """None: there is no other graph to compare with."""
    folds: bool
    known_by: Literal["group", "reason", "refusal", "fields", "nothing"]
    """What decided: a group in common, a reason that is on record, a refusal, or what the graphs hold."""
    text: str
    explanation: Explanation | None = None
    """The comparison by fields, where there was one."""

    def to_json(self, *, indent: int | None = 2) -> str:
        """All of it as JSON."""
        return self.model_dump_json(indent=indent)


class GraphsFile(_Model):
    """Every captured graph of a backend at one moment, with what the fold knows. Made by ``DedupBackend.export()``."""

    schema_version: Literal[1] = 1
    kind: Literal["graphdedup.graphs"] = "graphdedup.graphs"
    device: str
    driver_version: str = ""
    tier: str
    placement: str = Placement.GROUP.value
    """Which of the graphs that could share an executable did, see :class:`graphdedup.FoldPolicy`."""
    capabilities: Capabilities
    graphs: tuple[ExportedGraph, ...] = ()

    def to_json(self) -> str:
        """Compact JSON text that :meth:`from_json` reads back to an equal file: what has its default value is left out."""
        text = self.model_dump_json(exclude_defaults=True)
        return f'{{"schema_version":{self.schema_version},"kind":"{self.kind}",{text[1:]}'  # those two always stand there

    @classmethod
    def from_json(cls, text: str | bytes) -> GraphsFile:
        """Read :meth:`to_json`.

        Raises:
            ReportError: the text is not the JSON of captured graphs; the message says where.
        """
        with collector_paused():  # a million small objects at once, none of them garbage: a third of the time
            return from_json(cls, text, called="a file of captured graphs", remedy=_REMEDY)

    @classmethod
    def read(cls, path: str | Path) -> GraphsFile:
        """Read a file.

        Raises:
            ReportError: it is missing, too large, or no file of captured graphs; one line that names it.
        """
        text = read_bytes(path, most_bytes=MAX_GRAPHS_BYTES, called="such a file", remedy=_REMEDY)
        try:
            return cls.from_json(text)
        except ReportError as error:
            raise ReportError(f"{path}: {error.problem}.", remedy=_REMEDY) from error

    def find(self, name_or_index: str) -> ExportedGraph:
        """A graph by its index, its label, or a part of one label alone.

        Raises:
            GraphDedupError: there is none, or several; the message lists them.
        """
        name = name_or_index.strip()
        if name.isdecimal():
            numbered = [graph for graph in self.graphs if graph.index == int(name)]
            if numbered:
                return numbered[0]
        labelled = [graph for graph in self.graphs if graph.label] if name else []
        found = [graph for graph in labelled if graph.label == name] or [graph for graph in labelled if name in graph.label]
        if len(found) == 1:
            return found[0]
        if not self.graphs:
            raise GraphDedupError("the file holds no graphs.", remedy="export while the captured graphs are alive.")
        problem = f"{name_or_index!r} is {'several graphs' if found else 'no graph'} of the file."
        raise GraphDedupError(problem, remedy=f"use one of {_names(found or self.graphs)}.")

    def explain(self, left: str, right: str | None = None) -> str:
        """Why two graphs fold or do not, in one or a few lines; see :meth:`answer`."""
        return self.answer(left, right).text

    def answer(self, left: str, right: str | None = None) -> Answer:
        """Why two graphs fold or do not: their group, a reason on record, a refusal, or the first difference.

        Args:
            left: the graph, as :meth:`find` takes it.
            right: the other one; None takes the graph of another group that is most like ``left``.

        Raises:
            GraphDedupError: there is no such graph, or both are the same.
        """
        one = self.find(left)
        other = self._nearest(one) if right is None else self.find(right)
        if other is None:
            text = f"{one} has no other group to be compared with"
            return Answer(left=one.index, right=None, folds=False, known_by="nothing", text=text)
        if other is one:
            raise GraphDedupError(f"{one} is named twice.", remedy="name two graphs, or one to see what is nearest to it.")
        return self._answer(one, other)

    @model_validator(mode="after")
    def _indices(self) -> Self:
        indices = [graph.index for graph in self.graphs]
        if len(set(indices)) != len(indices):
            raise ValueError("two graphs have the same index")
        return self

    def _held(self, one: ExportedGraph) -> Held:
        return Held.of(self.tier, self.capabilities, one.topology.instantiate_flags)

    def _nearest(self, one: ExportedGraph) -> ExportedGraph | None:
        """The nearest graph of another group; one graph stands for its group, since all of them have one key."""
        groups: dict[int, ExportedGraph] = {}
        for graph in self.graphs:
            if graph.group is not None and graph.group != one.group:
                groups.setdefault(graph.group, graph)
        others = list(groups.values())
        if not others:
            return None
        return others[nearest(one.topology, [graph.topology for graph in others], self._held(one))]

    def _answer(self, one: ExportedGraph, other: ExportedGraph) -> Answer:
        told = explain(one.topology, other.topology, self._held(one))
        names = f"{one} and {other}"
        known_by: Literal["group", "reason", "refusal", "fields"] = "fields"
        text = f"{names} {told.to_text()}"
        if one.group is not None and one.group == other.group:
            known_by = "group"
            text = f"{names} fold on the same exec, that of group {one.group}"
            if told.folds:
                text += f": {told.carried_text()}"
        elif kept := [graph for graph in (one, other) if graph.group is None]:
            known_by = "reason"
            text = "\n".join([f"{names} do not fold", *(f"  {graph} is passed through: {_reason(graph)}" for graph in kept)])
        elif noted := _notes(one, other):
            known_by = "refusal"
            fields = "by their fields: " + (told.reason or "nothing that an update does not carry")
            text = "\n".join([f"{names} do not fold", *(f"  {note}" for note in noted), f"  {fields}"])
        elif told.folds:
            # Equal by the key: the policy keeps them apart, or the one group was gone when the other was founded.
            text = f"{names} could fold ({told.carried_text()}), but are in groups {one.group} and {other.group}: "
            text += "kept apart by placement, or captured when the other's group could not be joined"
        return Answer(
            left=one.index,
            right=other.index,
            folds=known_by == "group",
            known_by=known_by,
            text=text,
            explanation=told,
        )


def _reason(graph: ExportedGraph) -> str:
    return graph.reason or "no reason is on record"


def _notes(*graphs: ExportedGraph) -> list[str]:
    """What is on record of graphs that are on executables of the fold."""
    reasons = [f"{graph} is on its own: {graph.reason}" for graph in graphs if graph.reason]
    return reasons + [f"{graph} was refused: {refusal}" for graph in graphs for refusal in graph.refusals]


def _names(graphs: tuple[ExportedGraph, ...] | list[ExportedGraph]) -> str:
    names = [f"{graph.index} ({graph.label})" if graph.label else str(graph.index) for graph in graphs[:_MOST_NAMES]]
    more = len(graphs) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
