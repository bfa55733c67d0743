// Numbers of any type and the settings of a new tensor. Stands in for c10/core/Scalar.h,
// c10/core/SymInt.h and c10/core/TensorOptions.h. The layouts of Scalar and SymInt are those of
// PyTorch 2.11, for torch's own functions read them.
#pragma once

#include "keck/half.h"

namespace c10 {

// One word, passed by reference because torch's has a destructor.
class SymInt {
 public:
  SymInt(int64_t value) : value_(value) {}
  SymInt(const SymInt& o) : value_(o.value_) {}
  SymInt& operator=(const SymInt& o) { value_ = o.value_; return *this; }
  ~SymInt() {}

 private:
  int64_t value_;
};
static_assert(sizeof(SymInt) == sizeof(int64_t));

class Scalar {
 public:
  Scalar() : Scalar(int64_t(0)) {}
  Scalar(float value) : Scalar(static_cast<double>(value)) {}
  Scalar(Half value) : Scalar(static_cast<double>(static_cast<float>(value))) {}
  Scalar(BFloat16 value) : Scalar(static_cast<double>(static_cast<float>(value))) {}
  Scalar(double value) : tag_(Tag::Double) { value_.d = value; }
  template <typename T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
  Scalar(T value) : tag_(std::is_same_v<T, bool> ? Tag::Bool : Tag::Int) {
    if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8) {
      if (value > static_cast<uint64_t>(INT64_MAX)) tag_ = Tag::Unsigned;
    }
    value_.i = static_cast<int64_t>(value);
  }

  bool isFloatingPoint() const { return tag_ == Tag::Double; }
  bool isBoolean() const { return tag_ == Tag::Bool; }
  bool isIntegral(bool with_bool) const {
    return tag_ == Tag::Int || tag_ == Tag::Unsigned || (with_bool && isBoolean());
  }
  template <typename T>
  T to() const {
    if (tag_ == Tag::Double) return static_cast<T>(value_.d);
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
      return static_cast<T>(static_cast<float>(value_.i));
    } else {
      return tag_ == Tag::Unsigned ? static_cast<T>(static_cast<uint64_t>(value_.i))
                                   : static_cast<T>(value_.i);
    }
  }
  double toDouble() const { return to<double>(); }
  float toFloat() const { return to<float>(); }
  int toInt() const { return to<int>(); }
  int64_t toLong() const { return to<int64_t>(); }
  bool toBool() const { return to<bool>(); }

 private:
  enum class Tag { Double, Int, Unsigned, Complex, Bool };
  Tag tag_;
  union Value {
    double d;
    int64_t i;
    alignas(16) double complex[2];
    Value() : complex{0, 0} {}
  } value_;
};
static_assert(sizeof(Scalar) == 32);

// What `tensor.dtype()` gives: compares with element types, has their size and name.
class TypeMeta {
 public:
  TypeMeta(ScalarType type) : type_(type) {}
  ScalarType toScalarType() const { return type_; }
  inline size_t itemsize() const;
  const char* name() const { return toString(type_); }
  friend bool operator==(TypeMeta a, TypeMeta b) { return a.type_ == b.type_; }
  friend bool operator!=(TypeMeta a, TypeMeta b) { return a.type_ != b.type_; }

 private:
  ScalarType type_;
};
inline ScalarType typeMetaToScalarType(TypeMeta type) { return type.toScalarType(); }

// Each setting may be missing.
struct TensorOptions {
  TensorOptions() = default;
  TensorOptions(ScalarType type) : dtype_(type) {}
  TensorOptions(TypeMeta type) : dtype_(type.toScalarType()) {}
  TensorOptions(Layout layout) : layout_(layout) {}
  TensorOptions(Device device) : device_(device) {}
  TensorOptions(DeviceType device) : device_(Device(device)) {}
  TensorOptions(MemoryFormat format) : format_(format) {}

  TensorOptions dtype(ScalarType v) const { auto o = *this; o.dtype_ = v; return o; }
  TensorOptions dtype(TypeMeta v) const { return dtype(v.toScalarType()); }
  TensorOptions dtype(std::nullopt_t) const { auto o = *this; o.dtype_.reset(); return o; }
  TensorOptions device(optional<Device> v) const { auto o = *this; o.device_ = v; return o; }
  TensorOptions device(DeviceType type, DeviceIndex index) const {
    return device(optional<Device>(Device(type, index)));
  }
  TensorOptions device_index(DeviceIndex index) const { return device(DeviceType::CUDA, index); }
  TensorOptions layout(optional<Layout> v) const { auto o = *this; o.layout_ = v; return o; }
  TensorOptions requires_grad(optional<bool> v) const { auto o = *this; o.grad_ = v; return o; }
  TensorOptions pinned_memory(optional<bool> v) const { auto o = *this; o.pinned_ = v; return o; }
  TensorOptions memory_format(optional<MemoryFormat> v) const {
    auto o = *this;
    o.format_ = v;
    return o;
  }

  optional<ScalarType> dtype_opt() const { return dtype_; }
  optional<Device> device_opt() const { return device_; }
  optional<Layout> layout_opt() const { return layout_; }
  optional<bool> pinned_memory_opt() const { return pinned_; }
  optional<MemoryFormat> memory_format_opt() const { return format_; }
  bool requires_grad() const { return grad_.value_or(false); }
  bool has_dtype() const { return dtype_.has_value(); }
  bool has_device() const { return device_.has_value(); }

 private:
  optional<ScalarType> dtype_;
  optional<Layout> layout_;
  optional<Device> device_;
  optional<bool> grad_, pinned_;
  optional<MemoryFormat> format_;
};

inline TensorOptions dtype(ScalarType type) { return TensorOptions(type); }
inline TensorOptions dtype(TypeMeta type) { return TensorOptions(type); }
inline TensorOptions device(Device device) { return TensorOptions(device); }
inline TensorOptions layout(Layout layout) { return TensorOptions(layout); }
inline TensorOptions requires_grad(bool value = true) {
  return TensorOptions().requires_grad(value);
}

}  // namespace c10

namespace caffe2 {
using c10::TypeMeta;
}

namespace keck {

// The C++ type of an element type and back.
template <c10::ScalarType>
struct CppType;
template <typename T>
struct TypeOf;

#define KECK_TYPE(type, name)                                              \
  template <>                                                              \
  struct CppType<c10::ScalarType::name> { using Type = type; };            \
  template <>                                                              \
  struct TypeOf<type> { static constexpr auto value = c10::ScalarType::name; };
KECK_TYPE(uint8_t, Byte)
KECK_TYPE(int8_t, Char)
KECK_TYPE(int16_t, Short)
KECK_TYPE(int, Int)
KECK_TYPE(int64_t, Long)
KECK_TYPE(c10::Half, Half)
KECK_TYPE(float, Float)
KECK_TYPE(double, Double)
KECK_TYPE(bool, Bool)
KECK_TYPE(c10::BFloat16, BFloat16)
KECK_TYPE(uint16_t, UInt16)
KECK_TYPE(uint32_t, UInt32)
KECK_TYPE(uint64_t, UInt64)
#undef KECK_TYPE

template <c10::ScalarType type>
using cpp_type = typename CppType<type>::Type;

}  // namespace keck
