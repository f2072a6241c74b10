"""Programs that forget to wait: a module again and again, each time with one dependency left out."""

import ast
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

STATEMENTS = ("_wait", "_record_stream", "_wait_for", "_remember")
CALLS, DEPENDENCIES = ("submit", "submit_io"), ("reads", "writes", "inputs")


def mutants(module: ModuleType, inside: Sequence[str] = ()) -> Iterator[tuple[str, ModuleType]]:
    """Copies of a module, each without one of its

        self._wait(...), self._record_stream(...), self._wait_for(...), self._remember(...)    as statements
        things in reads=, writes=, inputs= of a call of submit or submit_io            as elements, or whole if not a list

    and what was left out, with its line. The module itself is not touched. ``inside``: only in these classes and functions
    at the top of the module.
    """
    source = inspect.getsource(module)
    for number in range(_Remove.places(source, inside)):
        remove = _Remove(number)
        tree = remove.applied(source, inside)
        copy = ModuleType(module.__name__)
        copy.__dict__.update(__package__=module.__package__, __file__=module.__file__)
        exec(compile(tree, str(module.__file__), "exec"), copy.__dict__)
        yield remove.what, copy


@contextmanager
def installed(module: ModuleType, mutant: ModuleType) -> Iterator[None]:
    """In the block, the functions and methods of a module do what those of its mutant do, wherever they were imported."""
    swapped: list[tuple[FunctionType, Any]] = []
    theirs = dict(_functions(mutant))
    for name, function in _functions(module):
        if function.__code__ != theirs[name].__code__:
            swapped.append((function, function.__code__))
            function.__code__ = theirs[name].__code__
    try:
        assert len(swapped) == 1, f"a mutant differs in one function, this one in {len(swapped)}"
        yield
    finally:
        for function, code in swapped:
            function.__code__ = code


def _functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """All functions that are defined in a module, however they are wrapped."""
    for owner in [module, *(v for v in vars(module).values() if inspect.isclass(v) and v.__module__ == module.__name__)]:
        for name, value in vars(owner).items():
            value = getattr(value, "fget", value)  # of a property
            function = inspect.unwrap(value) if callable(value) else getattr(value, "__func__", None)
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield f"{owner.__name__}.{name}", function


class _Remove(ast.NodeTransformer):
    """Removes the n-th dependency that it meets."""

    def __init__(self, number: int) -> None:
        self.number, self.met, self.what = number, 0, ""

    @classmethod
    def places(cls, source: str, inside: Sequence[str]) -> int:
        counter = cls(-1)
        counter.applied(source, inside)
        return counter.met

    def applied(self, source: str, inside: Sequence[str]) -> ast.Module:
        tree = ast.parse(source)
        for n, node in enumerate(tree.body):
            if not inside or getattr(node, "name", None) in inside:
                tree.body[n] = self.visit(node)
        return tree

    def _hit(self, node: ast.AST, what: str) -> bool:
        self.met += 1
        if self.met - 1 != self.number:
            return False
        self.what = f"line {node.lineno} without {what}"
        return True

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in STATEMENTS:
            to_self = isinstance(call.func.value, ast.Name) and call.func.value.id == "self"
            if to_self and self._hit(node, ast.unparse(node)):
                return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute) and node.func.attr in CALLS:
            for keyword in [k for k in node.keywords if k.arg in DEPENDENCIES]:
                if isinstance(keyword.value, ast.List | ast.Tuple):
                    kept = [e for e in keyword.value.elts if not self._hit(e, f"{ast.unparse(e)} in {keyword.arg}")]
                    keyword.value.elts = kept
                elif self._hit(keyword.value, f"{keyword.arg}={ast.unparse(keyword.value)}"):
                    node.keywords.remove(keyword)
        return self.generic_visit(node)
