// Enumerations, array references, devices and checks. Stands in for c10/core/ScalarType.h,
// Device.h, Layout.h, MemoryFormat.h, c10/util/ArrayRef.h and Exception.h. Numbers of the
// enumerations and names of exported functions are those of PyTorch 2.11 (the headers of the
// same names below c10/ and torch/headeronly/).
#pragma once

#define KECK

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(KECK_ALGORITHMS)
#include <algorithm>
#include <functional>
#endif

#if defined(__CUDACC__)
#define C10_HOST_DEVICE __host__ __device__
#define C10_HOST __host__
#define C10_DEVICE __device__
#define C10_LAUNCH_BOUNDS_1(threads) __launch_bounds__(threads)
#else
#define C10_HOST_DEVICE
#define C10_HOST
#define C10_DEVICE
#endif
#define C10_WARP_SIZE 32
#define C10_LIKELY(e) (__builtin_expect(static_cast<bool>(e), 1))
#define C10_UNLIKELY(e) (__builtin_expect(static_cast<bool>(e), 0))
#define C10_ALWAYS_INLINE __attribute__((__always_inline__)) inline

// Element types in the order of their numbers.
#define KECK_SCALAR_TYPES(_)                                                                  \
  _(Byte) _(Char) _(Short) _(Int) _(Long) _(Half) _(Float) _(Double) _(ComplexHalf)           \
  _(ComplexFloat) _(ComplexDouble) _(Bool) _(QInt8) _(QUInt8) _(QInt32) _(BFloat16)           \
  _(QUInt4x2) _(QUInt2x4) _(Bits1x8) _(Bits2x4) _(Bits4x2) _(Bits8) _(Bits16) _(Float8_e5m2)  \
  _(Float8_e4m3fn) _(Float8_e5m2fnuz) _(Float8_e4m3fnuz) _(UInt16) _(UInt32) _(UInt64)        \
  _(UInt1) _(UInt2) _(UInt3) _(UInt4) _(UInt5) _(UInt6) _(UInt7) _(Int1) _(Int2) _(Int3)      \
  _(Int4) _(Int5) _(Int6) _(Int7) _(Float8_e8m0fnu) _(Float4_e2m1fn_x2)

namespace c10 {

#define KECK_NAME(name) name,
enum class ScalarType : int8_t { KECK_SCALAR_TYPES(KECK_NAME) Undefined, NumOptions };
#undef KECK_NAME

inline const char* toString(ScalarType type) {
#define KECK_TEXT(name) #name,
  static const char* const names[] = {KECK_SCALAR_TYPES(KECK_TEXT) "Undefined"};
#undef KECK_TEXT
  const auto number = static_cast<size_t>(type);
  return number < sizeof(names) / sizeof(names[0]) ? names[number] : "UNKNOWN_SCALAR";
}

inline bool isFloatingType(ScalarType t) {
  return t == ScalarType::Double || t == ScalarType::Float || t == ScalarType::Half ||
         t == ScalarType::BFloat16;
}

inline bool isIntegralType(ScalarType t, bool with_bool) {
  return t == ScalarType::Byte || t == ScalarType::Char || t == ScalarType::Short ||
         t == ScalarType::Int || t == ScalarType::Long || t == ScalarType::UInt16 ||
         t == ScalarType::UInt32 || t == ScalarType::UInt64 ||
         (with_bool && t == ScalarType::Bool);
}

enum class Layout : int8_t { Strided };
enum class MemoryFormat : int8_t { Contiguous, Preserve, ChannelsLast, ChannelsLast3d };
enum class DeviceType : int8_t { CPU = 0, CUDA = 1, Meta = 14 };
using DeviceIndex = int8_t;

constexpr DeviceType kCPU = DeviceType::CPU;
constexpr DeviceType kCUDA = DeviceType::CUDA;
constexpr Layout kStrided = Layout::Strided;

struct Device final {
  Device(DeviceType type, DeviceIndex index = -1) : type_(type), index_(index) {}
  DeviceType type() const noexcept { return type_; }
  DeviceIndex index() const noexcept { return index_; }
  bool has_index() const noexcept { return index_ != -1; }
  bool is_cuda() const noexcept { return type_ == DeviceType::CUDA; }
  bool is_cpu() const noexcept { return type_ == DeviceType::CPU; }
  bool is_meta() const noexcept { return type_ == DeviceType::Meta; }
  bool operator==(const Device& o) const noexcept {
    return type_ == o.type_ && index_ == o.index_;
  }
  bool operator!=(const Device& o) const noexcept { return !(*this == o); }
  std::string str() const {
    std::string text = is_cuda() ? "cuda" : is_cpu() ? "cpu" : "meta";
    return has_index() ? text + ":" + std::to_string(index_) : text;
  }

 private:
  DeviceType type_;
  DeviceIndex index_;
};

// A view of an array that somebody else owns; two words, as torch passes it.
template <typename T>
class ArrayRef final {
 public:
  using iterator = const T*;
  using const_iterator = const T*;
  using value_type = T;

  constexpr ArrayRef() : data_(nullptr), size_(0) {}
  constexpr ArrayRef(const T& one) : data_(&one), size_(1) {}
  constexpr ArrayRef(const T* data, size_t size) : data_(data), size_(size) {}
  constexpr ArrayRef(const T* begin, const T* end) : data_(begin), size_(end - begin) {}
  template <typename A>
  ArrayRef(const std::vector<T, A>& v) : data_(v.data()), size_(v.size()) {}
  template <size_t N>
  constexpr ArrayRef(const std::array<T, N>& a) : data_(a.data()), size_(N) {}
  template <size_t N>
  constexpr ArrayRef(const T (&a)[N]) : data_(a), size_(N) {}
  constexpr ArrayRef(const std::initializer_list<T>& l)
      : data_(l.begin() == l.end() ? nullptr : l.begin()), size_(l.size()) {}

  constexpr const T* begin() const { return data_; }
  constexpr const T* end() const { return data_ + size_; }
  constexpr const T* data() const { return data_; }
  constexpr size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr const T& operator[](size_t at) const { return data_[at]; }
  constexpr const T& front() const { return data_[0]; }
  constexpr const T& back() const { return data_[size_ - 1]; }
  constexpr ArrayRef slice(size_t from, size_t count) const { return {data_ + from, count}; }
  constexpr ArrayRef slice(size_t from) const { return {data_ + from, size_ - from}; }
  std::vector<T> vec() const { return std::vector<T>(data_, data_ + size_); }
  bool equals(ArrayRef o) const {
    return size_ == o.size_ && std::equal(begin(), end(), o.begin());
  }

 private:
  const T* data_;
  size_t size_;
};

template <typename T>
bool operator==(ArrayRef<T> a, ArrayRef<T> b) { return a.equals(b); }
template <typename T>
bool operator!=(ArrayRef<T> a, ArrayRef<T> b) { return !a.equals(b); }
template <typename T>
bool operator==(const std::vector<T>& a, ArrayRef<T> b) { return ArrayRef<T>(a).equals(b); }
template <typename T>
bool operator==(ArrayRef<T> a, const std::vector<T>& b) { return a.equals(ArrayRef<T>(b)); }

using IntArrayRef = ArrayRef<int64_t>;
using std::nullopt;
using std::optional;

namespace detail {
// Exported by libc10: they raise the very errors that the real headers raise.
[[noreturn]] void torchCheckFail(const char* function, const char* file, uint32_t line,
                                 const std::string& message);
template <typename T>
T maybe_wrap_dim_slow(T dim, T count, bool wrap_scalar);
extern template int64_t maybe_wrap_dim_slow<int64_t>(int64_t, int64_t, bool);
}  // namespace detail

}  // namespace c10

namespace keck {

// Text of an error, with numbers as an output stream would write them.
inline void put(std::string& text, const char* part) { text += part; }
inline void put(std::string& text, const std::string& part) { text += part; }
inline void put(std::string& text, char part) { text += part; }
inline void put(std::string& text, c10::ScalarType part) { text += c10::toString(part); }
inline void put(std::string& text, const c10::Device& part) { text += part.str(); }
template <typename T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
void put(std::string& text, T part) {
  if constexpr (std::is_floating_point_v<T>) {
    char buffer[64];
    std::snprintf(buffer, sizeof(buffer), "%g", static_cast<double>(part));
    text += buffer;
  } else {
    text += std::to_string(part);
  }
}
template <typename T>
void put(std::string& text, c10::ArrayRef<T> part) {
  text += '[';
  for (size_t at = 0; at < part.size(); ++at) {
    if (at) text += ", ";
    put(text, part[at]);
  }
  text += ']';
}

template <typename... Parts>
std::string message(const char* /*standard*/, const Parts&... parts) {
  std::string text;
  (put(text, parts), ...);
  return text;
}
inline std::string message(const char* standard) { return standard; }

inline void check(int32_t code, const char* what) {
  if (code != 0) {
    c10::detail::torchCheckFail("", "", 0, std::string(what) + " failed; the log says why");
  }
}

}  // namespace keck

#define TORCH_CHECK(cond, ...)                                                              \
  if (!(cond)) {                                                                            \
    ::c10::detail::torchCheckFail(                                                          \
        __func__, __FILE__, static_cast<uint32_t>(__LINE__),                                \
        ::keck::message("Expected " #cond " to be true, but got false.  (Could this error " \
                        "message be improved?  If so, please report an enhancement request " \
                        "to PyTorch.)",                                                     \
                        ##__VA_ARGS__));                                                    \
  }
#define AT_ERROR(...) \
  do { TORCH_CHECK(false, __VA_ARGS__); } while (false)

namespace at {
using namespace c10;
}
namespace torch {
using namespace at;
using Dtype = at::ScalarType;
}  // namespace torch

// Constants: `at::kFloat` and the like, and torch's further names for them.
namespace c10 {
#define KECK_CONSTANT(name) constexpr ScalarType k##name = ScalarType::name;
KECK_SCALAR_TYPES(KECK_CONSTANT)
#undef KECK_CONSTANT
}  // namespace c10
namespace torch {
constexpr auto kUInt8 = at::kByte;
constexpr auto kInt8 = at::kChar;
constexpr auto kInt16 = at::kShort;
constexpr auto kInt32 = at::kInt;
constexpr auto kInt64 = at::kLong;
constexpr auto kFloat16 = at::kHalf;
constexpr auto kFloat32 = at::kFloat;
constexpr auto kFloat64 = at::kDouble;
}  // namespace torch
