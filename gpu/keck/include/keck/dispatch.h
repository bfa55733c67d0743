// `AT_DISPATCH_*` and the types that go with a type. Stands in for ATen/Dispatch.h,
// ATen/OpMathType.h and ATen/AccumulateType.h. Complex types are not served.
#pragma once

#include "keck/make.h"

namespace keck {
inline c10::ScalarType switched(c10::ScalarType type) { return type; }
inline c10::ScalarType switched(const at::DeprecatedTypeProperties& type) {
  return type.scalarType();
}
}  // namespace keck

#define AT_DISPATCH_CASE(enum_type, ...)                              \
  case enum_type: {                                                   \
    using scalar_t [[maybe_unused]] = ::keck::cpp_type<enum_type>;    \
    return __VA_ARGS__();                                             \
  }

#define AT_DISPATCH_SWITCH(TYPE, NAME, ...)                                                 \
  [&] {                                                                                     \
    const auto& the_type = TYPE;                                                            \
    constexpr const char* at_dispatch_name = NAME;                                          \
    const ::c10::ScalarType _st = ::keck::switched(the_type);                               \
    switch (_st) {                                                                          \
      __VA_ARGS__                                                                           \
      default:                                                                              \
        TORCH_CHECK(false, '"', at_dispatch_name, "\" not implemented for '", _st, "'");    \
    }                                                                                       \
  }()

#define AT_DISPATCH_CASE_FLOATING_TYPES(...)               \
  AT_DISPATCH_CASE(::c10::ScalarType::Double, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::Float, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(...) \
  AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__)        \
  AT_DISPATCH_CASE(::c10::ScalarType::Half, __VA_ARGS__)
#define AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(...)     \
  AT_DISPATCH_CASE(::c10::ScalarType::Half, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::BFloat16, __VA_ARGS__)
#define AT_DISPATCH_CASE_INTEGRAL_TYPES(...)             \
  AT_DISPATCH_CASE(::c10::ScalarType::Byte, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::Char, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::Int, __VA_ARGS__)  \
  AT_DISPATCH_CASE(::c10::ScalarType::Long, __VA_ARGS__) \
  AT_DISPATCH_CASE(::c10::ScalarType::Short, __VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES(...)        \
  AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) \
  AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__)

#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(__VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__))

#define AT_DISPATCH_CASE_FLOATING_TYPES_AND(A, ...) \
  AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(A, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND2(A, B, ...) \
  AT_DISPATCH_CASE_FLOATING_TYPES_AND(A, __VA_ARGS__) AT_DISPATCH_CASE(B, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND3(A, B, C, ...) \
  AT_DISPATCH_CASE_FLOATING_TYPES_AND2(A, B, __VA_ARGS__) AT_DISPATCH_CASE(C, __VA_ARGS__)
#define AT_DISPATCH_CASE_INTEGRAL_TYPES_AND(A, ...) \
  AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(A, __VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES_AND(A, ...) \
  AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(A, __VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES_AND2(A, B, ...) \
  AT_DISPATCH_CASE_ALL_TYPES_AND(A, __VA_ARGS__) AT_DISPATCH_CASE(B, __VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES_AND3(A, B, C, ...) \
  AT_DISPATCH_CASE_ALL_TYPES_AND2(A, B, __VA_ARGS__) AT_DISPATCH_CASE(C, __VA_ARGS__)

#define AT_DISPATCH_FLOATING_TYPES_AND(A, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES_AND(A, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(A, B, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES_AND2(A, B, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND3(A, B, C, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES_AND3(A, B, C, __VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES_AND(A, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_INTEGRAL_TYPES_AND(A, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND(A, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES_AND(A, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(A, B, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES_AND2(A, B, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND3(A, B, C, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES_AND3(A, B, C, __VA_ARGS__))

namespace keck {
template <typename T>
struct Wider { using Type = T; };
template <>
struct Wider<c10::Half> { using Type = float; };
template <>
struct Wider<c10::BFloat16> { using Type = float; };
// On a GPU integers are summed in 64 bits, floats in their own type.
template <typename T>
struct Summed {
  using Type = std::conditional_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int64_t,
                                  typename Wider<T>::Type>;
};
}  // namespace keck

namespace at {
template <typename T>
using opmath_type = typename keck::Wider<T>::Type;
template <typename T, bool is_cuda>
using acc_type = std::enable_if_t<is_cuda, typename keck::Summed<T>::Type>;
}  // namespace at
