"""Draws the Mermaid blocks of the pages, which GitHub draws itself, without a browser or a network.

Of Mermaid it reads what the pages use: `flowchart` with nodes, groups and labelled arrows, and `stateDiagram-v2`.
A group with a label of its own gets a dashed frame; its nodes have to lie together.
The arrows of states carry numbers, explained in a table below the picture: their labels are whole sentences.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from docutils import nodes
from docutils.statemachine import StringList
from grandalf.graphs import Edge, Graph, Vertex
from grandalf.layouts import SugiyamaLayout
from grandalf.routing import EdgeViewer, route_with_lines
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path as Line
from sphinx.util.docutils import SphinxDirective

# Where one begins and ends, in Mermaid's words.
_END = "[*]"

_GROUP = re.compile(r"subgraph \w+\[(.+)\]")
_NODE = re.compile(r"([\w*\[\]]+?)(?:\[\((?P<store>.+?)\)\]|\{(?P<choice>.+?)\}|\[(?P<box>.+?)\])?$")
_POINTS_PER_INCH = 72.0
_FONT_PT = 11.0
_INK = "#1e293b"
# A wider picture could not be read on a telephone.
_WIDEST_PT = 600.0
# And a wider one than this has to scroll there.
_NARROW_PT = 430.0

Point = tuple[float, float]


@dataclass(frozen=True)
class Arrow:
    """An arrow of a diagram.

    Attributes:
        tail: Id of the node where it begins.
        head: Id of the node where it ends.
        label: Its text; may be empty.
    """

    tail: str
    head: str
    label: str = ""


@dataclass
class Diagram:
    """What a Mermaid block says.

    Attributes:
        of_states: A state diagram, else a flowchart.
        labels: The text of each node, by its id.
        arrows: In the order in which they are written.
        groups: The nodes of each group that has a label, by that.
    """

    of_states: bool
    labels: dict[str, str] = field(default_factory=dict)
    arrows: list[Arrow] = field(default_factory=list)
    groups: dict[str, list[str]] = field(default_factory=dict)


def parsed(text: str) -> Diagram:
    """Read a Mermaid block.

    Raises:
        ValueError: A line is none of those that the pages use.
    """
    head, *lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    diagram = Diagram(head.startswith("stateDiagram"))
    if not diagram.of_states and not head.startswith("flowchart"):
        raise ValueError(f"neither a flowchart nor a state diagram: {head}")
    group: str | None = None
    for line in lines:
        if line == "end" or line.startswith("subgraph "):
            labelled = _GROUP.fullmatch(line)
            group = labelled[1] if labelled else None
            continue
        before = set(diagram.labels)
        if diagram.of_states:
            _add_state_line(diagram, line)
        else:
            _add_flow_line(diagram, line)
        if group is not None:
            diagram.groups.setdefault(group, []).extend(node for node in diagram.labels if node not in before)
    return diagram


def _add_state_line(diagram: Diagram, line: str) -> None:
    if named := re.fullmatch(r'state "(.+)" as (\w+)', line):
        diagram.labels[named[2]] = named[1]
        return
    arrow = re.fullmatch(r"(\S+) --> ([^\s:]+)(?:: (.+))?", line)
    if arrow is None:
        raise ValueError(f"no arrow between states: {line}")
    # A beginning and an end are two points, though both are written alike.
    tail, head = (f"{end} {way}" if end == _END else end for end, way in ((arrow[1], "<"), (arrow[2], ">")))
    for node in (tail, head):
        diagram.labels.setdefault(node, "" if node.startswith(_END) else node)
    diagram.arrows.append(Arrow(tail, head, arrow[3] or ""))


def _add_flow_line(diagram: Diagram, line: str) -> None:
    # `a & b -- "text" --> c & d --> e`
    parts = re.split(r'\s+(?:-- "([^"]*)" -->|(<?-->))\s+', line)
    ends = [[_flow_node(diagram, node) for node in part.split(" & ")] for part in parts[::3]]
    if len(ends) < 2:
        return
    for tails, heads, label, way in zip(ends, ends[1:], parts[1::3], parts[2::3], strict=False):
        there = [Arrow(tail, head, label or "") for tail in tails for head in heads]
        diagram.arrows += there
        if way == "<-->":
            diagram.arrows += [Arrow(arrow.head, arrow.tail) for arrow in there]


def _flow_node(diagram: Diagram, text: str) -> str:
    node = _NODE.fullmatch(text.strip())
    if node is None:
        raise ValueError(f"no node of a flowchart: {text}")
    label = next((found for found in node.group("store", "choice", "box") if found), None)
    if label or node[1] not in diagram.labels:
        diagram.labels[node[1]] = (label or node[1]).replace("<br>", "\n")
    return node[1]


class _Box:
    """A node's size and, once it is laid out, its middle, in points."""

    def __init__(self, label: str, round_: bool) -> None:
        lines = label.split("\n")
        self.round = round_
        self.w = 14.0 if round_ else 0.56 * _FONT_PT * max(map(len, lines)) + 22.0
        self.h = 14.0 if round_ else 1.3 * _FONT_PT * len(lines) + 14.0
        self.xy = (0.0, 0.0)

    def holds(self, x: float, y: float) -> bool:
        """Whether a text at this point would lie on it."""
        return abs(x - self.xy[0]) < self.w / 2 + 8 and abs(y - self.xy[1]) < self.h / 2 + 8


class _Node(Vertex):  # type: ignore[misc] # grandalf has no types
    """A vertex whose place in a set does not change from run to run, so that neither does the picture."""

    def __hash__(self) -> int:
        return zlib.crc32(self.data.encode())


class _Line(Edge):  # type: ignore[misc] # grandalf has no types
    """The same for an edge, whichever way the layout turns it."""

    def __hash__(self) -> int:
        return zlib.crc32(self.data.encode())


def draw(diagram: Diagram, path: Path) -> float:
    """Draw a diagram as SVG, from the top down, or from the left to the right where that would be too wide.

    Returns:
        Its width in points.
    """
    labels = {node: _wrapped(label) for node, label in diagram.labels.items()}
    laid = _laid_out(diagram, labels, sideways=False)
    if laid.size[0] > _WIDEST_PT:
        laid = _laid_out(diagram, labels, sideways=True)
    _paint(diagram, labels, laid, path)
    return laid.size[0]


@dataclass(frozen=True)
class _Laid:
    boxes: dict[str, _Box]
    # The points of each line, from its tail to its head.
    lines: dict[tuple[str, str], list[Point]]
    # Around the boxes, in points.
    margin: float = 14.0

    @property
    def limits(self) -> tuple[Point, Point]:
        corners = [point for points in self.lines.values() for point in points]
        for box in self.boxes.values():
            corners += [(box.xy[0] + sign * box.w / 2, box.xy[1] + sign * box.h / 2) for sign in (-1, 1)]
        xs, ys = zip(*corners, strict=True)
        return (min(xs) - self.margin, min(ys) - self.margin), (max(xs) + self.margin, max(ys) + self.margin)

    @property
    def size(self) -> Point:
        low, high = self.limits
        return high[0] - low[0], high[1] - low[1]


def _laid_out(diagram: Diagram, labels: dict[str, str], sideways: bool) -> _Laid:
    boxes = {node: _Box(label, node.startswith(_END)) for node, label in labels.items()}
    if sideways:
        for box in boxes.values():
            box.w, box.h = box.h, box.w
    vertices = {node: _Node(node) for node in labels}
    for node, vertex in vertices.items():
        vertex.view = boxes[node]
    edges: dict[tuple[str, str], Edge] = {}
    for arrow in diagram.arrows:
        # A pair is one line, whichever way its arrows go.
        pair = (arrow.tail, arrow.head)
        if pair[0] != pair[1] and pair not in edges and pair[::-1] not in edges:
            edges[pair] = _Line(vertices[pair[0]], vertices[pair[1]], data=" ".join(pair))
            edges[pair].view = EdgeViewer()
    layout = SugiyamaLayout(Graph(list(vertices.values()), list(edges.values())).C[0])
    labelled = any(arrow.label for arrow in diagram.arrows)
    layout.xspace, layout.yspace = 16.0, 90.0 if sideways else 46.0 if labelled else 30.0
    if diagram.groups:
        # Room for frames and their labels.
        layout.xspace, layout.yspace = 60.0, 90.0
    layout.route_edge = route_with_lines
    layout.init_all(roots=[vertices[diagram.arrows[0].tail]], optimize=True)
    layout.draw(12)
    lines = {pair: [(float(x), float(y)) for x, y in edge.view._pts] for pair, edge in edges.items()}
    if sideways:
        for box in boxes.values():
            box.w, box.h, box.xy = box.h, box.w, (box.xy[1], box.xy[0])
        lines = {pair: [(y, x) for x, y in points] for pair, points in lines.items()}
    return _Laid(boxes, lines, 28.0 if diagram.groups else 14.0)


def _wrapped(label: str) -> str:
    """A label on lines short enough for a narrow picture."""
    if "\n" in label or len(label) < 18:
        return label
    return re.sub(r": ", ":\n", label) if ": " in label else label.replace(", ", ",\n")


def _paint(diagram: Diagram, labels: dict[str, str], laid: _Laid, path: Path) -> None:
    (left, top), (right, bottom) = laid.limits
    with plt.rc_context({"svg.hashsalt": path.stem, "font.family": "DejaVu Sans"}):
        figure = plt.figure(figsize=(laid.size[0] / _POINTS_PER_INCH, laid.size[1] / _POINTS_PER_INCH))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(left, right), ylim=(bottom, top))
        axes.axis("off")
        texts = _texts(diagram)
        for label, nodes_of in diagram.groups.items():
            _paint_frame(axes, label, [laid.boxes[node] for node in nodes_of])
        for pair, points in laid.lines.items():
            _paint_line(axes, points, _place(points, laid.boxes.values()), texts[pair], texts.get(pair[::-1]))
        for node, box in laid.boxes.items():
            if (node, node) in texts:
                _paint_loop(axes, box, texts[node, node])
            _paint_box(axes, box, labels[node])
        figure.savefig(path, format="svg", metadata={"Date": None})
        plt.close(figure)


def _texts(diagram: Diagram) -> dict[tuple[str, str], str]:
    """What stands at each arrow: its label, in a state diagram the numbers of its rows in the table."""
    texts: dict[tuple[str, str], str] = {}
    for number, arrow in enumerate(diagram.arrows, 1):
        pair, text = (arrow.tail, arrow.head), str(number) if diagram.of_states else arrow.label
        if diagram.of_states and _END in arrow.head:
            text = ""
        if not diagram.of_states and text in texts.values():
            # `a & b -- "label" --> c`: once is enough.
            text = ""
        texts[pair] = ", ".join(filter(None, (texts.get(pair, ""), text)))
    return texts


def _paint_frame(axes: Axes, label: str, boxes: Sequence[_Box]) -> None:
    """A dashed frame around the boxes of a group, with its label inside at the top left."""
    left, right = min(box.xy[0] - box.w / 2 for box in boxes), max(box.xy[0] + box.w / 2 for box in boxes)
    top, bottom = min(box.xy[1] - box.h / 2 for box in boxes), max(box.xy[1] + box.h / 2 for box in boxes)
    around, above = 9.0, 24.0
    corner, size = (left - around, top - above), (right - left + 2 * around, bottom - top + around + above)
    axes.add_patch(Rectangle(corner, *size, fc="#f8fafc", ec="#b45309", lw=1.2, ls="--", zorder=1))
    at = (corner[0] + 5, corner[1] + 5)
    axes.text(*at, label, fontsize=_FONT_PT - 1, color="#b45309", ha="left", va="top", zorder=4)


def _paint_box(axes: Axes, box: _Box, label: str) -> None:
    x, y = box.xy
    style = "circle,pad=0" if box.round else "round,pad=0,rounding_size=6"
    colour = "#334155" if box.round else "#e8f1f8"
    axes.add_patch(
        FancyBboxPatch(
            (x - box.w / 2, y - box.h / 2), box.w, box.h, boxstyle=style, fc=colour, ec="#0072B2", lw=1.1, zorder=3
        )
    )
    axes.text(x, y, label, ha="center", va="center", fontsize=_FONT_PT, color=_INK, zorder=4, linespacing=1.25)


_ARROW: dict[str, Any] = {"mutation_scale": 11, "lw": 1.1, "color": "#475569", "zorder": 2}


def _paint_loop(axes: Axes, box: _Box, text: str) -> None:
    x, y = box.xy[0] + box.w / 2, box.xy[1]
    bend = "arc3,rad=-2.2"
    axes.add_patch(FancyArrowPatch((x, y - 6), (x, y + 6), connectionstyle=bend, arrowstyle="-|>", **_ARROW))
    _paint_text(axes, (x + 8, y - 12), text, "left")


def _paint_line(axes: Axes, points: Sequence[Point], at: Point, text: str, back: str | None) -> None:
    """A line, with a head at both ends where `back` is what stands at an arrow the other way."""
    style = "-|>" if back is None else "<|-|>"
    axes.add_patch(FancyArrowPatch(path=_curve(points), arrowstyle=style, **_ARROW))
    x, y = at
    if back is None or len(text) + len(back) < 20:
        _paint_text(axes, at, ", ".join(filter(None, (text, back))), "center")
    else:
        _paint_text(axes, (x - 8, y), f"{text} \u2193", "right")
        _paint_text(axes, (x + 8, y), f"\u2191 {back}", "left")


def _paint_text(axes: Axes, at: Point, text: str, side: str) -> None:
    if text:
        behind = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.9}
        size = _FONT_PT - 2
        axes.text(*at, text, fontsize=size, ha=side, va="center", color=_INK, zorder=5, bbox=behind)


def _place(points: Sequence[Point], boxes: Iterable[_Box]) -> Point:
    """Where a line's text stands: on no box, and before the middle, so that texts of crossing lines lie apart."""
    curve: Any = _curve(points)
    # The last vertex of a curve made of straight pieces closes nothing and stands at the origin.
    flat = curve.interpolated(20).vertices if len(points) == 2 else curve.cleaned(curves=False).vertices[:-1]
    along: list[Point] = flat.tolist()
    places = [along[int(share * (len(along) - 1))] for share in (0.42, 0.3, 0.55, 0.2, 0.7, 0.8)]
    free = [(x, y) for x, y in places if not any(box.holds(x, y) for box in boxes)]
    x, y = (free or places)[0]
    return x, y


def _curve(points: Sequence[Point]) -> Line:
    """A line through the middles of the segments, bent at the points between."""
    if len(points) == 2:
        return Line(points)
    inner = points[1:-1]
    vertices, codes = [points[0]], [Line.MOVETO]
    for index, point in enumerate(inner):
        x, y = points[index + 2]
        after = (x, y) if index == len(inner) - 1 else ((point[0] + x) / 2, (point[1] + y) / 2)
        vertices += [point, after]
        codes += [Line.CURVE3, Line.CURVE3]
    return Line(vertices, codes)


class Mermaid(SphinxDirective):
    """The picture of a Mermaid block, and for states the table of its arrows."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Called by Sphinx."""
        text = "\n".join(self.content)
        diagram = parsed(text)
        folder = Path(self.env.doctreedir) / "pictures"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"diagram-{hashlib.sha256(text.encode()).hexdigest()[:12]}.svg"
        width = draw(diagram, path)
        page = Path(self.env.doc2path(self.env.docname))
        lines = [f"```{{figure}} {relative(path, page)}", f":alt: {_alt(diagram)}", "```"]
        if width > _NARROW_PT:
            lines.insert(1, ":figclass: wide")
        if diagram.of_states:
            lines += ["", *_table(diagram)]
        found = nodes.Element()
        self.state.nested_parse(StringList(lines, source=str(page)), 0, found)
        return list(found.children)


def relative(path: Path, page: Path) -> str:
    """The path of a picture as a page names it."""
    return os.path.relpath(path, page.parent)


def _alt(diagram: Diagram) -> str:
    told = (f"{_name(diagram, arrow.tail)} to {_name(diagram, arrow.head)}" for arrow in diagram.arrows)
    return "Diagram with arrows from " + ", from ".join(told)


def _name(diagram: Diagram, node: str) -> str:
    if node.startswith(_END):
        return "the beginning" if node.endswith("<") else "the end"
    return diagram.labels[node].replace("\n", " ")


def _table(diagram: Diagram) -> Iterator[str]:
    yield from ("| arrow | from | to | when |", "|---|---|---|---|")
    for number, arrow in enumerate(diagram.arrows, 1):
        if _END not in arrow.head:
            yield f"| {number} | {_name(diagram, arrow.tail)} | {_name(diagram, arrow.head)} | {arrow.label} |"
