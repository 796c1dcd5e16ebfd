// What both vocabularies, Metal's and CUDA's, need: marks for the compiler, threadgroup variables,
// 16-bit floats, and values handed around in a simdgroup.
#pragma once
#include <cstddef>
#include <cstdint>

#include "runtime.h"

#define EMU_UNCHECKED __attribute__((no_sanitize("thread")))
// A collective may not be inlined: its frame must not be mixed with the lane's.
#define EMU_CALL __attribute__((noinline, no_sanitize("thread")))
// A collective is known by the line it is called from.
#define EMU_LINE int line = __builtin_LINE()

#define EMU_VARIABLE(id, name, ...)                                                \
  auto& name = *(typename emu::as_written<__VA_ARGS__>::type*)emu::threadgroup_variable( \
      id, sizeof(__VA_ARGS__), alignof(__VA_ARGS__) < 16 ? 16 : alignof(__VA_ARGS__), #name)
namespace emu {
template <class T>
struct as_written {
  using type = T;
};
}  // namespace emu

typedef _Float16 half;

// To float implicitly, from anything only explicitly.
struct bfloat {
  uint16_t bits;
  bfloat() = default;
  explicit constexpr bfloat(float f) : bits(rounded(f)) {}
  explicit constexpr bfloat(half f) : bits(rounded((float)f)) {}
  explicit constexpr bfloat(int f) : bits(rounded((float)f)) {}
  explicit constexpr bfloat(unsigned f) : bits(rounded((float)f)) {}
  constexpr operator float() const { return __builtin_bit_cast(float, (uint32_t)bits << 16); }
  static constexpr uint16_t rounded(float f) {
    const uint32_t u = __builtin_bit_cast(uint32_t, f);
    if ((u & 0x7fffffff) > 0x7f800000) return (u >> 16) | 0x40;
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
  }
};

inline constexpr bfloat operator-(bfloat a) { return bfloat(-(float)a); }

namespace emu {

// What the lanes of a simdgroup gave to one call.
template <class T>
struct Gathered {
  const SimdGroup* group;
  int parity;
  unsigned mask, me;

  EMU_UNCHECKED bool has(unsigned lane) const { return lane < SIMD && mask >> lane & 1; }

  // Of a lane that is not there: junk, as MSL leaves it undefined.
  EMU_UNCHECKED T operator[](unsigned lane) const {
    unsigned char bytes[16];
    for (int i = 0; i < 16; ++i) bytes[i] = 0xA5 + 7 * i;
    if (has(lane)) __builtin_memcpy(bytes, group->slot[parity][lane], sizeof(T));
    T value;
    __builtin_memcpy(&value, bytes, sizeof value);
    return value;
  }

  // Adjacent pairs first, then pairs of pairs: the same result in every lane.
  template <class F>
  EMU_UNCHECKED T reduced(F f) const {
    T v[SIMD];
    unsigned n = 0;
    for (unsigned l = 0; l < SIMD; ++l)
      if (has(l)) v[n++] = (*this)[l];
    for (; n > 1; n = (n + 1) / 2)
      for (unsigned i = 0; i < n; i += 2) v[i / 2] = i + 1 < n ? f(v[i], v[i + 1]) : v[i];
    return v[0];
  }
};

template <class T>
EMU_CALL Gathered<T> gather(T value, int line) {
  static_assert(sizeof(T) <= 16);
  SimdGroup& group = simdgroup_of(cx.lane);
  const unsigned me = cx.lane->index % SIMD;
  const int parity = group.parity;
  __builtin_memcpy(group.slot[parity][me], &value, sizeof value);
  simd_collective(line, false, 0);
  return {&group, parity, group.took_part[parity], me};
}

}  // namespace emu
