"""qfilters calibrate: text and a model in, a filter artifact out."""

from . import options as o
from .console import note, out, print_defaults, progress


def calibrate(
    model: o.Model = None,
    adapter_path: o.AdapterPath = None,
    trust_remote_code: o.TrustRemoteCode = None,
    dtype: o.Dtype = None,
    data_path: o.DataPath = None,
    text_field: o.TextField = None,
    num_samples: o.CalibrationSamples = None,
    sequence_length: o.SequenceLength = None,
    step_size: o.CalibrationStep = None,
    seed: o.CalibrationSeed = None,
    output: o.OutputFile = None,
    overwrite: o.Overwrite = None,
    json: o.Json = None,
    config: o.Config = None,
) -> None:
    """Find one direction per KV head from the queries of a model, and keep them as a .npz file.

    \b
    qfilters calibrate
    qfilters calibrate --model mlx-community/Llama-3.2-1B-Instruct-4bit --data-path book.txt
    """
    flags = {k: v for k, v in locals().items() if k != "config"}
    import hashlib
    from pathlib import Path

    from ..config import CalibrateConfig, resolve
    from ..errors import QFiltersError

    settings = resolve(CalibrateConfig, config, flags)
    from ..inspection import filter_rows, filter_summary
    from ..platform import provenance
    from ..results import document, dump_json
    from ..session import Session, filters_path

    with progress() as watch:
        session = Session(settings, watch)
        path = Path(settings.output) if settings.output else filters_path(session.model_id)
        if path.exists() and not settings.overwrite:
            raise QFiltersError(f"{path} exists: replace it with --overwrite or name another")
        print_defaults(settings)
        filters = session.calibrated()
    filters.save(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if settings.as_json:
        out(dump_json(document(filter_rows(filters), {**provenance(), "sha256": digest})))
        return
    note(filter_summary(filters))
    out(f"{path}  sha256 {digest[:12]}")
