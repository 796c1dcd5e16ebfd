"""qfilters methods: what can be compared, and what each method needs."""

from .console import out, table


def methods(json: bool = False) -> None:
    """List the eviction methods: family, needs, cost per step, source and options."""
    from ..inspection import method_rows
    from ..results import dump_json

    rows = method_rows()
    if json:
        out(dump_json(rows))
        return
    columns = list(rows[0])
    table("", columns, [list(row.values()) for row in rows], text=len(columns))
