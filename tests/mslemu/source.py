"""The complete text that MLX generates for a kernel, made fit for a C++ compiler.

One thing is changed: `threadgroup T name[n];` becomes a slot in a per-group arena.
"""

import re

import mlx.core as mx

MSL_TYPES = {
    mx.float32: "float",
    mx.float16: "float16_t",
    mx.bfloat16: "bfloat16_t",
    mx.int32: "int32_t",
    mx.uint32: "uint32_t",
    mx.bool_: "bool",
}

_INSTANCE = re.compile(r'\ntemplate \[\[host_name\("[^"]*"\)\]\] \[\[kernel\]\] decltype\(.*?\n')
_SIGNATURE = re.compile(r"\[\[kernel\]\] void (\w+)\(\n(.*?)\) \{\n", re.S)
_TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|[A-Za-z_]\w*|\d[\w.]*|\s+|.", re.S)
_VARIABLE = re.compile(r"{word}\s+([\w<>,\s]+?)\s*\b([A-Za-z_]\w*)\s*((?:\[[^\]]*\]\s*)*);")


def generate(declaration: dict, call: dict) -> str:
    """The text as MLX records it. Since 0.32.1 it does so without a Metal device too."""
    kernel = mx.fast.metal_kernel(**declaration)
    recorded = []

    def record(entry):
        if entry["type"] == "primitive" and entry["name"] == "CustomKernel":
            recorded.append(entry["arguments"][1])

    options = {k: v for k, v in call.items() if k != "inputs"}
    mx.export_function(record, lambda *x: kernel(inputs=list(x), **options), *call["inputs"])
    return recorded[0]


def compilable(text: str) -> str:
    """The generated text without Metal's explicit instantiation, its variables in the arena."""
    return place_variables(_INSTANCE.sub("\n", text), "threadgroup")


def place_variables(text: str, word: str) -> str:
    """Turn declarations that begin with `word` into EMU_VARIABLE; line numbers stay."""
    pattern = re.compile(_VARIABLE.pattern.replace("{word}", word))
    out, done, depth, before, count = [], 0, 0, ";", 0
    for token in _TOKEN.finditer(text):
        part, at = token[0], token.start()
        if at < done or part.isspace() or part.startswith(("//", "/*")):
            continue
        if part in "([":
            depth += 1
        elif part in ")]":
            depth -= 1
        elif part == word and depth == 0 and before in ";{})":
            found = pattern.match(text, at)
            if found is None and "=" in text[at : text.index(";", at)].split("*")[0]:
                raise SyntaxError(f"no initialiser here: {text[at : text.index(';', at)]}")
            if found:
                kind, name, sizes = found[1].strip(), found[2], "".join(found[3].split())
                lines = "\n" * found[0].count("\n")
                out += [text[done:at], f"EMU_VARIABLE({count}, {name}, {kind}{sizes});", lines]
                count, done, part = count + 1, found.end(), ";"
        before = part
    return "".join([*out, text[done:]])


def entry(text: str, template: list) -> str:
    """The C++ statement that calls the generated kernel for the lane that runs."""
    name, parameters = _SIGNATURE.search(text).groups()
    arguments = []
    for parameter in parameters.split(",\n"):
        buffer = re.match(r"\s*(.*?)([*&]) \w+ \[\[buffer\((\d+)\)\]\]$", parameter)
        if buffer is None:
            arguments.append(f"emu::a_{parameter.split()[1]}()")
            continue
        kind = re.sub(r"\b(device|constant)\b", "", buffer[1]).strip()
        pointer = f"({kind}*)emu::cx.buffer[{buffer[3]}]"
        arguments.append(f"*{pointer}" if buffer[2] == "&" else pointer)
    return f"{name}{_template(template)}({', '.join(arguments)});"


def _template(template: list) -> str:
    values = [str(int(v)) if isinstance(v, int) else MSL_TYPES[v] for _, v in template]
    return f"<{', '.join(values)}>" if values else ""


def instance(text: str, template: list) -> str:
    """An explicit instantiation in plain C++ terms, for a compiler that only checks."""
    name, parameters = _SIGNATURE.search(text).groups()
    plain = re.sub(r"\s*\[\[.*?\]\]", "", parameters)
    return f"\ntemplate void {name}{_template(template)}({plain});\n" if template else ""


_FORBIDDEN = {
    r"\bdouble\b": "double does not exist in MSL",
    r"\b(?:new|delete|try|catch|throw|virtual|goto|noexcept|thread_local)\b": "not allowed in MSL",
    r"\bstd::": "there is no std:: in MSL",
    r"#\s*include": "MLX passes one source string",
    r"(?<![\w.])\d+\.\d*(?:e[+-]?\d+)?(?![\dfFhHeE.bw])": "double literal: write the suffix f",
    r"(?:^|[;{}(,])\s*(?:const\s+)?(?:float|half|bfloat|u?int|u?short|uchar|T|U)\d?\s*[*&]\s*\w+": (
        "pointer or reference without an address space"
    ),
    r"\((?:const\s+)?(?!device|constant|threadgroup|thread\b)[\w:]+(?:<[^<>]*>)?\s*\*+\s*\)": (
        "cast to a pointer without an address space"
    ),
}


def lint(text: str) -> list[str]:
    """What a C++ compiler accepts and Apple's does not, one line each."""
    code = re.sub(r"//[^\n]*", "", text)
    return [
        f"line {code.count(chr(10), 0, found.start()) + 1}: {found[0].strip()!r}: {why}"
        for pattern, why in _FORBIDDEN.items()
        for found in re.finditer(pattern, code, re.M)
    ]
