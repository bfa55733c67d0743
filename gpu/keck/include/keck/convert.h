// Values between Python and C++: tensors, numbers, texts, optional values, lists and tuples.
#pragma once

#include <Python.h>

#include "keck/tensor.h"

namespace at {
class TensorBase;
}
PyObject* THPVariable_Wrap(const at::TensorBase& tensor);
extern PyObject* THPVariableClass;
extern PyTypeObject THPDtypeType;

namespace keck {

// What a Python value becomes as an argument: `load` is false for a value of another type.
template <typename T, typename = void>
struct Argument;

template <>
struct Argument<at::Tensor> {
  at::Tensor value;
  bool load(PyObject* from) {
    if (!PyObject_TypeCheck(from, reinterpret_cast<PyTypeObject*>(THPVariableClass))) return false;
    // `struct THPVariable { PyObject_HEAD; at::Tensor cdata; ... }` of
    // torch/csrc/autograd/python_variable.h; the copy adds a count of its own.
    value = *reinterpret_cast<const at::Tensor*>(reinterpret_cast<char*>(from) + sizeof(PyObject));
    return true;
  }
};

template <>
struct Argument<bool> {
  bool value = false;
  bool load(PyObject* from) {
    if (from == Py_True || from == Py_False) { value = from == Py_True; return true; }
    if (from == Py_None) return true;
    auto* number = Py_TYPE(from)->tp_as_number;
    if (!number || !number->nb_bool) return false;
    const int result = number->nb_bool(from);
    value = result == 1;
    return result >= 0;
  }
};

template <typename T>
struct Argument<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
  T value = 0;
  bool load(PyObject* from) {
    if (PyFloat_Check(from) || !(PyLong_Check(from) || PyIndex_Check(from))) return false;
    PyObject* number = PyNumber_Index(from);
    if (!number) return false;
    const bool fits = std::is_signed_v<T> ? signed_value(number) : unsigned_value(number);
    Py_DECREF(number);
    return fits;
  }

 private:
  bool signed_value(PyObject* number) {
    int overflow = 0;
    const long long all = PyLong_AsLongLongAndOverflow(number, &overflow);
    value = static_cast<T>(all);
    return !overflow && static_cast<long long>(value) == all;
  }
  bool unsigned_value(PyObject* number) {
    const unsigned long long all = PyLong_AsUnsignedLongLong(number);
    value = static_cast<T>(all);
    return !PyErr_Occurred() && static_cast<unsigned long long>(value) == all;
  }
};

template <typename T>
struct Argument<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  T value = 0;
  bool load(PyObject* from) {
    value = static_cast<T>(PyFloat_AsDouble(from));
    return !(value == T(-1) && PyErr_Occurred());
  }
};

template <>
struct Argument<std::string> {
  std::string value;
  bool load(PyObject* from) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_Check(from) ? PyUnicode_AsUTF8AndSize(from, &size) : nullptr;
    if (text) value.assign(text, static_cast<size_t>(size));
    return text != nullptr;
  }
};

template <>
struct Argument<at::Scalar> {
  at::Scalar value;
  bool load(PyObject* from) {
    if (PyBool_Check(from)) { value = from == Py_True; return true; }
    Argument<int64_t> integer;
    if (PyLong_Check(from) && integer.load(from)) { value = integer.value; return true; }
    if (!PyFloat_Check(from)) return false;
    value = PyFloat_AS_DOUBLE(from);
    return true;
  }
};

template <>
struct Argument<at::ScalarType> {
  at::ScalarType value = at::ScalarType::Undefined;
  bool load(PyObject* from) {
    if (Py_TYPE(from) != &THPDtypeType) return false;
    // `struct THPDtype { PyObject_HEAD; ScalarType; ... }` of torch/csrc/Dtype.h.
    value = *reinterpret_cast<const at::ScalarType*>(reinterpret_cast<char*>(from) +
                                                     sizeof(PyObject));
    return true;
  }
};

template <typename T>
struct Argument<std::optional<T>> {
  std::optional<T> value;
  bool load(PyObject* from) {
    if (from == Py_None) return true;
    Argument<T> inner;
    if (!inner.load(from)) return false;
    value = std::move(inner.value);
    return true;
  }
};

template <typename T>
struct Argument<std::vector<T>> {
  std::vector<T> value;
  bool load(PyObject* from) {
    if (PyUnicode_Check(from) || PyBytes_Check(from) || !PySequence_Check(from)) return false;
    PyObject* items = PySequence_Fast(from, "");
    if (!items) return false;
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
    bool fits = true;
    for (Py_ssize_t i = 0; fits && i < count; ++i) {
      Argument<T> inner;
      fits = inner.load(PySequence_Fast_GET_ITEM(items, i));
      if (fits) value.push_back(std::move(inner.value));
    }
    Py_DECREF(items);
    return fits;
  }
};

// The list lives as long as the call.
template <typename T>
struct Argument<c10::ArrayRef<T>> {
  Argument<std::vector<T>> held;
  c10::ArrayRef<T> value;
  bool load(PyObject* from) {
    if (!PyTuple_Check(from) && !PyList_Check(from)) return false;
    const bool fits = held.load(from);
    value = held.value;
    return fits;
  }
};

inline PyObject* to_python(std::nullptr_t) { Py_RETURN_NONE; }
inline PyObject* to_python(std::nullopt_t) { Py_RETURN_NONE; }
inline PyObject* to_python(const at::Tensor& tensor) {
  return THPVariable_Wrap(reinterpret_cast<const at::TensorBase&>(tensor));
}
inline PyObject* to_python(const std::string& text) {
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}
inline PyObject* to_python(const char* text) { return PyUnicode_FromString(text); }

template <typename T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
PyObject* to_python(T value) {
  if constexpr (std::is_same_v<T, bool>) return PyBool_FromLong(value);
  else if constexpr (std::is_floating_point_v<T>) return PyFloat_FromDouble(value);
  else if constexpr (std::is_signed_v<T>) return PyLong_FromLongLong(value);
  else return PyLong_FromUnsignedLongLong(value);
}

template <typename T>
PyObject* to_python(const std::vector<T>& values);
template <typename... T>
PyObject* to_python(const std::tuple<T...>& values);

template <typename T>
PyObject* to_python(const std::optional<T>& value) {
  return value ? to_python(*value) : to_python(nullptr);
}

template <typename T>
PyObject* to_python(const std::vector<T>& values) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(values.size()));
  for (size_t i = 0; list && i < values.size(); ++i) {
    PyObject* item = to_python(values[i]);
    if (item) PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), item);
    else Py_CLEAR(list);
  }
  return list;
}

template <size_t N>
PyObject* tuple_of(const std::array<PyObject*, N>& items) {
  bool whole = true;
  for (PyObject* item : items) whole = whole && item;
  PyObject* tuple = whole ? PyTuple_New(N) : nullptr;
  for (size_t i = 0; i < N; ++i) {
    if (tuple) PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), items[i]);
    else Py_XDECREF(items[i]);
  }
  return tuple;
}

template <typename... T>
PyObject* to_python(const std::tuple<T...>& values) {
  return std::apply([](const T&... item) {
    return tuple_of(std::array<PyObject*, sizeof...(T)>{to_python(item)...});
  }, values);
}
template <typename A, typename B>
PyObject* to_python(const std::pair<A, B>& values) {
  return tuple_of(std::array<PyObject*, 2>{to_python(values.first), to_python(values.second)});
}
template <typename T, size_t N>
PyObject* to_python(const std::array<T, N>& values) {
  return to_python(std::vector<T>(values.begin(), values.end()));
}

}  // namespace keck
