#include "onnx/onnx_tensor_reader.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "onnx/onnx_types.h"

namespace ortmodule {
namespace {

constexpr auto kMaxElements = static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / 16;

std::string sizes_text(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size() && i < 16; ++i) text += str(i > 0 ? "," : "", dims[i]);
  return text + (dims.size() > 16 ? ",...]" : "]");
}

// Zero sizes are left out of the product, so that no part of it overflows either.
uint64_t count_elements(const OnnxReadContext& c, const std::vector<int64_t>& dims) {
  uint64_t product = 1;
  bool empty = false;
  for (int64_t dim : dims) {
    if (dim < 0)
      c.fail(str("sizes of a tensor must not be negative, but found ", sizes_text(dims)));
    if (dim == 0) {
      empty = true;
      continue;
    }
    if (static_cast<uint64_t>(dim) > kMaxElements / product)
      c.fail(str("a tensor must have less than 2^59 elements, but found ", sizes_text(dims)));
    product *= static_cast<uint64_t>(dim);
  }
  return empty ? 0 : product;
}

// The bytes of packed elements; their number is at most kMaxElements.
size_t count_bytes(uint64_t elements, int bits) {
  const auto width = static_cast<uint64_t>(bits);
  return elements / 8 * width + (elements % 8 * width + 7) / 8;
}

const OnnxElement& element_of(const OnnxReadContext& c, int64_t number) {
  const OnnxElement* element = find_onnx_element(number);
  if (!element) c.fail(str("element type of a tensor must be one of ONNX's, but found ", number));
  return *element;
}

// The fields of a TensorProto; the elements of its typed field stay in the message.
struct TensorFields {
  std::string name;
  int64_t element_type = 0;
  std::vector<int64_t> dims;
  std::string_view raw;
  int typed_field = 0;          // number of the field that holds elements; 0: none
  size_t typed_bytes = 0;       // in the file
  std::string_view last_typed;  // the last packed part
  bool is_external = false;
  OnnxExternalPlace place;
  std::string rest;
};

void read_typed_field(const OnnxReadContext& c, const WireField& field, TensorFields& to) {
  size_t bytes = 1;
  if (field.kind == WireField::Kind::Fixed32) bytes = 4;
  if (field.kind == WireField::Kind::Fixed64) bytes = 8;
  if (field.kind == WireField::Kind::Bytes) {
    const bool is_text = field.number == static_cast<int>(OnnxTypedField::Strings);
    bytes = field.bytes.size() + (is_text ? 1 : 0);
  }
  if (bytes == 0) return;
  if (to.typed_field != 0 && to.typed_field != field.number)
    c.fail(str("data of a tensor must be in one field, but found it in ", to.typed_field, " and ",
               field.number));
  to.typed_field = field.number;
  to.typed_bytes += bytes;
  to.last_typed = field.bytes;
}

void read_place(const OnnxReadContext& c, std::string_view message, OnnxExternalPlace& to) {
  std::string key;
  std::string value;
  c.walk(message, [&](const WireField& field) {
    if (field.number == 1) key = c.text(field);
    if (field.number == 2) value = c.text(field);
  });
  if (key == "location") to.location = value;
  if (key == "offset") to.offset = value;
  if (key == "length") to.size_bytes = value;
}

void read_fields(OnnxReadContext& c, std::string_view message, TensorFields& to) {
  c.walk(message, [&](const WireField& field) {
    switch (field.number) {
      case 1: return c.integers(field, [&](int64_t dim) { c.grow(to.dims, dim); });
      case 2: to.element_type = c.integer(field); return;
      case 3: c.fail("a tensor must be whole, but found a segment");
      case 4:
      case 5:
      case 6:
      case 7:
      case 10:
      case 11: return read_typed_field(c, field, to);
      case 8: to.name = c.text(field); return;
      case 9: to.raw = c.bytes(field); return;
      case 13: return read_place(c, c.bytes(field), to.place);
      case 14: to.is_external = c.integer(field) == 1; return;
      default: append_field(to.rest, field); return;
    }
  });
}

// Decodes the numbers of a typed field.
class TypedDecoder {
 public:
  TypedDecoder(OnnxReadContext& c, const TensorFields& from, const OnnxElement& element,
               uint64_t elements)
      : c_(c),
        from_(from),
        element_(element),
        bytes_(count_bytes(elements, element.bits)),
        is_fixed_(element.field == OnnxTypedField::Floats ||
                  element.field == OnnxTypedField::Doubles) {
    if (is_fixed_)
      entry_bytes_ = element.field == OnnxTypedField::Floats ? 4 : 8;
    else
      entry_bytes_ = std::max<size_t>(static_cast<size_t>(element.bits) / 8, 1);
    entries_ = element.bits == 6 ? elements : bytes_ / entry_bytes_;
    // Checked before memory is taken: a varint has at least one byte.
    const size_t most = is_fixed_ ? from.typed_bytes / entry_bytes_ : from.typed_bytes;
    if (entries_ > most) wrong_count(most);
  }

  std::string decode(std::string_view message) {
    c_.charge(bytes_);
    out_.resize(bytes_);
    c_.walk(message, [&](const WireField& field) {
      if (field.number != from_.typed_field) return;
      if (is_fixed_)
        c_.fixed(field, entry_bytes_, [&](std::string_view part) { put_bytes(part); });
      else
        c_.integers(field, [&](int64_t value) { put(value); });
    });
    if (found_ != entries_) wrong_count(found_);
    return std::move(out_);
  }

 private:
  [[noreturn]] void wrong_count(size_t found) const {
    c_.fail(str("a tensor of sizes ", sizes_text(from_.dims), " must have ", entries_,
                " numbers, but found ", found));
  }

  void put_bytes(std::string_view part) {
    const size_t count = part.size() / entry_bytes_;
    if (count > entries_ - found_) wrong_count(found_ + count);
    if (!part.empty()) std::memcpy(out_.data() + found_ * entry_bytes_, part.data(), part.size());
    found_ += count;
  }

  void put(int64_t value) {
    if (found_ == entries_) wrong_count(found_ + 1);
    if (!fits(value))
      c_.fail(str("a number of type ", element_.name, " must fit in ", bits_of_entry(),
                  " bits, but found ", value));
    if (element_.bits == 6)
      put_bits(static_cast<unsigned>(value));
    else
      std::memcpy(out_.data() + found_ * entry_bytes_, &value, entry_bytes_);  // little-endian
    ++found_;
  }

  // The types of 6 bits are packed in bytes only in raw form.
  void put_bits(unsigned value) {
    const size_t bit = found_ * 6;
    const unsigned shifted = value << (bit % 8);
    auto add = [&](size_t at, unsigned part) {
      if (part != 0) out_[at] = static_cast<char>(static_cast<unsigned char>(out_[at]) | part);
    };
    add(bit / 8, shifted & 0xffu);
    add(bit / 8 + 1, shifted >> 8u);
  }

  int bits_of_entry() const { return element_.bits == 6 ? 6 : static_cast<int>(entry_bytes_) * 8; }

  // Bits of floats and of unsigned numbers are written with and without sign.
  bool fits(int64_t value) const {
    const int bits = bits_of_entry();
    if (bits == 64) return true;
    const int64_t lowest = bits == 6 ? 0 : -(int64_t{1} << (bits - 1));
    return value >= lowest && value < (int64_t{1} << bits);
  }

  OnnxReadContext& c_;
  const TensorFields& from_;
  const OnnxElement& element_;
  size_t bytes_;
  bool is_fixed_;
  size_t entry_bytes_ = 0;  // of an entry of the typed field, decoded
  size_t entries_ = 0;
  size_t found_ = 0;
  std::string out_;
};

// The caller's elements in place of the file's.
const SharedBytes& given_bytes(const OnnxReadContext& c, const OnnxTensor& given,
                               const TensorFields& from) {
  if (given.element_type != from.element_type || given.dims != from.dims)
    c.fail(str("elements in place of an initializer must have its type ",
               onnx_type_name(from.element_type), " and sizes ", sizes_text(from.dims),
               ", but found ", onnx_type_name(given.element_type), " and ",
               sizes_text(given.dims)));
  return given.bytes;
}

SharedBytes read_bytes(OnnxReadContext& c, std::string_view message, const TensorFields& from,
                       const OnnxElement& element, uint64_t elements) {
  const size_t expected = count_bytes(elements, element.bits);
  if (from.is_external) {
    SharedBytes found;
    if (Reason reason = c.external().find(from.place, expected, found)) c.fail(*reason);
    return found;
  }
  if (!from.raw.empty() || from.typed_field == 0) {
    if (from.typed_field != 0) c.fail("data of a tensor must be raw or typed, but found both");
    if (from.raw.size() != expected)
      c.fail(str("a tensor of type ", element.name, " and sizes ", sizes_text(from.dims),
                 " must have ", expected, " bytes, but found ", from.raw.size()));
    return c.part(from.raw);
  }
  if (from.typed_field != static_cast<int>(element.field))
    c.fail(str("data of a tensor of type ", element.name, " must be in field ",
               static_cast<int>(element.field), ", but found it in ", from.typed_field));
  const bool floats =
      element.field == OnnxTypedField::Floats || element.field == OnnxTypedField::Doubles;
  if (floats && from.last_typed.size() == expected && from.typed_bytes == expected)
    return c.part(from.last_typed);
  return c.decoded(TypedDecoder(c, from, element, elements).decode(message));
}

std::vector<std::string> read_strings(OnnxReadContext& c, std::string_view message,
                                      const TensorFields& from, uint64_t elements) {
  const int field_number = static_cast<int>(OnnxTypedField::Strings);
  if (from.is_external || !from.raw.empty() ||
      (from.typed_field != 0 && from.typed_field != field_number))
    c.fail("a tensor of strings must hold them as strings");
  std::vector<std::string> strings;
  c.walk(message, [&](const WireField& field) {
    if (field.number == field_number) c.grow(strings, std::string(c.bytes(field)));
  });
  if (strings.size() != elements)
    c.fail(str("a tensor of sizes ", sizes_text(from.dims), " must have ", elements,
               " strings, but found ", strings.size()));
  return strings;
}

// The places of the values of a sparse tensor in a dense one, in ascending order.
class SparsePlaces {
 public:
  SparsePlaces(const OnnxReadContext& c, const OnnxTensor& indices, size_t values,
               const std::vector<int64_t>& dims, uint64_t elements)
      : c_(c), indices_(indices), dims_(dims), elements_(elements) {
    const std::vector<int64_t>& sizes = indices.dims;
    const auto count = static_cast<int64_t>(values);
    const bool linear = sizes.size() == 1 && sizes[0] == count;
    const bool by_axis =
        sizes.size() == 2 && sizes[0] == count && sizes[1] == static_cast<int64_t>(dims.size());
    if (indices.dtype != DType::Int64 || (!linear && !by_axis))
      c.fail(str("indices of a sparse tensor must be int64 of sizes [", count, "] or [", count, ",",
                 dims.size(), "], but found sizes ", sizes_text(sizes)));
    by_axis_ = by_axis;
  }

  size_t next() {
    uint64_t place = 0;
    if (by_axis_) {
      for (int64_t dim : dims_) place = place * static_cast<uint64_t>(dim) + index(dim);
    } else {
      place = index(static_cast<int64_t>(elements_));
    }
    if (place < at_least_)
      c_.fail(str("indices of a sparse tensor must be ascending, but found ", place, " after ",
                  at_least_ - 1));
    at_least_ = place + 1;
    return place;
  }

 private:
  uint64_t index(int64_t size) {
    int64_t index = 0;
    std::memcpy(&index, indices_.bytes.data() + 8 * read_++, 8);  // at any address
    if (index < 0 || index >= size)
      c_.fail(str("an index of a sparse tensor must be below ", size, ", but found ", index));
    return static_cast<uint64_t>(index);
  }

  const OnnxReadContext& c_;
  const OnnxTensor& indices_;
  const std::vector<int64_t>& dims_;
  uint64_t elements_;
  bool by_axis_ = false;
  size_t read_ = 0;
  uint64_t at_least_ = 0;
};

OnnxTensor to_dense(OnnxReadContext& c, OnnxTensor values, const OnnxTensor& indices,
                    std::vector<int64_t> dims) {
  const uint64_t elements = count_elements(c, dims);
  const OnnxElement& element = element_of(c, values.element_type);
  if (values.dims.size() != 1)
    c.fail(str("values of a sparse tensor must have one dimension, but found sizes ",
               sizes_text(values.dims)));
  const auto count = static_cast<size_t>(values.dims[0]);
  SparsePlaces places(c, indices, count, dims, elements);
  if (element.field == OnnxTypedField::Strings) {
    c.charge_dense(elements * sizeof(std::string));
    std::vector<std::string> dense(elements);
    for (size_t i = 0; i < count; ++i) dense[places.next()] = std::move(values.strings[i]);
    values.strings = std::move(dense);
  } else {
    if (element.bits % 8 != 0)
      c.fail(str("a sparse tensor must have elements of whole bytes, but found ", element.name));
    const auto width = static_cast<size_t>(element.bits) / 8;
    c.charge_dense(elements * width);
    std::string dense(elements * width, '\0');
    for (size_t i = 0; i < count; ++i)
      std::memcpy(dense.data() + places.next() * width, values.bytes.data() + i * width, width);
    values.bytes = std::move(dense);
  }
  values.dims = std::move(dims);
  return values;
}

// Whether the message of a tensor names another file, beside which alone it has a meaning.
bool is_external(const OnnxReadContext& c, std::string_view message) {
  bool external = false;
  c.walk(message, [&](const WireField& field) { external |= field.number == 14; });
  return external;
}

}  // namespace

OnnxInitializer read_onnx_tensor(OnnxReadContext& c, std::string_view message, bool may_be_given) {
  TensorFields fields;
  const auto place = c.within_tensor(fields.name);
  read_fields(c, message, fields);
  const OnnxElement& element = element_of(c, fields.element_type);
  const uint64_t elements = count_elements(c, fields.dims);
  OnnxTensor tensor{element.dtype, {}, {}, static_cast<int>(fields.element_type)};
  if (element.field == OnnxTypedField::Strings)
    tensor.strings = read_strings(c, message, fields, elements);
  else if (const auto given = c.given().initializers.find(fields.name);
           may_be_given && given != c.given().initializers.end())
    tensor.bytes = given_bytes(c, given->second, fields);
  else
    tensor.bytes = read_bytes(c, message, fields, element, elements);
  const std::string_view bytes = tensor.bytes.view();
  if (tensor.dtype == DType::Bool &&
      std::any_of(bytes.begin(), bytes.end(), [](char byte) { return byte != 0 && byte != 1; }))
    c.fail("elements of a bool tensor must be 0 or 1, but found another byte");
  tensor.dims = std::move(fields.dims);
  tensor.rest = c.rest(std::move(fields.rest));
  return {std::move(fields.name), std::move(tensor)};
}

OnnxInitializer read_onnx_sparse_tensor(OnnxReadContext& c, std::string_view message) {
  std::string_view values;
  std::string_view indices;
  std::vector<int64_t> dims;
  c.walk(message, [&](const WireField& field) {
    if (field.number == 1) values = c.bytes(field);
    if (field.number == 2) indices = c.bytes(field);
    if (field.number == 3) c.integers(field, [&](int64_t dim) { c.grow(dims, dim); });
  });
  OnnxInitializer sparse = read_onnx_tensor(c, values);
  const auto place = c.within_tensor(sparse.name);
  sparse.tensor =
      to_dense(c, std::move(sparse.tensor), read_onnx_tensor(c, indices).tensor, std::move(dims));
  if (!is_external(c, values) && !is_external(c, indices))
    sparse.tensor.sparse = c.rest(std::string(message));
  return sparse;
}

}  // namespace ortmodule
