"""qfilters ppl: perplexity of every method at every budget on the same text."""

from . import options as o
from .console import command_words, note, out, print_defaults, progress, table


def ppl(
    model: o.Model = None,
    adapter_path: o.AdapterPath = None,
    trust_remote_code: o.TrustRemoteCode = None,
    dtype: o.Dtype = None,
    method: o.MethodList = None,
    budget: o.BudgetList = None,
    compression_ratio: o.CompressionRatio = None,
    sinks: o.Sinks = None,
    recent: o.Recent = None,
    kernel: o.Kernel = None,
    filters: o.Filters = None,
    auto_calibrate: o.AutoCalibrate = None,
    data_path: o.DataPath = None,
    text_field: o.TextField = None,
    num_samples: o.PplSamples = None,
    sequence_length: o.SequenceLength = None,
    step_size: o.PplStep = None,
    seed: o.PplSeed = None,
    bootstrap_iters: o.BootstrapIters = None,
    batch_arms: o.BatchArms = None,
    output: o.OutputJson = None,
    save: o.Save = None,
    resume: o.Resume = None,
    overwrite: o.Overwrite = None,
    json: o.Json = None,
    config: o.Config = None,
) -> None:
    """Measure perplexity while the cache is held under a budget (mode stream).

    \b
    qfilters ppl --budget 256 --recent 64
    qfilters ppl --method none,qfilters,knorm --budget 64,128,256 --data-path book.txt
    """
    flags = {k: v for k, v in locals().items() if k != "config"}
    from ..config import PplConfig, resolve

    settings = resolve(PplConfig, config, flags)
    from ..files import atomic_write
    from ..results import document, dump_json
    from ..session import Session, check_methods
    from ..sweep import open_sweep, ppl_cells, run_sweep

    methods = check_methods(settings.method)
    print_defaults(settings)
    with progress() as watch:
        session = Session(settings, watch)
        sweep = open_sweep(session, methods, command_words())
        rows = run_sweep(session, sweep)
    text = dump_json(document(rows, sweep.provenance))
    if sweep.run:
        sweep.run.write_json("summary.json", document(rows, sweep.provenance))
        note(f"kept in {sweep.run.path}")
    if settings.output:
        atomic_write(settings.output, text)
    if settings.as_json:
        out(text)
        return
    columns, cells = ppl_cells(rows)
    table(f"perplexity of {session.model_id} ({sweep.corpus['name']})", columns, cells)
