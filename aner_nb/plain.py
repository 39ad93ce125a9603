"""Plain data from files that anybody may have written: JSON and YAML, bounded, finite, no key twice."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from typing import Any, Final, cast

import yaml

from aner_nb.errors import CaseError

MAX_DEPTH: Final = 64
"""Lists and mappings inside each other."""
MAX_YAML_NODES: Final = 200_000
"""Of a YAML text with every alias written out: a few lines of aliases can stand for billions of values."""
_SMALLEST: Final = -(2**63)
_LARGEST: Final = 2**64 - 1


def read_json(data: bytes) -> Any:
    """Read JSON of UTF-8 text.

    Raises
    ------
    ValueError
        If it is not JSON, has NaN, an infinity, a whole number of over 64 bits, a key twice, half a character,
        or nests deeper than `MAX_DEPTH`.
    """
    try:
        value = json.loads(
            data.decode(), parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_distinct
        )
    except RecursionError as error:
        raise ValueError(f"values nest deeper than {MAX_DEPTH}") from error
    check_plain(value)
    return value


def read_yaml(text: str, where: str) -> Any:
    """Read YAML as plain data.

    Raises
    ------
    CaseError
        With line and column, if the text is not YAML or repeats a key; or if its values cannot be told in JSON.
    """
    loader = yaml.SafeLoader("")
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_nodes(node, where)
        value: object = loader.construct_document(node)
        check_plain(value)
    except yaml.MarkedYAMLError as error:
        problem = error.problem or error.context or "it cannot be read"
        raise _not_yaml(problem, where, error.problem_mark or error.context_mark) from error
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        # Beyond its own errors, the library lets through what conversions of odd values raise.
        raise _not_yaml(str(error) or type(error).__name__, where, None) from error
    finally:
        loader.dispose()
    return value


def check_plain(value: object) -> None:
    """Hold a value to what JSON can tell exactly.

    Raises
    ------
    ValueError
        With the reason in a few words.
    """
    pending: list[tuple[object, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"values nest deeper than {MAX_DEPTH}")
        if isinstance(item, Mapping):
            for key, inner in cast("Mapping[object, object]", item).items():
                pending += [(key, depth + 1), (inner, depth + 1)]
        elif isinstance(item, list):
            pending += [(inner, depth + 1) for inner in cast("list[object]", item)]
        else:
            _check_leaf(item)


def _check_leaf(item: object) -> None:
    if isinstance(item, int) and not _SMALLEST <= item <= _LARGEST:
        raise ValueError("a whole number has over 64 bits")
    if isinstance(item, str) and not item.isascii():
        item.encode()  # half of a surrogate pair raises
    if item is not None and not isinstance(item, str | int | float | datetime.date):
        raise ValueError(f"a value of type {type(item).__name__} is neither text, number, list nor mapping")


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is beyond the largest number")
    return number


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:60]!r} is repeated")
    return found


def _not_yaml(problem: str, where: str, mark: Any) -> CaseError:
    place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return CaseError(f"not YAML: {problem}.", where=f"{where}{place}", remedy="Correct it there.")


def _check_nodes(root: yaml.Node, where: str) -> None:
    """Refuse repeated keys, an alias inside of what it stands for, and aliases that multiply without end."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()
    pending: list[tuple[yaml.Node, bool]] = [(root, False)]
    while pending:
        node, visited = pending.pop()
        identity = id(node)
        inner = _inner(node)
        if visited:
            open_nodes.discard(identity)
            sizes[identity] = 1 + sum(sizes[id(item)] for item in inner)
            if sizes[identity] > MAX_YAML_NODES:
                raise CaseError(
                    f"with its aliases written out it has over {MAX_YAML_NODES:,} values.",
                    where=where,
                    remedy="Use fewer aliases.",
                )
        elif identity in open_nodes:
            raise _not_yaml("an alias stands inside of what it stands for", where, node.start_mark)
        elif identity not in sizes:
            if isinstance(node, yaml.MappingNode):
                _check_keys(node, where)
            open_nodes.add(identity)
            pending.append((node, True))
            pending += [(item, False) for item in inner]


def _inner(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
        return [item for pair in pairs for item in pair]
    return cast("list[yaml.Node]", node.value) if isinstance(node, yaml.SequenceNode) else []


def _check_keys(node: yaml.MappingNode, where: str) -> None:
    first: dict[tuple[str, str], Any] = {}
    for key, _ in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
        if not isinstance(key, yaml.ScalarNode):
            continue
        name = (str(key.tag), str(key.value))
        mark: Any = key.start_mark
        if name in first:
            raise CaseError(
                f"the key {name[1][:60]!r} is repeated; it stands in line {first[name].line + 1} already.",
                where=f"{where}, line {mark.line + 1}, column {mark.column + 1}",
                remedy="Keep one of the two.",
            )
        first[name] = mark
