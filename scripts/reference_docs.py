"""Writes the API reference, one page a room, from docstrings: Markdown, kept by nobody.

    .venv/bin/python scripts/reference_docs.py docs/reference

Reads the sources and imports none of them. What a room exports and the reference does not hold, and
a block that a docstring leaves open, is a warning and exit status 1; the gate builds it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Rooms that somebody who builds on the project calls; inside a room modules are its own affair.
ROOMS = (
    "dvi.types",
    "dvi.config",
    "dvi.acceptance",
    "dvi.sampling",
    "dvi.objectives",
    "dvi.modeling",
    "dvi.drafting",
    "dvi.decoding",
    "dvi.replay",
    "dvi.registry",
    "dvi.drift",
    "dvi.tracking",
    "trainers",
    "serving",
)
HEAD = """\
# {room}

Made by `scripts/reference_docs.py` from the docstrings; names with an underscore are left out.
"""
Definition = ast.ClassDef | ast.FunctionDef


def modules(room: str) -> list[tuple[str, Path]]:
    """Name and file of each module of a room, the room itself first."""
    place = ROOT / room.replace(".", "/")
    if not place.is_dir():
        return [(room, place.with_suffix(".py"))]
    paths = sorted(place.rglob("*.py"), key=lambda path: (path.name != "__init__.py", path))
    return [(_name(path), path) for path in paths]


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def public(nodes: list[ast.stmt]) -> Iterator[Definition]:
    """Classes and functions that have a name and a docstring for others."""
    for node in nodes:
        if not isinstance(node, Definition) or node.name.startswith("_"):
            continue
        if ast.get_docstring(node):
            yield node


def signature(node: Definition) -> str:
    """The line that a caller writes against; of a dataclass its fields."""
    if isinstance(node, ast.FunctionDef):
        result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"{node.name}({ast.unparse(node.args)}){result}"
    fields = [
        ast.unparse(item.target) + ": " + ast.unparse(item.annotation)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_")
    ]
    return f"class {node.name}" + (f"({', '.join(fields)})" if fields else "")


def entry(node: Definition, level: int) -> Iterator[str]:
    """Heading, signature and docstring; of a class its methods too."""
    yield f"{'#' * level} `{node.name}`"
    yield f"```python\n{signature(node)}\n```"
    yield str(ast.get_docstring(node))
    if isinstance(node, ast.ClassDef):
        for method in public(node.body):
            yield from entry(method, level + 1)


def exported(tree: ast.Module) -> list[str]:
    """Names of ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def assigned(tree: ast.Module) -> set[str]:
    """Constants and type aliases, which have no docstring."""
    one = {ast.unparse(node.target) for node in tree.body if isinstance(node, ast.AnnAssign)}
    many = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
    return one | {ast.unparse(target) for target in many}


def warnings(room: str, text: str) -> list[str]:
    """What is wrong with the page of a room."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for _, path in modules(room)]
    plain = set().union(*(assigned(tree) for tree in trees))
    lost = [name for name in exported(trees[0]) if f"### `{name}`" not in text]
    said = [f"{room}.{name} has no docstring" for name in lost if name not in plain]
    if text.count("\n```") % 2:
        said.append(f"{room}: a block in a docstring is left open")
    return said


def page(room: str) -> str:
    """The whole page of a room."""
    parts = [HEAD.format(room=room).strip()]
    for name, path in modules(room):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        entries = [text for node in public(tree.body) for text in entry(node, 3)]
        doc = ast.get_docstring(tree)
        if doc and (entries or name == room):
            parts += [f"## {name}", doc, *entries]
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """File name -> text."""
    made = {f"{room}.md": page(room) for room in ROOMS}
    rows = [f"- [{room}]({room}.md)" for room in ROOMS]
    made["index.md"] = "# Reference\n\nOne page a room:\n\n" + "\n".join(rows) + "\n"
    return made


def main(folder: Path) -> int:
    """Write all pages, remove those of rooms that are gone; 1 if there was a warning."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for path in folder.glob("*.md"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    said = [line for room in ROOMS for line in warnings(room, made[f"{room}.md"])]
    for line in said:
        print(f"warning: {line}", file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
