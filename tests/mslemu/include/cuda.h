// The words of CUDA that the kernels' own cuda.h builds on, on the fibers of runtime.h.
#pragma once
#include <array>
#include <cstring>

#include "lanes.h"

#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline

using __half = half;
using __nv_bfloat16 = bfloat;

namespace mlx::core::cu {
using Shape = std::array<int32_t, 10>;
using Strides = std::array<int64_t, 10>;
}  // namespace mlx::core::cu
namespace cooperative_groups {}

struct uint3 {
  unsigned x, y, z;
};
EMU_UNCHECKED inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
EMU_UNCHECKED inline uint3 as_uint3(emu::U3 a) { return {a.x, a.y, a.z}; }
#define threadIdx as_uint3(emu::cx.lane->position)
#define blockIdx as_uint3(emu::cx.group)
#define blockDim as_uint3(emu::cx.group_size)

inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

EMU_CALL static void __syncthreads(EMU_LINE) {
  emu::threadgroup_barrier(emu::MEM_DEVICE | emu::MEM_THREADGROUP, line);
  asm volatile("" ::: "memory");
}
template <class T>
EMU_CALL T __shfl_xor_sync(unsigned, T value, int mask, EMU_LINE) {
  const auto all = emu::gather(value, line);
  return all[all.me ^ mask];
}
template <class T>
EMU_CALL T __shfl_up_sync(unsigned, T value, unsigned delta, EMU_LINE) {
  const auto all = emu::gather(value, line);
  return all.me < delta ? value : all[all.me - delta];
}
EMU_CALL static unsigned atomicAdd(unsigned* p, unsigned value) {
  emu::atomic_access(p, sizeof *p, false, true);
  emu::atomic_access(p, sizeof *p, true, true);
  const unsigned old = *p;
  *p += value;
  return old;
}

namespace emu {
// A shape or strides as an argument by value, from the `n` numbers that were passed.
template <class T>
EMU_UNCHECKED T copied(const void* from, int n) {
  T to{};
  memcpy(to.data(), from, n * sizeof to[0]);
  return to;
}
}  // namespace emu
