"""qfilters ruler: the 13 tasks of RULER, every method at every budget on the same prompts."""

from . import options as o
from . import ruler_options as r
from .console import command_words, draw, note, out, print_defaults, progress, table


def ruler(
    model: o.Model = None,
    adapter_path: o.AdapterPath = None,
    trust_remote_code: o.TrustRemoteCode = None,
    dtype: o.Dtype = None,
    chat_template_config: o.ChatTemplateConfig = None,
    task: r.Task = None,
    length: r.LengthList = None,
    num_samples: r.RulerSamples = None,
    seed: r.RulerSeed = None,
    source: r.Source = None,
    haystack: r.Haystack = None,
    depth: r.Depth = None,
    vt_chains: r.VtChains = None,
    max_tokens: r.AnswerTokens = None,
    answer_prefix: r.AnswerPrefix = None,
    method: o.MethodList = None,
    budget: r.RulerBudgets = None,
    compression_ratio: r.CompressionRatios = None,
    protocol: r.Protocol = None,
    mode: r.Mode = None,
    sinks: o.Sinks = None,
    recent: o.Recent = None,
    skip_layers: r.SkipLayers = None,
    kernel: o.Kernel = None,
    filters: o.Filters = None,
    auto_calibrate: o.AutoCalibrate = None,
    prefill_step_size: o.PrefillStepSize = None,
    bootstrap_iters: o.BootstrapIters = None,
    dump_prompts: r.DumpPrompts = None,
    figures: o.Figures = None,
    output: o.OutputJson = None,
    save: o.Save = None,
    resume: o.Resume = None,
    overwrite: o.Overwrite = None,
    json: o.Json = None,
    config: o.Config = None,
) -> None:
    """Ask long prompts with known answers: one prefill per prompt, every arm answers from it.

    \b
    qfilters ruler --task vt
    qfilters ruler --task niah --length 1024,2048 --budget 256,512 --num-samples 25
    qfilters ruler --config seed-table
    """
    flags = {k: v for k, v in locals().items() if k != "config"}
    from ..config import RulerConfig, resolve

    settings = resolve(RulerConfig, config, flags)
    from ..files import atomic_write
    from ..results import dump_json
    from ..ruler.plots import pictures
    from ..ruler.sweep import check, dump_prompts, finish, open_ruler, run_ruler
    from ..ruler.table import difference_tables, mean_table, task_tables
    from ..session import Session

    tasks, contest = check(settings)
    print_defaults(settings)
    if settings.dump_prompts:
        _dump(settings, dump_prompts(settings, Session(settings).bare_tokenizer, tasks))
        return
    with progress() as watch:
        session = Session(settings, watch)
        sweep = open_ruler(session, tasks, contest, command_words())
        try:
            rows = run_ruler(session, sweep)
        except KeyboardInterrupt:
            if sweep.run:
                note(f"interrupted: the answers are in {sweep.run.path}, go on with --resume")
            raise
    document = finish(session, sweep, rows)
    if sweep.run:
        note(f"kept in {sweep.run.path}")
        if settings.figures != "none":
            draw(pictures(document["rows"]), sweep.run.path, settings.figures)
    if settings.output:
        atomic_write(settings.output, dump_json(document))
    if settings.as_json:
        out(dump_json(document))
        return
    for found in (*task_tables(document), *difference_tables(document)):
        table(*found)
    if found := mean_table(document):
        table(*found, text=3)


def _dump(settings, text: str) -> None:
    from ..files import atomic_write

    if settings.dump_prompts == "-":
        out(text.rstrip("\n"))
        return
    atomic_write(settings.dump_prompts, text)
    note(f"prompts are in {settings.dump_prompts}")
