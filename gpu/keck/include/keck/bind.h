// Functions for Python without pybind11: `PYBIND11_MODULE` and `m.def` over Python's own C
// interface. Stands in for pybind11/pybind11.h and torch/python.h, as far as candidates use them.
//
// Conversions follow pybind11's rules and torch's casters. As with torch's wrapper the lock of
// the interpreter is held during a call. `THPVariable_Wrap`, `THPVariableClass`, `THPDtypeType`
// and `translate_exception_to_python` are taken from libtorch_python by declaration (the headers
// below torch/csrc/).
#pragma once

#include <Python.h>

#include <exception>
#include <memory>

#include "keck/convert.h"

namespace torch {
void translate_exception_to_python(const std::exception_ptr& error);

template <typename F>
auto wrap_pybind_function(F&& function) {
  return +std::forward<F>(function);
}
}  // namespace torch

namespace pybind11 {

struct none {};

// A named argument, perhaps with a default.
struct arg {
  explicit arg(const char* name) : name(name) {}
  template <typename T>
  arg operator=(const T& value) const {
    if constexpr (std::is_same_v<T, none>) return *this = nullptr;
    else return with(keck::to_python(value));
  }
  arg operator=(std::nullptr_t) const { return with(keck::to_python(nullptr)); }
  const char* name;
  PyObject* standard = nullptr;  // kept as long as the process; an error shows in module_of

 private:
  arg with(PyObject* value) const {
    arg copy(name);
    copy.standard = value;
    return copy;
  }
};

}  // namespace pybind11
namespace py = pybind11;

namespace keck {

// One function of a module; further ones of the same name are tried in order.
struct Function {
  using Call = PyObject* (*)(const Function&, PyObject* const* values, bool* matched);
  PyMethodDef method{};
  std::string name, doc;
  std::vector<pybind11::arg> named;
  size_t count = 0;
  Call call = nullptr;
  void (*target)() = nullptr;
  std::unique_ptr<Function> next;
};

template <typename R, typename... A, size_t... I>
PyObject* run(R (*target)(A...), PyObject* const* values, bool* matched,
              std::index_sequence<I...>) {
  std::tuple<Argument<std::decay_t<A>>...> loaded;
  *matched = (std::get<I>(loaded).load(values[I]) && ...);
  if (!*matched) return nullptr;
  if constexpr (std::is_void_v<R>) {
    target(static_cast<A&&>(std::get<I>(loaded).value)...);
    return to_python(nullptr);
  } else {
    return to_python(target(static_cast<A&&>(std::get<I>(loaded).value)...));
  }
}

template <typename R, typename... A>
PyObject* call_as(const Function& function, PyObject* const* values, bool* matched) {
  try {
    auto target = reinterpret_cast<R (*)(A...)>(function.target);
    return run(target, values, matched, std::index_sequence_for<A...>{});
  } catch (const std::exception&) {
    torch::translate_exception_to_python(std::current_exception());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "Caught an unknown exception!");
  }
  return nullptr;
}

constexpr size_t ARGUMENTS_MAX = 64;

// Puts arguments in their places; false if they are too many, too few or have no place.
inline bool placed(const Function& f, PyObject* const* args, size_t given, PyObject* names,
                   PyObject** values) {
  if (given > f.count) return false;
  for (size_t i = 0; i < f.count; ++i) {
    const bool standard = i >= given && i < f.named.size();
    values[i] = i < given ? args[i] : standard ? f.named[i].standard : nullptr;
  }
  const size_t nameable = std::min(f.named.size(), f.count);
  const Py_ssize_t extra = names ? PyTuple_GET_SIZE(names) : 0;
  for (Py_ssize_t k = 0; k < extra; ++k) {
    size_t at = given;
    PyObject* name = PyTuple_GET_ITEM(names, k);
    while (at < nameable && PyUnicode_CompareWithASCIIString(name, f.named[at].name)) ++at;
    if (at >= nameable) return false;
    values[at] = args[given + static_cast<size_t>(k)];
  }
  bool all = true;
  for (size_t i = 0; i < f.count; ++i) all = all && values[i];
  return all;
}

inline PyObject* enter(PyObject* self, PyObject* const* args, Py_ssize_t given, PyObject* names) {
  auto* first = static_cast<Function*>(PyCapsule_GetPointer(self, nullptr));
  if (!first) return nullptr;
  PyObject* values[ARGUMENTS_MAX];
  for (const Function* f = first; f; f = f->next.get()) {
    if (!placed(*f, args, static_cast<size_t>(given), names, values)) continue;
    bool matched = true;
    PyObject* result = f->call(*f, values, &matched);
    if (matched) return result;
    if (PyErr_Occurred()) PyErr_Clear();
  }
  PyErr_Format(PyExc_TypeError, "%s(): incompatible function arguments", first->name.c_str());
  return nullptr;
}

inline void describe(Function& f, const char* doc) { f.doc = doc; }
inline void describe(Function& f, const pybind11::arg& named) { f.named.push_back(named); }

template <typename R, typename... A>
std::unique_ptr<Function> function(const char* name, R (*target)(A...)) {
  static_assert(sizeof...(A) <= ARGUMENTS_MAX);
  auto f = std::make_unique<Function>();
  f->name = name;
  f->count = sizeof...(A);
  f->call = call_as<R, A...>;
  f->target = reinterpret_cast<void (*)()>(target);
  return f;
}

}  // namespace keck

namespace pybind11 {

class module_ {
 public:
  explicit module_(PyObject* module) : module_object_(module) {}

  template <typename F, typename... Extra>
  module_& def(const char* name, F&& target, const Extra&... extra) {
    auto f = keck::function(name, +std::forward<F>(target));
    (keck::describe(*f, extra), ...);
    add(std::move(f));
    return *this;
  }

  struct Doc {
    PyObject* module;
    void operator=(const char* text) { PyModule_SetDocString(module, text); }
  };
  Doc doc() { return {module_object_}; }

 private:
  void add(std::unique_ptr<keck::Function> f) {
    for (keck::Function* known : known_) {
      if (known->name != f->name) continue;
      while (known->next) known = known->next.get();
      known->next = std::move(f);
      return;
    }
    // Lives as long as the process, like the code that it points to.
    keck::Function* kept = f.release();
    known_.push_back(kept);
    kept->method = {kept->name.c_str(), reinterpret_cast<PyCFunction>(
                        reinterpret_cast<void (*)()>(keck::enter)),
                    METH_FASTCALL | METH_KEYWORDS, kept->doc.c_str()};
    PyObject* self = PyCapsule_New(kept, nullptr, nullptr);
    PyObject* callable = self ? PyCFunction_NewEx(&kept->method, self, nullptr) : nullptr;
    Py_XDECREF(self);
    if (!callable || PyModule_AddObject(module_object_, kept->name.c_str(), callable) != 0) {
      Py_XDECREF(callable);
    }
  }

  PyObject* module_object_;
  std::vector<keck::Function*> known_;
};

}  // namespace pybind11

namespace keck {
inline PyObject* module_of(PyModuleDef* definition, void (*fill)(pybind11::module_&)) {
  PyObject* object = PyModule_Create(definition);
  if (!object) return nullptr;
  pybind11::module_ module(object);
  fill(module);
  if (!PyErr_Occurred()) return object;
  Py_DECREF(object);
  return nullptr;
}
}  // namespace keck

#define KECK_TEXT_OF(name) #name
#define KECK_MODULE(name, variable)                                                         \
  static void keck_fill_##name(::pybind11::module_&);                                       \
  extern "C" __attribute__((visibility("default"))) PyObject* PyInit_##name() {             \
    static PyModuleDef definition = {PyModuleDef_HEAD_INIT, KECK_TEXT_OF(name)};            \
    return ::keck::module_of(&definition, keck_fill_##name);                                \
  }                                                                                         \
  static void keck_fill_##name(::pybind11::module_& variable)
#define PYBIND11_MODULE(name, variable) KECK_MODULE(name, variable)
