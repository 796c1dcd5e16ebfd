"""The command line: parse, make settings, call the library, print. No arithmetic here.

`qfilters --help` must not import mlx, so every command imports what it needs when it runs.
"""

import typer

from .console import Group
from .options import Version

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def main(version: Version = False) -> None:
    """KV-cache eviction for MLX language models: calibrate, generate, measure."""


def _register() -> None:
    from .bench import bench
    from .calibrate import calibrate
    from .doctor import doctor
    from .generate import generate
    from .inspect_filters import inspect_filters
    from .methods import methods
    from .ppl import ppl
    from .report import report
    from .ruler import ruler
    from .study import study

    app.command()(calibrate)
    app.command("inspect")(inspect_filters)
    app.command()(generate)
    app.command()(ppl)
    app.command()(ruler)
    app.command()(study)
    app.command()(methods)
    app.command()(report)
    app.command()(doctor)
    app.add_typer(bench, name="bench")


_register()
