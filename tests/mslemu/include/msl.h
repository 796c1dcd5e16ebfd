// The Metal Shading Language vocabulary of compute kernels in plain C++17, on the fibers of
// runtime.h. What is not here is a compile error, on purpose.
#pragma once
#include <type_traits>

#include "lanes.h"

#define __METAL__ 1
#define __METAL_VERSION__ 310
#define METAL_FUNC inline
#define device
#define constant
#define thread
#define threadgroup  // variables are rewritten to EMU_VARIABLE before compiling

// ------------------------------------------------------------------ types

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define FLT_MAX 3.402823466e+38f
#define MAXFLOAT FLT_MAX

template <class T, int N>
struct vec;

#define EMU_VEC_MEMBERS(N)                             \
  T& operator[](int i) { return (&x)[i]; }             \
  const T& operator[](int i) const { return (&x)[i]; } \
  vec() = default;                                     \
  vec(T s) {                                           \
    for (int i = 0; i < N; ++i) (*this)[i] = s;        \
  }                                                    \
  template <class U>                                   \
  explicit vec(const vec<U, N>& o) {                   \
    for (int i = 0; i < N; ++i) (*this)[i] = T(o[i]);  \
  }

template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  EMU_VEC_MEMBERS(2)
  vec(T a, T b) : x(a), y(b) {}
};
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  EMU_VEC_MEMBERS(3)
  vec(T a, T b, T c) : x(a), y(b), z(c) {}
};
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  EMU_VEC_MEMBERS(4)
  vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
};

#define EMU_VEC_OPERATOR(op)                                      \
  template <class T, int N>                                       \
  vec<T, N> operator op(const vec<T, N>& a, const vec<T, N>& b) { \
    vec<T, N> r;                                                  \
    for (int i = 0; i < N; ++i) r[i] = a[i] op b[i];              \
    return r;                                                     \
  }                                                               \
  template <class T, int N>                                       \
  vec<T, N> operator op(const vec<T, N>& a, T b) {                \
    return a op vec<T, N>(b);                                     \
  }                                                               \
  template <class T, int N>                                       \
  vec<T, N> operator op(T a, const vec<T, N>& b) {                \
    return vec<T, N>(a) op b;                                     \
  }
EMU_VEC_OPERATOR(+)
EMU_VEC_OPERATOR(-)
EMU_VEC_OPERATOR(*)
EMU_VEC_OPERATOR(/)

#define EMU_VEC_NAMES(T)  \
  typedef vec<T, 2> T##2; \
  typedef vec<T, 3> T##3; \
  typedef vec<T, 4> T##4;
EMU_VEC_NAMES(float)
EMU_VEC_NAMES(half)
EMU_VEC_NAMES(bfloat)
EMU_VEC_NAMES(int)
EMU_VEC_NAMES(uint)
EMU_VEC_NAMES(short)
EMU_VEC_NAMES(ushort)
EMU_VEC_NAMES(char)
EMU_VEC_NAMES(uchar)
EMU_VEC_NAMES(bool)
EMU_VEC_NAMES(long)
EMU_VEC_NAMES(ulong)

template <class To, class From>
EMU_UNCHECKED constexpr To as_type(From f) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, f);
}

namespace metal {
using ::vec;
// What MLX's own utils.h takes from the standard library.
using std::conditional_t;
using std::enable_if;
using std::enable_if_t;
using std::is_convertible_v;
using std::is_integral;
using std::is_same;
using std::is_same_v;

template <class T>
struct numeric_limits {
  static constexpr T max() {
    return std::is_signed<T>::value ? T((uint64_t(1) << (sizeof(T) * 8 - 1)) - 1) : T(~T(0));
  }
  static constexpr T min() {
    return std::is_signed<T>::value ? T(uint64_t(1) << (sizeof(T) * 8 - 1)) : T(0);
  }
};
#define EMU_FLOAT_LIMITS(T, largest)                                  \
  template <>                                                         \
  struct numeric_limits<T> {                                          \
    static constexpr T max() { return T(largest); }                   \
    static constexpr T infinity() { return T(__builtin_inff()); }     \
    static constexpr T quiet_NaN() { return T(__builtin_nanf("")); }  \
  };
EMU_FLOAT_LIMITS(float, FLT_MAX)
EMU_FLOAT_LIMITS(half, 65504.0f)
EMU_FLOAT_LIMITS(bfloat, 3.3895314e38f)

// ------------------------------------------------------------------ mathematics

#define EMU_UNARY(name) \
  inline float name(float x) { return __builtin_##name##f(x); }
EMU_UNARY(exp)
EMU_UNARY(exp2)
EMU_UNARY(log)
EMU_UNARY(log2)
EMU_UNARY(sin)
EMU_UNARY(cos)
EMU_UNARY(tanh)
EMU_UNARY(sqrt)
EMU_UNARY(fabs)
EMU_UNARY(floor)
EMU_UNARY(ceil)
EMU_UNARY(round)
EMU_UNARY(rint)
EMU_UNARY(trunc)
inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float pow(float a, float b) { return __builtin_powf(a, b); }
inline float atan2(float a, float b) { return __builtin_atan2f(a, b); }
inline float fmin(float a, float b) { return __builtin_fminf(a, b); }
inline float fmax(float a, float b) { return __builtin_fmaxf(a, b); }
inline float abs(float x) { return __builtin_fabsf(x); }
inline int abs(int x) { return x < 0 ? -x : x; }
// Both arguments are of one type: mixed ones are ambiguous in MSL.
template <class T>
inline T min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
inline T max(T a, T b) {
  return a > b ? a : b;
}
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
template <class A, class B, class = std::enable_if_t<!std::is_same_v<A, B>>>
void min(A, B) = delete;
template <class A, class B, class = std::enable_if_t<!std::is_same_v<A, B>>>
void max(A, B) = delete;
template <class T>
inline T clamp(T x, T a, T b) {
  return min(max(x, a), b);
}
template <class T>
inline T select(T a, T b, bool c) {
  return c ? b : a;
}
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline uint popcount(uint x) { return __builtin_popcount(x); }
inline uint clz(uint x) { return x ? __builtin_clz(x) : 32; }
inline uint ctz(uint x) { return x ? __builtin_ctz(x) : 32; }
namespace precise {
using metal::exp;
using metal::log;
using metal::sqrt;
}  // namespace precise

// ------------------------------------------------------------------ barriers

enum class mem_flags : unsigned {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4
};
inline constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return mem_flags(unsigned(a) | unsigned(b));
}

EMU_CALL static void threadgroup_barrier(mem_flags flags, EMU_LINE) {
  emu::threadgroup_barrier(unsigned(flags), line);
  asm volatile("" ::: "memory");
}
EMU_CALL static void simdgroup_barrier(mem_flags flags, EMU_LINE) {
  emu::simd_collective(line, true, unsigned(flags));
  asm volatile("" ::: "memory");
}
}  // namespace metal

// ------------------------------------------------------------------ simd functions

namespace metal {

#define EMU_REDUCTION(name, expression)                                  \
  template <class T>                                                     \
  EMU_CALL T name(T v, EMU_LINE) {                                       \
    return emu::gather(v, line).reduced([](T a, T b) EMU_UNCHECKED { return T(expression); }); \
  }
EMU_REDUCTION(simd_sum, a + b)
EMU_REDUCTION(simd_product, a* b)
EMU_REDUCTION(simd_max, metal::max(a, b))
EMU_REDUCTION(simd_min, metal::min(a, b))
EMU_REDUCTION(simd_and, a& b)
EMU_REDUCTION(simd_or, a | b)

template <class T>
EMU_CALL T simd_prefix_exclusive_sum(T v, EMU_LINE) {
  const auto all = emu::gather(v, line);
  T sum = T(0);
  for (unsigned l = 0; l < all.me; ++l)
    if (all.has(l)) sum = T(sum + all[l]);
  return sum;
}
template <class T>
EMU_CALL T simd_prefix_inclusive_sum(T v, EMU_LINE) {
  return T(simd_prefix_exclusive_sum(v, line) + v);
}
template <class T>
EMU_CALL T simd_shuffle(T v, ushort lane, EMU_LINE) {
  return emu::gather(v, line)[lane];
}
template <class T>
EMU_CALL T simd_broadcast(T v, ushort lane, EMU_LINE) {
  return emu::gather(v, line)[lane];
}
template <class T>
EMU_CALL T simd_broadcast_first(T v, EMU_LINE) {
  const auto all = emu::gather(v, line);
  return all[__builtin_ctz(all.mask)];
}
template <class T>
EMU_CALL T simd_shuffle_xor(T v, ushort mask, EMU_LINE) {
  const auto all = emu::gather(v, line);
  return all[all.me ^ mask];
}
template <class T>
EMU_CALL T simd_shuffle_up(T v, ushort delta, EMU_LINE) {
  const auto all = emu::gather(v, line);
  return all.me < delta ? v : all[all.me - delta];
}
template <class T>
EMU_CALL T simd_shuffle_down(T v, ushort delta, EMU_LINE) {
  const auto all = emu::gather(v, line);
  return all.me + delta >= emu::SIMD ? v : all[all.me + delta];
}

// MLX's own utils.h adds overloads to this one.
template <class T>
EMU_CALL T simd_shuffle_and_fill_up(T v, T fill, ushort delta, EMU_LINE) {
  const auto all = emu::gather(v, line);
  return all.me < delta ? fill : all[all.me - delta];
}

struct simd_vote {
  typedef uint64_t vote_t;
  vote_t v;
  explicit simd_vote(vote_t x) : v(x) {}
  explicit operator vote_t() const { return v; }
};
EMU_CALL inline simd_vote simd_ballot(bool v, EMU_LINE) {
  const auto all = emu::gather(v, line);
  uint64_t mask = 0;
  for (unsigned l = 0; l < emu::SIMD; ++l)
    if (all.has(l) && all[l]) mask |= 1ull << l;
  return simd_vote(mask);
}
EMU_CALL inline bool simd_any(bool v, EMU_LINE) { return simd_ballot(v, line).v != 0; }
EMU_CALL inline bool simd_all(bool v, EMU_LINE) { return simd_ballot(!v, line).v == 0; }

// ------------------------------------------------------------------ atomics, relaxed only

enum memory_order { memory_order_relaxed = 0 };
template <class T>
struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;

template <class T>
EMU_CALL T atomic_load_explicit(const atomic<T>* p, memory_order) {
  emu::atomic_access(p, sizeof(T), false, false);
  return p->value;
}
template <class T, class U>
EMU_CALL void atomic_store_explicit(atomic<T>* p, U v, memory_order) {
  emu::atomic_access(p, sizeof(T), true, false);
  p->value = T(v);
}
#define EMU_ATOMIC(name, expression)                                    \
  template <class T, class U>                                           \
  EMU_CALL T atomic_##name##_explicit(atomic<T>* p, U u, memory_order) { \
    emu::atomic_access(p, sizeof(T), false, true);                      \
    emu::atomic_access(p, sizeof(T), true, true);                       \
    const T old = p->value, v = T(u);                                   \
    p->value = T(expression);                                           \
    return old;                                                         \
  }
EMU_ATOMIC(exchange, v)
EMU_ATOMIC(fetch_add, old + v)
EMU_ATOMIC(fetch_sub, old - v)
EMU_ATOMIC(fetch_and, old& v)
EMU_ATOMIC(fetch_or, old | v)
EMU_ATOMIC(fetch_max, old > v ? old : v)
EMU_ATOMIC(fetch_min, old < v ? old : v)

}  // namespace metal
using namespace metal;

// ------------------------------------------------------------------ attributes of a kernel

namespace emu {
#define EMU_ATTRIBUTE EMU_UNCHECKED inline
EMU_ATTRIBUTE uint3 as_uint3(U3 a) { return uint3(a.x, a.y, a.z); }
EMU_ATTRIBUTE uint3 a_thread_position_in_threadgroup() { return as_uint3(cx.lane->position); }
EMU_ATTRIBUTE uint3 a_threadgroup_position_in_grid() { return as_uint3(cx.group); }
EMU_ATTRIBUTE uint3 a_thread_position_in_grid() {
  const U3 p = cx.lane->position, g = cx.group, n = cx.uniform_size;
  return uint3(g.x * n.x + p.x, g.y * n.y + p.y, g.z * n.z + p.z);
}
EMU_ATTRIBUTE uint3 a_threads_per_grid() { return as_uint3(cx.grid); }
EMU_ATTRIBUTE uint3 a_threads_per_threadgroup() { return as_uint3(cx.group_size); }
EMU_ATTRIBUTE uint3 a_dispatch_threads_per_threadgroup() { return as_uint3(cx.uniform_size); }
EMU_ATTRIBUTE uint3 a_threadgroups_per_grid() { return as_uint3(cx.groups); }
EMU_ATTRIBUTE uint a_thread_index_in_threadgroup() { return cx.lane->index; }
EMU_ATTRIBUTE uint a_thread_index_in_simdgroup() { return cx.lane->index % SIMD; }
EMU_ATTRIBUTE uint a_simdgroup_index_in_threadgroup() { return cx.lane->index / SIMD; }
EMU_ATTRIBUTE uint a_simdgroups_per_threadgroup() { return cx.simdgroups; }
EMU_ATTRIBUTE uint a_threads_per_simdgroup() { return SIMD; }
}  // namespace emu
