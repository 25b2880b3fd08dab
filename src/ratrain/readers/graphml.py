"""GraphML: the nodes and edges of one graph, and what is said of them, each with its line.

Read by events, so that nothing is held that is not asked for. A document type, and with it every
entity of its own, is refused: it can make a small file large without end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from ratrain.errors import SpecError
from ratrain.readers.files import read_bytes, shown
from ratrain.readers.limits import CELL_CHARS, DEPTH, TOML_BYTES

_NAMESPACE = "http://graphml.graphdrawing.org/xmlns"
_SAMPLE = '<node id="r0"/> ... <edge source="r0" target="r1"/>'


@dataclass(frozen=True)
class GraphNode:
    """A node; `said`: by the names of keys."""

    name: str
    said: Mapping[str, str]
    place: str


@dataclass(frozen=True)
class GraphEdge:
    """An edge, one way or both."""

    source: str
    target: str
    one_way: bool
    place: str


@dataclass
class Graph:
    """All of them, in the order of the file. Every edge joins nodes that are there."""

    file: str
    nodes: list[GraphNode] = field(default_factory=list[GraphNode])
    edges: list[GraphEdge] = field(default_factory=list[GraphEdge])


def read_graphml(path: Path) -> Graph:
    """The graph of a file; a SpecError says which line is wrong."""
    return _Reading(str(path)).of(read_bytes(path, TOML_BYTES))


class _Reading:
    def __init__(self, file: str) -> None:
        self._graph = Graph(file)
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.StartDoctypeDeclHandler = self._document_type
        self._open: list[str] = []
        self._graphs = 0
        self._one_way = False
        self._names: dict[str, str] = {}  # of keys, by their ids
        self._said: dict[str, str] = {}  # of the node that is open
        self._node: tuple[str, str] | None = None
        self._key: str | None = None
        self._words = ""

    def of(self, content: bytes) -> Graph:
        try:
            self._parser.Parse(content, True)
        except expat.ExpatError as error:
            raise SpecError(
                f"not valid XML: {expat.ErrorString(error.code)}",
                place=f"{self._graph.file}:{error.lineno}",
                fix="write it again as GraphML, for instance with networkx.write_graphml",
            ) from None
        if not self._graph.nodes:
            raise SpecError("has no nodes", place=self._graph.file, fix=f"write {_SAMPLE}")
        self._check_edges()
        return self._graph

    @property
    def _place(self) -> str:
        return f"{self._graph.file}:{self._parser.CurrentLineNumber}"

    def _begin(self, full_name: str, given: dict[str, str]) -> None:
        space, _, name = full_name.rpartition(" ")
        self._open.append(name)
        if len(self._open) == 1 and (name != "graphml" or space not in ("", _NAMESPACE)):
            raise self._wrong(f"begins with <{shown(name)[:80]}>, not <graphml>")
        if len(self._open) > DEPTH:
            raise self._wrong("elements are nested too deeply")
        if name in ("hyperedge", "port"):
            raise self._wrong(f"<{name}> is not read", f"use {_SAMPLE}")
        if name == "graph":
            self._graphs += 1
            if self._graphs > 1:
                raise self._wrong("has a second graph", "write one graph into the file")
            self._one_way = given.get("edgedefault") == "directed"
        elif name == "key":
            self._names[self._given(given, "id", name)] = given.get("attr.name", given["id"])
        elif name == "node":
            self._node, self._said = (self._given(given, "id", name), self._place), {}
        elif name == "edge":
            one_way = {"true": True, "false": False}.get(given.get("directed", ""), self._one_way)
            source, target = (self._given(given, end, name) for end in ("source", "target"))
            self._graph.edges.append(GraphEdge(source, target, one_way, self._place))
        elif name == "data" and self._node is not None:
            self._key, self._words = self._given(given, "key", name), ""

    def _end(self, full_name: str) -> None:
        name = full_name.rpartition(" ")[2]
        self._open.pop()
        if name == "data" and self._key is not None:
            self._said[self._names.get(self._key, self._key)] = self._words.strip()
            self._key = None
        elif name == "node" and self._node is not None:
            self._graph.nodes.append(GraphNode(self._node[0], self._said, self._node[1]))
            self._node = None

    def _text(self, text: str) -> None:
        if self._key is not None and len(self._words) < CELL_CHARS:
            self._words += text

    def _document_type(self, *_: object) -> None:
        raise self._wrong("has a document type", "leave out <!DOCTYPE ...>")

    def _given(self, given: Mapping[str, str], key: str, of: str) -> str:
        value = given.get(key, "")
        if not value or len(value) > CELL_CHARS:
            raise self._wrong(f"<{of}> has no {key}", f"use {_SAMPLE}")
        return value

    def _check_edges(self) -> None:
        lines: dict[str, str] = {}
        for node in self._graph.nodes:
            if node.name in lines:
                raise SpecError(
                    f"{shown(node.name)} is there twice, first at {lines[node.name]}",
                    place=node.place,
                    fix="give each node an id of its own",
                )
            lines[node.name] = node.place
        for edge in self._graph.edges:
            for end in (edge.source, edge.target):
                if end not in lines:
                    raise SpecError(
                        f"there is no node {shown(end)}",
                        place=edge.place,
                        fix="name nodes of this file as source and target",
                    )

    def _wrong(self, what: str, fix: str = "write it again as GraphML") -> SpecError:
        return SpecError(what, place=self._place, fix=fix)
