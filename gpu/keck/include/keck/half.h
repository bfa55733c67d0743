// The 16-bit floating-point types. Stands in for c10/util/Half.h and BFloat16.h; the rules of
// conversion and arithmetic are those of torch/headeronly/util/Half.h and BFloat16.h: all
// arithmetic goes through float, rounding is to nearest even, and device code has the instructions
// of the intrinsics that are used there. CUDA's own headers of these types take a third of a whole
// build, so they are read only for texts that speak of such types (KECK_SHORT_FLOATS).
#pragma once

#include "keck/base.h"

#if defined(__CUDACC__) && defined(KECK_SHORT_FLOATS)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define KECK_CUDA_TYPES
#endif

namespace keck {

template <typename To, typename From>
C10_HOST_DEVICE inline To bits_of(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// Only for the host: the device has instructions for these.
inline float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 31) {
    const uint32_t quiet = mantissa ? 0x00400000u : 0u;
    return bits_of<float>(sign | 0x7f800000u | quiet | (mantissa << 13));
  }
  if (exponent == 0) {
    const float tiny = static_cast<float>(mantissa) * (1.0f / 16777216.0f);
    return bits_of<float>(sign | bits_of<uint32_t>(tiny));
  }
  return bits_of<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline uint16_t float_to_half(float value) {
  const uint32_t all = bits_of<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((all >> 16) & 0x8000u);
  const uint32_t size = all & 0x7fffffffu;
  if (size > 0x7f800000u) return sign | 0x7e00u;
  if (size >= 0x477ff000u) return sign | 0x7c00u;  // rounds to 65536 or more
  if (size < 0x38800000u) {
    // Below the smallest normal number the addition does the rounding: one unit of the last
    // place of a number in [0.5, 1) is 2^-24.
    const float shifted = bits_of<float>(size) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t odd = (size >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((size - 0x38000000u + 0xfffu + odd) >> 13));
}

inline uint16_t float_to_bfloat16(float value) {
  if (value != value) return 0x7fc0;
  const uint32_t all = bits_of<uint32_t>(value);
  return static_cast<uint16_t>((all + ((all >> 16) & 1u) + 0x7fffu) >> 16);
}

}  // namespace keck

namespace c10 {

struct alignas(2) Half {
  unsigned short x;

  struct from_bits_t {};
  C10_HOST_DEVICE static constexpr from_bits_t from_bits() { return from_bits_t(); }

  Half() = default;
  constexpr C10_HOST_DEVICE Half(unsigned short bits, from_bits_t) : x(bits) {}
  C10_HOST_DEVICE Half(float value) {
#if defined(__CUDA_ARCH__)
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x) : "f"(value));
#else
    x = keck::float_to_half(value);
#endif
  }
  C10_HOST_DEVICE operator float() const {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x));
    return value;
#else
    return keck::half_to_float(x);
#endif
  }
#if defined(KECK_CUDA_TYPES)
  C10_HOST_DEVICE Half(const __half& value) : x(*reinterpret_cast<const unsigned short*>(&value)) {}
  C10_HOST_DEVICE operator __half() const { return *reinterpret_cast<const __half*>(&x); }
#endif
};

struct alignas(2) BFloat16 {
  uint16_t x;

  struct from_bits_t {};
  C10_HOST_DEVICE static constexpr from_bits_t from_bits() { return from_bits_t(); }

  BFloat16() = default;
  constexpr C10_HOST_DEVICE BFloat16(unsigned short bits, from_bits_t) : x(bits) {}
  C10_HOST_DEVICE BFloat16(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(x) : "f"(value));
#elif defined(__CUDA_ARCH__)
#error "architectures before 8.0 take the full path"
#else
    x = keck::float_to_bfloat16(value);
#endif
  }
  C10_HOST_DEVICE operator float() const {
    return keck::bits_of<float>(static_cast<uint32_t>(x) << 16);
  }
#if defined(KECK_CUDA_TYPES)
  C10_HOST_DEVICE BFloat16(const __nv_bfloat16& value)
      : x(*reinterpret_cast<const unsigned short*>(&value)) {}
  explicit C10_HOST_DEVICE operator __nv_bfloat16() const {
    return *reinterpret_cast<const __nv_bfloat16*>(&x);
  }
#endif
};

#if defined(__CUDA_ARCH__)
inline __device__ Half __ldg(const Half* at) {
  return {::__ldg(reinterpret_cast<const unsigned short*>(at)), Half::from_bits()};
}
inline __device__ BFloat16 __ldg(const BFloat16* at) {
  return {::__ldg(reinterpret_cast<const unsigned short*>(at)), BFloat16::from_bits()};
}
#endif

#define KECK_WIDER(T, W, op)                                                                     \
  inline C10_HOST_DEVICE W operator op(T a, W b) { return static_cast<W>(a) op b; }              \
  inline C10_HOST_DEVICE W operator op(W a, T b) { return a op static_cast<W>(b); }
#define KECK_INTEGER(T, I, op)                                                                   \
  inline C10_HOST_DEVICE T operator op(T a, I b) { return a op static_cast<T>(b); }              \
  inline C10_HOST_DEVICE T operator op(I a, T b) { return static_cast<T>(a) op b; }
#define KECK_ARITHMETIC(T, op)                                                                   \
  inline C10_HOST_DEVICE T operator op(const T& a, const T& b) {                                 \
    return static_cast<float>(a) op static_cast<float>(b);                                       \
  }                                                                                              \
  inline C10_HOST_DEVICE T& operator op##=(T& a, const T& b) { return a = a op b; }              \
  inline C10_HOST_DEVICE float& operator op##=(float& a, const T& b) {                           \
    return a = a op static_cast<float>(b);                                                       \
  }                                                                                              \
  KECK_WIDER(T, float, op) KECK_WIDER(T, double, op)                                             \
  KECK_INTEGER(T, int, op) KECK_INTEGER(T, int64_t, op)
#define KECK_ALL(T) \
  KECK_ARITHMETIC(T, +) KECK_ARITHMETIC(T, -) KECK_ARITHMETIC(T, *) KECK_ARITHMETIC(T, /)

KECK_ALL(Half)
KECK_ALL(BFloat16)

inline C10_HOST_DEVICE Half operator-(const Half& a) {
#if defined(__CUDA_ARCH__)
  Half negated;
  asm("neg.f16 %0, %1;" : "=h"(negated.x) : "h"(a.x));
  return negated;
#else
  return -static_cast<float>(a);
#endif
}
inline C10_HOST_DEVICE BFloat16 operator-(const BFloat16& a) { return -static_cast<float>(a); }
inline C10_HOST_DEVICE bool operator>(BFloat16& a, BFloat16& b) { return float(a) > float(b); }
inline C10_HOST_DEVICE bool operator<(BFloat16& a, BFloat16& b) { return float(a) < float(b); }

#undef KECK_CUDA_TYPES
#undef KECK_ALL
#undef KECK_ARITHMETIC
#undef KECK_INTEGER
#undef KECK_WIDER

}  // namespace c10

#define KECK_LIMIT(T, name, bits) \
  static constexpr T name() { return T(bits, T::from_bits()); }
namespace std {
template <>
class numeric_limits<c10::Half> : public numeric_limits<float> {
 public:
  static constexpr int digits = 11, digits10 = 3, max_digits10 = 5;
  static constexpr int min_exponent = -13, min_exponent10 = -4;
  static constexpr int max_exponent = 16, max_exponent10 = 4;
  KECK_LIMIT(c10::Half, min, 0x0400)
  KECK_LIMIT(c10::Half, lowest, 0xFBFF)
  KECK_LIMIT(c10::Half, max, 0x7BFF)
  KECK_LIMIT(c10::Half, epsilon, 0x1400)
  KECK_LIMIT(c10::Half, round_error, 0x3800)
  KECK_LIMIT(c10::Half, infinity, 0x7C00)
  KECK_LIMIT(c10::Half, quiet_NaN, 0x7E00)
  KECK_LIMIT(c10::Half, signaling_NaN, 0x7D00)
  KECK_LIMIT(c10::Half, denorm_min, 0x0001)
};
template <>
class numeric_limits<c10::BFloat16> : public numeric_limits<float> {
 public:
  static constexpr bool is_iec559 = false;
  static constexpr int digits = 8, digits10 = 2, max_digits10 = 4;
  KECK_LIMIT(c10::BFloat16, min, 0x0080)
  KECK_LIMIT(c10::BFloat16, lowest, 0xFF7F)
  KECK_LIMIT(c10::BFloat16, max, 0x7F7F)
  KECK_LIMIT(c10::BFloat16, epsilon, 0x3C00)
  KECK_LIMIT(c10::BFloat16, round_error, 0x3F00)
  KECK_LIMIT(c10::BFloat16, infinity, 0x7F80)
  KECK_LIMIT(c10::BFloat16, quiet_NaN, 0x7FC0)
  KECK_LIMIT(c10::BFloat16, signaling_NaN, 0x7F80)
  KECK_LIMIT(c10::BFloat16, denorm_min, 0x0001)
};
}  // namespace std
#undef KECK_LIMIT
