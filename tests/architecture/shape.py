"""`make shape`: what a reader of the whole house should see. It prints, and never fails.

A long module may be one concept and a short one a whole one; no number decides that. So ask of each
module here one thing: is it one concept, whole?
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from statistics import median

from tests.architecture.structure import defined_twice, imports, modules

LONGEST = 20
SHORT_LINES = 60


def rooms() -> Iterator[str]:
    """Modules and lines of each folder."""
    lines: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for module in modules().values():
        room = module.name if module.is_package else module.name.rpartition(".")[0]
        lines[room] += module.lines
        count[room] += 1
    for room in sorted(lines):
        yield f"{lines[room]:7} lines {count[room]:4} modules  {room}"
    sizes = [module.lines for module in modules().values()]
    yield f"{sum(sizes):7} lines {len(sizes):4} modules  in all; the median has {median(sizes):g}"


def longest() -> Iterator[str]:
    """The longest modules."""
    for module in sorted(modules().values(), key=lambda one: -one.lines)[:LONGEST]:
        yield f"{module.lines:7}  {module.name}"


def small_with_one_importer() -> Iterator[str]:
    """Short modules that only one other module imports."""
    importers: Counter[str] = Counter()
    last = {}
    for name, others in imports().items():
        for other in others:
            importers[other] += 1
            last[other] = name
    for name, module in modules().items():
        if module.lines < SHORT_LINES and importers[name] == 1 and not module.is_package:
            yield f"{module.lines:7}  {name}, for {last[name]}"


def names_defined_twice() -> Iterator[str]:
    """Public classes that several modules define."""
    for name, places in defined_twice(modules()).items():
        yield f"{name}: {', '.join(places)}"


def forwarders() -> Iterator[str]:
    """Functions whose one statement passes their own arguments on, unchanged, to another."""
    for module in modules().values():
        found = [
            node.name
            for node in ast.walk(module.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _forwards(node)
        ]
        if found:
            yield f"{module.name}: {', '.join(found)}"


def _forwards(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if node.decorator_list:
        return False
    body = [one for one in node.body if not _is_docstring(one)]
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    call = body[0].value
    call = call.value if isinstance(call, ast.Await) else call
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    own = [one.arg for one in (*node.args.args, *node.args.kwonlyargs) if one.arg != "self"]
    passed = [one.id for one in call.args if isinstance(one, ast.Name)]
    passed += [one.value.id for one in call.keywords if isinstance(one.value, ast.Name)]
    return passed == own and len(passed) == len(call.args) + len(call.keywords)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def main() -> None:
    for report in (rooms, longest, small_with_one_importer, names_defined_twice, forwarders):
        print(f"\n{str(report.__doc__).rstrip('.')}:")
        print("\n".join(report()) or "        none")


if __name__ == "__main__":
    main()
