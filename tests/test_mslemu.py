"""The emulator must catch what it claims to catch: every fault here is planted."""

import mlx.core as mx
import numpy as np
import pytest
from mslemu import Emulator, EmulatorError, lint, why_missing
from mslemu.source import place_variables

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))

I = "uint i = thread_position_in_grid.x; "  # noqa: E741
L = "uint i = thread_index_in_threadgroup; "


def run(body, n=256, group=256, x=None, out=None, dtype=mx.float32, **options):
    """Run a kernel over `inp` = 0, 1, .. n - 1; the output and the launch."""
    emulator = Emulator(**options)
    kernel = emulator.metal_kernel(
        name="t", input_names=["inp"], output_names=["out"], source=body, header=""
    )
    x = mx.arange(n, dtype=mx.float32) if x is None else x
    made = kernel(
        inputs=[x],
        output_shapes=[(out or n,)],
        output_dtypes=[dtype],
        grid=(n, 1, 1),
        threadgroup=(group, 1, 1),
        template=[("T", x.dtype)],
    )
    return np.array(made[0].astype(mx.float32)), emulator.launches[-1]


def fault(body, match, **options) -> str:
    with pytest.raises(EmulatorError, match=match) as caught:
        run(body, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (I + "out[i] = inp[i + 1];", "OUT OF BOUNDS: read of 4 bytes at byte 1024 of inp"),
        (I + "out[i * 2] = inp[i];", "OUT OF BOUNDS: write"),
        (
            I + "float4 v = *(const device float4*)(inp + i * 4); out[i] = v.x;",
            "OUT OF BOUNDS: read of 4 bytes at byte 1024 of inp|OUT OF BOUNDS: read of 16",
        ),
        (
            "threadgroup float s[256]; " + L + "s[i + 1] = inp[i]; out[i] = 0;",
            "OUT OF BOUNDS: write of threadgroup memory",
        ),
        (
            I + "float4 v = *(const device float4*)(inp + min(i, 252u)); out[i] = v.x + v.w;",
            "misaligned",
        ),
        (I + "if (i < 200) out[i] = float(1 << (i + 32));", "shift"),
        (I + "out[i] = float(int((inp[i] + 1.0f) * 1e9f));", "out of range"),
        (I + "if (i != 7) out[i] = inp[i];", "OUTPUT NOT FULLY WRITTEN: 4 bytes of out"),
        (I + "((device float*)inp)[i] = 1; out[i] = 0;", "WRITE TO A CONST INPUT"),
        (
            "threadgroup uint h[4]; " + L + "if (i == 0) h[1] += 1; out[i] = i;",
            "UNINITIALISED: read of h",
        ),
    ],
    ids=lambda x: x.split(":")[0].split(" ")[0] if x[0].isupper() else "",
)
def test_memory_faults(body, match):
    fault(body, match)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_misaligned_copies_of_vectors(dtype):
    copy = "*(device vec<T, 4>*)(out + 4 * i) = *(const device vec<T, 4>*)(inp + {} * i);"
    x = mx.arange(256).astype(dtype)
    options = {"x": x, "dtype": dtype, "n": 32, "group": 32, "out": 128}
    run(I + copy.format(4), **options)
    fault(I + copy.format(5), "misaligned", **options)


def test_a_fault_names_the_line_of_the_kernel():
    assert "t.metal:" in fault(I + "\n out[i] = inp[i + 1];", "OUT OF BOUNDS")


EXCHANGE = "threadgroup float s[256]; " + L + "s[i] = inp[i];\n{}\nout[i] = s[{}];"


@pytest.mark.parametrize(
    ("between", "read", "fine"),
    [
        ("threadgroup_barrier(mem_flags::mem_threadgroup);", "255 - i", True),
        ("", "255 - i", False),
        ("threadgroup_barrier(mem_flags::mem_device);", "255 - i", False),
        ("threadgroup_barrier(mem_flags::mem_none);", "255 - i", False),
        ("simdgroup_barrier(mem_flags::mem_threadgroup);", "255 - i", False),
        ("simdgroup_barrier(mem_flags::mem_threadgroup);", "i ^ 31", True),
        ("", "i ^ 1", False),  # lock-step of a simdgroup is no promise
    ],
)
def test_barriers_between_a_write_and_a_read(between, read, fine):
    body = EXCHANGE.format(between, read)
    if not fine:
        fault(body, "RACE|UNINITIALISED")
        return
    got, launch = run(body)
    i = np.arange(256)
    np.testing.assert_array_equal(got, i ^ 31 if "^" in read else 255 - i)
    assert launch.threadgroup_bytes == 1024


def test_other_races():
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    fault(
        f"threadgroup float s[256]; {L} s[i] = inp[i]; {barrier}"
        "float a = s[(i + 64) & 255]; s[i] = a; out[i] = a;",
        r"RACE \(write after read\)",
    )
    fault(I + "out[i] = inp[i]; out[0] = 0;", r"RACE \(write after write\)", n=512)
    last_wins = f"threadgroup float s[1]; {L} s[0] = inp[i]; {barrier} out[i] = s[0];"
    fault(last_wins, r"RACE \(write after write\)")
    forward, backward = (run(last_wins, check=False, order=o)[0] for o in ("forward", "reverse"))
    assert forward[0] != backward[0], "unchecked, the order of the lanes decides"


HISTOGRAM = """
threadgroup atomic_uint h[4]; uint i = thread_index_in_threadgroup;
if (i < 4) atomic_store_explicit(&h[i], 0u, memory_order_relaxed);
{}
atomic_fetch_add_explicit(&h[i & 3], 1u, memory_order_relaxed);
threadgroup_barrier(mem_flags::mem_threadgroup);
out[i] = atomic_load_explicit(&h[i & 3], memory_order_relaxed);
"""


def test_atomics_may_meet_but_plain_ones_need_a_barrier():
    got, _ = run(HISTOGRAM.format("threadgroup_barrier(mem_flags::mem_threadgroup);"))
    assert (got == 64).all()
    fault(HISTOGRAM.format(""), "RACE|UNINITIALISED")


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (L + "if (i < 100) {\n{b}\n} out[i] = inp[i];", ["100 lane(s)", "156 lane(s)"]),
        (
            L + "if (i < 128) {\n{b}\n} else {\n{b}\n}\n out[i] = inp[i];",
            ["different threadgroup_barrier"],
        ),
        (L + "if (i > 200) return; {b} out[i] = inp[i];", ["55 lane(s)"]),
        (
            L + "float v = 0; if (i & 1) {\n v = simd_sum(inp[i]);\n }\n out[i] = simd_max(v);",
            ["simd function"],
        ),
    ],
)
def test_divergence(body, parts):
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    report = fault(body.replace("{b}", barrier), "DIVERGENCE")
    for part in parts:
        assert part in report


def test_threadgroup_memory_is_limited():
    fault("threadgroup float s[8193]; " + L + "s[i] = inp[i]; out[i] = s[i];", "32768")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_vector_copies_are_exact_and_counted(dtype):
    x = mx.arange(256).astype(dtype)
    body = I + (
        "if (i < 64) *(device vec<T, 4>*)(out + 4 * i) = *(const device vec<T, 4>*)(inp + 4 * i);"
    )
    got, launch = run(body, x=x, dtype=dtype)
    np.testing.assert_array_equal(got, np.arange(256))
    assert launch.stats["inp"]["read"] == launch.stats["out"]["written"] == 512
    assert launch.unique_bytes == 1024


def test_strided_inputs_keep_their_strides():
    x = mx.arange(512, dtype=mx.float32).reshape(256, 2)[:, 1]
    emulator = Emulator()
    kernel = emulator.metal_kernel(
        name="strided",
        input_names=["inp"],
        output_names=["out"],
        source=I + "out[i] = inp[i * inp_strides[0]];",
        ensure_row_contiguous=False,
    )
    call = {"grid": (256, 1, 1), "threadgroup": (64, 1, 1), "output_dtypes": [mx.float32]}
    made = kernel(inputs=[x], output_shapes=[(256,)], **call)
    np.testing.assert_array_equal(np.array(made[0]), np.arange(256) * 2 + 1)


def test_simd_functions():
    body = (
        L
        + """uint l = thread_index_in_simdgroup; uint v = uint(inp[i]);
uint r = simd_prefix_exclusive_sum(v) * 3
  + simd_shuffle_xor(v, 5) * 7
  + simd_shuffle_up(v, 1)
  + simd_shuffle_down(v, 2)
  + simd_max(v)
  + simd_min(v)
  + simd_prefix_inclusive_sum(v);
uint m = uint((simd_vote::vote_t)simd_ballot(v % 3 == 0));
out[i] = float(r + popcount(m) + uint(simd_any(l == 3)) + uint(simd_all(l < 32)));"""
    )
    v = np.arange(64)
    for order in ("forward", "reverse", "random"):
        got, _ = run(body, n=64, group=64, order=order)
        for i in v:
            g, lane = v[i // 32 * 32 :][:32], i % 32
            expected = g[:lane].sum() * 3 + g[lane ^ 5] * 7 + g[max(lane - 1, 0)]
            expected += g[lane + 2 if lane < 30 else lane] + g.max() + g.min()
            expected += g[: lane + 1].sum() + (g % 3 == 0).sum() + 2
            assert got[i] == expected


def test_edge_groups_are_smaller_unless_the_grid_is_rounded():
    body = I + "out[min(i, 299u)] = float(threads_per_threadgroup.x);"
    got, _ = run(body, n=300)
    assert got[0] == 256 and got[299] == 44
    got, _ = run(body, n=300, rounded_grid=True, check=False)
    assert got[299] == 256


def test_only_declarations_are_moved():
    text = (
        "void k(\n){\nthreadgroup uint b[2][3];\nthreadgroup float* q = f; g((threadgroup int*)b);"
    )
    placed = place_variables(text, "threadgroup")
    assert "EMU_VARIABLE(0, b, uint[2][3]);" in placed
    assert "threadgroup float* q" in placed and "(threadgroup int*)b" in placed
    assert placed.count("\n") == text.count("\n")
    with pytest.raises(SyntaxError):
        place_variables("{ threadgroup uint a = 3; }", "threadgroup")


def test_lint():
    text = "double x = 1.0; float y = 2.5; const float* p = a; std::min(1, 2); // double\n"
    assert len(lint(text + "half z = 1.0h; float4 v = *(const float4*)p;")) == 6
