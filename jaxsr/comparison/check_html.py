"""A check as one HTML page that needs nothing else: the module tree, coloured by error."""

import math
from dataclasses import dataclass

from jaxsr.comparison.check_result import CheckResult, ModuleError
from jaxsr.comparison.check_text import cells, fault_line, headline, rule


@dataclass(frozen=True)
class Branch:
    """A line of the module tree."""

    name: str
    depth: int
    module: ModuleError
    colour: str
    """CSS colour of its error."""
    is_fault: bool

    @property
    def amplifies(self) -> bool:
        return self.module.amplification > 100


def page(result: CheckResult) -> str:
    """The page's source."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("jaxsr.comparison", "."), autoescape=True)
    return environment.get_template("page.html.jinja").render(
        result=result,
        headline=headline(result),
        fault=fault_line(result) if result.fault is not None else "",
        rows=[(row, cells(row)) for row in result.rows],
        tree=_tree(result),
        rule=rule(),
    )


def colour(error: ModuleError) -> str:
    """Green at a hundredth of the bound or less, yellow near it, red from the bound on."""
    ratio = error.worst.ratio
    if ratio > 1:
        return "hsl(0 75% 48%)"
    decades = max(math.log10(ratio), -2.0) if ratio > 0 else -2.0
    return f"hsl({round(50 - 45 * decades)} 60% 42%)"


def _tree(result: CheckResult) -> list[Branch]:
    """Parents before children, children in order of execution."""
    order = {one.path: position for position, one in enumerate(result.modules)}

    def first_position(path: str) -> int:
        """Where the first call inside a path ended."""
        inside = [n for p, n in order.items() if not path or p == path or p.startswith(f"{path}.")]
        return min(inside, default=len(order))

    def sort_key(one: ModuleError) -> list[tuple[int, str]]:
        parts = one.path.split(".") if one.path else []
        prefixes = [".".join(parts[: i + 1]) for i in range(len(parts))]
        return [(first_position(prefix), prefix) for prefix in prefixes]

    fault = result.fault.path if result.fault is not None else None
    branches: list[Branch] = []
    for one in sorted(result.modules, key=sort_key):
        parts = one.path.split(".")
        above = [".".join(parts[:n]) for n in range(1, len(parts))]
        ancestors = [path for path in above if path in order]  # a ModuleList is never called
        name = one.path.removeprefix(ancestors[-1] + ".") if ancestors else one.path
        depth = len(ancestors)
        branches.append(Branch(name, depth, one, colour(one), one.path == fault))
    return branches
