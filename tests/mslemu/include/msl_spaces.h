// Declarations only, for clang -fsyntax-only: the address spaces of MSL as distinct ones, so that
// mixing device, constant, threadgroup and thread pointers is an error as under Apple's compiler.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define thread
#define EMU_VARIABLE(id, name, ...) extern threadgroup as_written<__VA_ARGS__> name
template <class T>
struct as_written_ {
  using type = T;
};
template <class T>
using as_written = typename as_written_<T>::type;

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef half float16_t;
typedef __bf16 bfloat;
typedef bfloat bfloat16_t;

template <class T, int N>
using vec = T __attribute__((ext_vector_type(N)));
typedef vec<float, 4> float4;
typedef vec<uint, 3> uint3;

template <class To, class From>
To as_type(From);

namespace metal {
using ::vec;

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

float fma(float, float, float);
// One overload per type: mixed types are ambiguous.
#define EMU_MIN_MAX(T) \
  T min(T, T);         \
  T max(T, T);
EMU_MIN_MAX(float)
EMU_MIN_MAX(half)
EMU_MIN_MAX(int)
EMU_MIN_MAX(uint)
EMU_MIN_MAX(short)
EMU_MIN_MAX(ushort)
EMU_MIN_MAX(long)
EMU_MIN_MAX(ulong)

// simd functions exist for these types: no bool, nothing of 64 bits.
template <class T>
inline constexpr bool of_simd = false;
#define EMU_OF_SIMD(T) \
  template <>          \
  inline constexpr bool of_simd<T> = true;
EMU_OF_SIMD(float)
EMU_OF_SIMD(half)
EMU_OF_SIMD(int)
EMU_OF_SIMD(uint)
EMU_OF_SIMD(short)
EMU_OF_SIMD(ushort)
#define EMU_SIMD(name) \
  template <class T>   \
  T name(T)            \
    requires(of_simd<T>);
EMU_SIMD(simd_sum)
EMU_SIMD(simd_min)
EMU_SIMD(simd_max)
EMU_SIMD(simd_prefix_exclusive_sum)
EMU_SIMD(simd_prefix_inclusive_sum)
#define EMU_SHUFFLE(name) \
  template <class T>      \
  T name(T, ushort)       \
    requires(of_simd<T>);
EMU_SHUFFLE(simd_shuffle)
EMU_SHUFFLE(simd_shuffle_xor)
EMU_SHUFFLE(simd_shuffle_up)
EMU_SHUFFLE(simd_shuffle_down)

enum memory_order { memory_order_relaxed = 0 };
template <class T>
struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
#define EMU_ATOMICS(space)                                                 \
  template <class T>                                                       \
  T atomic_load_explicit(const volatile space atomic<T>*, memory_order);   \
  template <class T>                                                       \
  void atomic_store_explicit(volatile space atomic<T>*, T, memory_order);  \
  template <class T>                                                       \
  T atomic_fetch_add_explicit(volatile space atomic<T>*, T, memory_order); \
  template <class T>                                                       \
  T atomic_fetch_min_explicit(volatile space atomic<T>*, T, memory_order); \
  template <class T>                                                       \
  T atomic_fetch_max_explicit(volatile space atomic<T>*, T, memory_order);
EMU_ATOMICS(device)
EMU_ATOMICS(threadgroup)
}  // namespace metal
using namespace metal;
