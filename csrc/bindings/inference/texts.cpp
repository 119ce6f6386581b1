#include "bindings/inference/texts.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "inference/sized/utf8.h"

namespace py = pybind11;

namespace ortmodule::bindings {
namespace {

// Elements of numpy's str type: code points, with zeros behind the text.
void add_numbers(const char32_t* points, py::ssize_t length, py::ssize_t count, RunTexts& texts,
                 int64_t* numbers) {
  std::string text;
  for (py::ssize_t i = 0; i < count; ++i, points += length) {
    py::ssize_t end = length;
    while (end > 0 && points[end - 1] == 0) --end;
    text.clear();
    for (py::ssize_t k = 0; k < end; ++k) append_point(text, points[k]);
    numbers[i] = texts.number(text);
  }
}

// Elements of numpy's type of bytes, with zeros behind the text, or of raw ones (void), which are
// texts of that length.
void add_numbers(const char* bytes, py::ssize_t length, py::ssize_t count, bool raw,
                 RunTexts& texts, int64_t* numbers) {
  for (py::ssize_t i = 0; i < count; ++i, bytes += length) {
    py::ssize_t end = length;
    while (!raw && end > 0 && bytes[end - 1] == 0) --end;
    numbers[i] = texts.number({bytes, static_cast<size_t>(end)});
  }
}

int64_t number_of(py::handle object, RunTexts& texts) {
  const py::str text(py::reinterpret_borrow<py::object>(object));
  py::ssize_t bytes = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &bytes);
  if (!utf8) throw py::error_already_set();
  return texts.number({utf8, static_cast<size_t>(bytes)});
}

py::object key_of(const OnnxMapKeys& keys, size_t column) {
  if (!keys.texts.empty()) return py::str(keys.texts.at(column));
  return py::int_(keys.integers.at(column));
}

py::list to_maps(const HostTensor& scores, const OnnxMapKeys& keys) {
  const auto columns = static_cast<size_t>(scores.sizes.at(1));
  std::vector<py::object> names;
  for (size_t column = 0; column < columns; ++column) names.push_back(key_of(keys, column));
  py::list maps(static_cast<size_t>(scores.sizes.at(0)));
  const auto* score = static_cast<const float*>(scores.memory.data());
  for (size_t row = 0; row < maps.size(); ++row) {
    py::dict map;
    for (const py::object& name : names) map[name] = py::float_(*score++);
    maps[row] = std::move(map);
  }
  return maps;
}

py::array to_texts(const HostTensor& tensor, const RunTexts& texts) {
  const std::vector<py::ssize_t> sizes(tensor.sizes.begin(), tensor.sizes.end());
  py::array array(py::dtype("O"), sizes);
  auto* objects = static_cast<PyObject**>(array.mutable_data());
  const auto* numbers = static_cast<const int64_t*>(tensor.memory.data());
  // Each object is made once, where that takes no more than the output does; labels are few.
  std::vector<py::object> made(static_cast<size_t>(array.size()) * 4 >= texts.size() ? texts.size()
                                                                                     : size_t{0});
  for (py::ssize_t i = 0; i < array.size(); ++i) {
    const auto number = static_cast<size_t>(numbers[i]);
    py::object text = number < made.size() ? made[number] : py::object();
    if (!text) {
      text = py::str(texts.text(numbers[i]));
      if (number < made.size()) made[number] = text;
    }
    Py_XDECREF(objects[i]);
    objects[i] = text.release().ptr();
  }
  return array;
}

}  // namespace

bool has_texts(const py::array& array) {
  constexpr int kVoid = 20;  // NPY_VOID; types of ml_dtypes have its kind, and another number
  const py::dtype dtype = array.dtype();
  const char kind = dtype.kind();
  if (kind == 'V') return dtype.num() == kVoid && !dtype.has_fields();
  return kind == 'U' || kind == 'O' || kind == 'S';
}

HostTensorView text_numbers(const py::array& array, RunTexts& texts,
                            std::vector<py::object>& held) {
  const char kind = array.dtype().kind();
  const py::array given = array.attr("astype")(
      kind == 'U' ? array.dtype().attr("newbyteorder")("=") : py::object(array.dtype()), "C");
  py::array_t<int64_t> numbers(
      std::vector<py::ssize_t>(given.shape(), given.shape() + given.ndim()));
  int64_t* number = numbers.mutable_data();
  if (kind == 'U')
    add_numbers(static_cast<const char32_t*>(given.data()),
                given.itemsize() / static_cast<py::ssize_t>(sizeof(char32_t)), given.size(), texts,
                number);
  else if (kind == 'S' || kind == 'V')
    add_numbers(static_cast<const char*>(given.data()), given.itemsize(), given.size(), kind == 'V',
                texts, number);
  else
    for (py::ssize_t i = 0; i < given.size(); ++i)
      number[i] = number_of(static_cast<PyObject* const*>(given.data())[i], texts);
  HostTensorView view{
      DType::Int64, {given.shape(), given.shape() + given.ndim()}, number, {}, kOnHost, true};
  held.push_back(std::move(numbers));
  return view;
}

py::object to_texts_or_maps(const HostResult& result, const RunTexts& texts) {
  ORTM_CHECK(result.tensors.size() == 1 && !result.is_sequence,
             "[run] strings and maps must be one tensor, but found a sequence");
  const HostTensor& tensor = result.tensors.front();
  if (result.meaning.meaning == OnnxMeaning::Maps) return to_maps(tensor, *result.meaning.keys);
  return to_texts(tensor, texts);
}

}  // namespace ortmodule::bindings
