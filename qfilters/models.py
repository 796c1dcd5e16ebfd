"""Loading a model by alias, folder or hub id, in the dtype that suits the machine.

What can go wrong with a model ends here in one line. What its layers are is not known here.
"""

import json
import re
import warnings
from pathlib import Path

from . import smollm2
from .errors import ModelError, QFiltersWarning, UsageError
from .platform import (
    blas_status,
    cache_dir,
    default_dtype,
    on_cpu,
    require_mlx,
    version,
)

EMBEDDED = "smollm2-135m"
DTYPES = ("auto", "float32", "float16", "bfloat16")


def embedded_folder() -> Path:
    """Where the embedded model is kept, whether it is there or not."""
    return cache_dir() / "models" / EMBEDDED


def resolve(name: str) -> str:
    """Folder of an alias, fetched and converted when needed; any other name unchanged.

    The alias wins over a folder of the same name: write `./smollm2-135m` for the folder.
    """
    if name != EMBEDDED:
        return name
    smollm2.ensure(embedded_folder())
    return str(embedded_folder())


def load(
    name: str = EMBEDDED,
    *,
    adapter_path: str | None = None,
    trust_remote_code: bool = False,
    dtype: str = "auto",
):
    """Load a model and its tokenizer with `mlx_lm.load`.

    Args:
        name: the alias `smollm2-135m`, a model folder, or a hub id (`owner/name`).
        adapter_path: folder of LoRA adapters made by mlx_lm.
        trust_remote_code: run code that the model's files bring along, as in mlx_lm.
        dtype: `float32`, `float16`, `bfloat16`, or `auto`: float32 on the Linux CPU back end
            and as stored elsewhere. On the CPU back end float32 also means that quantised
            layers are dequantised, which a QFiltersWarning says with the memory.

    Returns:
        model, tokenizer (mlx_lm's TokenizerWrapper).

    Raises:
        UsageError: unknown dtype, or mlx without a back end.
        ModelError: the model cannot be found, fetched, or understood.
    """
    require_mlx()
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is unknown: choose one of {', '.join(DTYPES)}")
    if blas_status().failed and on_cpu():
        warnings.warn(blas_status().note, QFiltersWarning, stacklevel=2)
    folder = _folder(resolve(name))
    _check_folder(folder, name)
    if adapter_path is not None:
        adapter_path = _adapter(adapter_path)
    import mlx.core as mx
    import mlx_lm

    wanted = default_dtype() if dtype == "auto" else getattr(mx, dtype)
    try:
        model, tokenizer = mlx_lm.load(
            str(folder),
            tokenizer_config={"trust_remote_code": trust_remote_code},
            adapter_path=adapter_path,
            trust_remote_code=trust_remote_code,
            lazy=True,
        )
        if wanted is not None:
            _cast(model, wanted, name)
        mx.eval(model.parameters())
    except ModelError:
        raise
    except Exception as error:  # a folder's content can break mlx_lm anywhere
        raise ModelError(_explain(error, name, folder)) from error
    return model, tokenizer


def load_tokenizer(name: str = EMBEDDED, trust_remote_code: bool = False):
    """The tokenizer of a model (mlx_lm's TokenizerWrapper) without its weights.

    Raises:
        ModelError: it cannot be found, fetched, or understood.
    """
    from mlx_lm.utils import load_tokenizer as load_wrapped

    folder = resolve(name)
    try:
        return load_wrapped(folder, {"trust_remote_code": trust_remote_code})
    except Exception as error:  # hub, disk and file format errors share no base class
        raise ModelError(
            f"model {name!r}: its tokenizer cannot be loaded ({_one_line(error)})"
        ) from error


def _folder(name: str) -> Path:
    """Local folder of a model; a hub id is downloaded (or found in the hub's own cache)."""
    path = Path(name).expanduser()
    if path.exists():
        return path
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        raise ModelError(
            f"model {name!r}: there is no such folder, and it is neither the alias {EMBEDDED!r} "
            "nor a hub id (owner/name); correct the path or the name"
        )
    from mlx_lm.utils import _download

    try:
        return _download(name)
    except Exception as error:  # hub, network and disk errors share no base class
        raise ModelError(
            f"model {name!r}: no such folder here, and the hub gave none "
            f"({_one_line(error)}); check the name and the network, or give a local folder"
        ) from error


def _check_folder(folder: Path, name: str) -> None:
    if not folder.is_dir():
        raise ModelError(f"model {name!r} is a file: give the folder of an mlx-lm model")
    config = folder / "config.json"
    if not config.is_file():
        raise ModelError(f"model {name!r}: no config.json in {folder}; give an mlx-lm model folder")
    try:
        model_type = json.loads(config.read_text(encoding="utf-8"))["model_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"model {name!r}: {config} is damaged or names no model_type ({_one_line(error)}); "
            "fetch or convert the model again"
        ) from error
    if not any(folder.glob("model*.safetensors")):
        raise ModelError(
            f"model {name!r} ({model_type}): no model*.safetensors in {folder}; "
            "convert other formats with `mlx_lm.convert`"
        )


def _adapter(path: str) -> str:
    folder = Path(path).expanduser()
    for file in ("adapter_config.json", "adapters.safetensors"):
        if not (folder / file).is_file():
            raise ModelError(
                f"adapter {path!r}: no {file} there; give the folder that mlx_lm.lora wrote"
            )
    return str(folder)


def _explain(error: Exception, name: str, folder: Path) -> str:
    text = _one_line(error)
    if found := re.match(r"Model type (.+) not supported", text):
        return (
            f"model {name!r} has model_type {found[1]!r}, which mlx-lm {version('mlx-lm')} does "
            "not support; choose a model of a type it does"
        )
    return f"model {name!r} cannot be loaded from {folder}: {text}; fetch or convert it again"


def _one_line(error: Exception, limit: int = 300) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, KeyError):
        text = f"missing key {text}"
    return text if len(text) <= limit else f"{text[:limit]}..."


def _cast(model, dtype, name: str) -> None:
    """Give the floating parameters `dtype`, lazily; float32 on CPU also undoes quantisation."""
    import mlx.core as mx
    from mlx.utils import tree_map_with_path

    # Some models keep parameters that float16 would spoil, and say which.
    allowed = getattr(model, "cast_predicate", lambda _: True)
    stored = _gigabytes(model)

    def convert(path, x):
        wide = dtype == mx.float32 or allowed(path)
        return x.astype(dtype) if wide and mx.issubdtype(x.dtype, mx.floating) else x

    model.update(tree_map_with_path(convert, model.parameters()))
    if dtype == mx.float32 and on_cpu() and any("scales" in m for m in model.modules()):
        _dequantise(model, name)
        warnings.warn(
            f"{name}: quantised weights become float32 on the CPU back end, "
            f"{_gigabytes(model):.2f} GB of memory instead of {stored:.2f} "
            "(--dtype bfloat16 keeps them quantised, much slower)",
            QFiltersWarning,
            stacklevel=3,
        )


def _dequantise(model, name: str) -> None:
    import mlx.core as mx
    from mlx_lm.utils import dequantize_model

    if any(m.get("global_scale") is not None for m in model.modules()):
        raise ModelError(
            f"model {name!r}: its experts have a global scale, which cannot be dequantised for "
            "the CPU; --dtype bfloat16 leaves them as they are (slow)"
        )
    dequantize_model(model)
    model.set_dtype(mx.float32)


def _gigabytes(model) -> float:
    from mlx.utils import tree_flatten

    return sum(x.nbytes for _, x in tree_flatten(model.parameters())) / 1e9
